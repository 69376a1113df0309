"""How rewards are judged in processes of their own."""

import dataclasses
import math
import os


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """The processes that judge while the devices sample.

    Attributes:
      workers: processes; null for one a CPU core, 0 to judge in the trainer's process, where nothing ends a reward that
        hangs.
      timeout: seconds that one reward may take for one row; beyond them its process is ended, and the reward is missing.
      max_pending: rows that may wait to be judged; whoever hands in more waits until there is room.
    """

    workers: int | None = None
    timeout: float = 120.0
    max_pending: int = 4096

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers is {self.workers}, but it must be 0 or more, or null for one a CPU core")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout is {self.timeout}, but it must be a positive number of seconds")
        if self.max_pending < 1:
            raise ValueError(f"max_pending is {self.max_pending}, but it must be at least 1 row")

    @property
    def processes(self) -> int:
        """The number of worker processes."""
        if self.workers is not None:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
