"""How strictly, and for how long, mathematics is compared."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class MathConfig:
    """How answers are compared with references.

    Attributes:
      tolerance: the largest difference, relative to the reference, of two numbers that count as equal, where at least one
        of them is written with a decimal point, the reference is no integer, and they differ by less than one unit in the
        last decimal place of the one with fewer; in [0, 0.01], 0 for exact.
      time_limit: seconds of processor time that sympy may take for one answer; what it has not proved by then is different.
    """

    tolerance: float = 1e-6
    time_limit: float = 2.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and 0 <= self.tolerance <= 0.01):
            raise ValueError(
                f"tolerance is {self.tolerance!r}, but it must be in [0, 0.01]: it is relative, and a wider one accepts "
                "wrong answers. 0 compares exactly"
            )
        if not (math.isfinite(self.time_limit) and self.time_limit > 0):
            raise ValueError(f"time_limit is {self.time_limit!r}, but it must be a finite number of seconds above 0")
