"""How code is judged: the sandbox, its limits, and what counts."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, get_args

SandboxName = Literal["bubblewrap", "rlimits"]
"""How the code is shut in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run of a program may use. A program that goes over one of them fails.

    Attributes:
      cpu_seconds: seconds of processor time, a whole number.
      wall_seconds: seconds by the clock, from when the sandbox stands; well above cpu_seconds, for the machine may be busy.
      total_seconds: seconds by the clock for all cases of one completion; cases that come after have failed.
      memory_mb: MiB of address space. It bounds the threads too, each of which takes 8 MiB.
      output_kb: KiB that a program may write to its output, and again to its errors.
      message_kb: KiB that the arguments of one call, or its result, may have.
      file_mb: MiB of files in its private /tmp.
      open_files: files, pipes and sockets open at the same time.
      source_kb: KiB of source that a completion may have.
    """

    cpu_seconds: int = 4
    wall_seconds: float = 12.0
    total_seconds: float = 60.0
    memory_mb: int = 512
    output_kb: int = 1024
    message_kb: int = 4096
    file_mb: int = 16
    open_files: int = 64
    source_kb: int = 64

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}, but it must be a whole number of at least {least}")
        for name in ("wall_seconds", "total_seconds"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}, but it must be a number of seconds above 0")


# Python itself needs about 32 MiB of address space and a dozen descriptors.
_LEAST = {
    "cpu_seconds": 1,
    "memory_mb": 64,
    "output_kb": 1,
    "message_kb": 1,
    "file_mb": 1,
    "open_files": 16,
    "source_kb": 1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeConfig:
    """How completions that are Python code are judged.

    Attributes:
      sandbox: "bubblewrap" runs the code in namespaces of its own, without network, users' files or other processes.
        "rlimits" is weaker: the code has the same limits and may start no process and reach no network, but it reads and
        writes what this user can read and write. It must be asked for by name, and warns.
      partial_credit: whether a completion that passes some tests gets their share of 1; otherwise it gets 0.
      packages: names of installed packages that the code and the tests may import beside the standard library.
      limits: what one run may use.
    """

    sandbox: SandboxName = "bubblewrap"
    partial_credit: bool = False
    packages: tuple[str, ...] = ()
    limits: Limits = dataclasses.field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.sandbox not in get_args(SandboxName):
            raise ValueError(f"sandbox is {self.sandbox!r}, but it must be one of {list(get_args(SandboxName))}")
        if not isinstance(self.partial_credit, bool):
            raise ValueError(f"partial_credit is {self.partial_credit!r}, but it must be true or false")
        if isinstance(self.packages, str):
            raise ValueError(f"packages is {self.packages!r}, but it must be a list of names")
        object.__setattr__(self, "packages", tuple(self.packages))  # the config is a key of caches
        for name in self.packages:
            if not (isinstance(name, str) and name.isidentifier()):
                raise ValueError(f"packages holds {name!r}, but it must hold names of packages as they are imported")
