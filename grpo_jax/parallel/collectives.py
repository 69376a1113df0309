"""The collectives of a compiled program: what devices exchange, read from its text."""

import dataclasses
import math
import re
from collections import Counter

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter", "ragged-all-to-all")

# "%x = (f32[8,4]{1,0}, f32[]) all-reduce-start(": the shapes of the result, then the operation.
_OPERATION = re.compile(rf"= (?P<shapes>\(?[^=]*?\)?) (?P<kind>{'|'.join(KINDS)})(?:-start)?\(")
_SHAPE = re.compile(r"(?P<dtype>pred|[a-z]+\d+[a-z0-9]*)\[(?P<dims>[\d,]*)\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collectives:
    """How often each kind stands in a program, and the bytes of what it gives on one device.

    What stands in a loop is counted once.
    """

    counts: Counter[str]
    bytes: Counter[str]

    def __str__(self) -> str:
        return ", ".join(f"{count} {kind} of {self.bytes[kind] / 1e6:.1f} MB" for kind, count in sorted(self.counts.items()))


def collectives(text: str) -> Collectives:
    """The collectives in `compiled.as_text()`."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for match in _OPERATION.finditer(text):
        counts[match["kind"]] += 1
        sizes[match["kind"]] += sum(map(_bytes, _SHAPE.finditer(match["shapes"])))
    return Collectives(counts=counts, bytes=sizes)


def _bytes(shape: re.Match[str]) -> int:
    bits = 8 if shape["dtype"] == "pred" else int(re.search(r"\d+", shape["dtype"])[0])  # type: ignore[index]
    return math.prod(int(size) for size in shape["dims"].split(",") if size) * bits // 8
