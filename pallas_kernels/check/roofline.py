"""The least time in which a device could do a case, and what share of that a measured time is."""

import dataclasses

from pallas_kernels.cases import Case
from pallas_kernels.targets import Target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """The floor of a case's time.

    Attributes:
        seconds: max(bytes / bandwidth, FLOPs / peak).
        bound: which of the two it is: "memory" or "compute".
    """

    seconds: float
    bound: str

    def share(self, seconds: float) -> float:
        return self.seconds / seconds


def roofline(case: Case, target: Target) -> Roofline:
    """The floor by the target's data sheet. A dtype without a figure there is multiplied as bfloat16."""
    memory = case.bytes / target.bandwidth
    compute = case.flops / target.flops.get(case.dtype, target.flops["bfloat16"])
    return Roofline(seconds=max(memory, compute), bound="memory" if memory >= compute else "compute")
