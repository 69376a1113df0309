"""What there is to do: a case by an implementation, on the device at hand or for a target; the most important first."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from pallas_kernels.cases import Case
from pallas_kernels.dispatch import REFERENCE, Implementation
from pallas_kernels.targets import TARGETS, Target

# Ops that are not named here come after these.
IMPORTANCE = (
    "mla_decode", "gqa_decode", "flash_attention", "token_logprob", "rms_norm", "mla_decode_paged", "gqa_decode_paged",
    "gqa_decode_shared_prefix",
)  # fmt: skip

# Implementations by others, which stand beside ours for comparison where they are installed. What they do is not judged.
OTHERS = ("tokamax",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A row of the table: a case, the implementation that serves it, and the target to compile for if not to run."""

    case: Case
    implementation: str
    target: str | None = None

    def identity(self) -> dict[str, Any]:
        """What the JSON file calls it."""
        return {
            "op": self.case.op, "shape": self.case.label, "dtype": self.case.dtype, "backward": self.case.backward,
            "implementation": self.implementation, "target": self.target,
        }  # fmt: skip

    def __str__(self) -> str:
        words = (self.case.op, self.case.label, self.case.dtype, self.implementation, self.target)
        return " ".join(word for word in words if word)


def in_order(cases: Iterable[Case]) -> list[Case]:
    """The most important op first, and each op, forward and backward, once before any has its second case."""
    seen: collections.Counter[tuple[str, bool]] = collections.Counter()
    ranked = []
    for case in cases:
        importance = IMPORTANCE.index(case.op) if case.op in IMPORTANCE else len(IMPORTANCE)
        ranked.append(((seen[case.op, case.backward], importance, case.backward), case))
        seen[case.op, case.backward] += 1
    return [case for _, case in sorted(ranked, key=lambda entry: entry[0])]


def device_jobs(cases: Iterable[Case], platform: str, target: Target | None) -> list[Job]:
    """Every implementation of the platform and the reference, case by case; on a CPU the reference alone."""
    return [
        Job(case=case, implementation=i.name)
        for case in in_order(cases)
        for i in case.implementations(platform)
        if _has_a_row(i, target)
    ]


def target_jobs(cases: Iterable[Case], targets: Sequence[str], with_reference: bool = False) -> list[Job]:
    """Every implementation of each target's platform; the reference, which is not a kernel, only where it is asked for."""
    return [
        Job(case=case, implementation=i.name, target=name)
        for case in in_order(cases)
        for name in targets
        for i in case.implementations(TARGETS[name].platform)
        if _has_a_row(i, TARGETS[name]) and (with_reference or i.name != REFERENCE)
    ]


def _has_a_row(implementation: Implementation, target: Target | None) -> bool:
    if implementation.name in OTHERS:
        return implementation.installed
    # Mosaic kernels are written for Hopper's matrix instructions.
    return implementation.name != "gpu_mosaic" or target is None or target.compute_capability == 90
