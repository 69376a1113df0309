"""Seconds spent in each phase of a step, measured where its result is ready and not where it was dispatched."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax

from grpo_jax.training.compile_clock import CompileClock


class PhaseClock:
    """Adds up seconds by phase name, those of compilation apart under `compile`.

    Attributes:
      seconds: seconds of each phase, since this clock was made.
    """

    def __init__(self, compiles: CompileClock) -> None:
        self.seconds: dict[str, float] = {}
        self._compiles = compiles

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[list[Any]]:
        """Times a block. Device arrays appended to the list that it yields are waited for before the time is taken."""
        results: list[Any] = []
        start, compiled = time.perf_counter(), self._compiles.seconds
        try:
            yield results
            jax.block_until_ready(results)
        finally:
            compiling = self._compiles.seconds - compiled
            for name, seconds in ((phase, time.perf_counter() - start - compiling), ("compile", compiling)):
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def metrics(self) -> dict[str, float]:
        """The seconds as metrics, `seconds/rollout` and the like."""
        return {f"seconds/{name}": seconds for name, seconds in self.seconds.items()}
