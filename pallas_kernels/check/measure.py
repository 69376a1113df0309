"""Rows of the device at hand: an implementation runs, is compared with float64 and timed."""

import functools
import time
from typing import Any

import jax

from pallas_kernels.cases import Case
from pallas_kernels.check import timing
from pallas_kernels.check.device import Device
from pallas_kernels.check.failures import described
from pallas_kernels.check.inputs import ParallelGenerator
from pallas_kernels.check.jobs import Job
from pallas_kernels.check.numerics import difference
from pallas_kernels.check.roofline import roofline

SEED = 0


class Bench:
    """Runs jobs on a device; the inputs and expectations of a case are made once for its rows."""

    def __init__(self, device: Device, bandwidth: float | None, clock: timing.Clock = time.perf_counter):
        """
        Args:
            device: where jobs run.
            bandwidth: bytes a second of a copy there, if it was measured.
            clock: seconds.
        """
        self._device = device
        self._bandwidth = bandwidth
        self._clock = clock
        self._case: Case | None = None
        self._arrays: tuple[jax.Array, ...] = ()
        self._expected: Any = None

    def row(self, job: Job) -> dict[str, Any]:
        """The row of a job; what it raises is part of it."""
        case, target = job.case, self._device.target
        floor = roofline(case, target) if target is not None else None
        row = job.identity() | {
            "status": "ok", "message": None, "error": None, "allowed": case.allowed, "seconds": None, "least_seconds": None,
            "floor_seconds": floor and floor.seconds, "bound": floor and floor.bound, "roofline_share": None,
            "copy_share": None, "bytes": case.bytes, "flops": case.flops,
        }  # fmt: skip
        try:
            error, time_taken = self._run(job)
        except Exception as raised:
            return row | described(raised, job)
        row |= {"error": error, "seconds": time_taken.median, "least_seconds": time_taken.least}
        if not error <= case.allowed:
            row["status"] = "wrong"
        if floor is not None:
            row["roofline_share"] = floor.share(time_taken.median)
        if self._bandwidth is not None and (floor is None or floor.bound == "memory"):
            row["copy_share"] = case.bytes / self._bandwidth / time_taken.median
        return row

    def _run(self, job: Job) -> tuple[float, timing.Timing]:
        case = job.case
        self._prepare(case)
        function = functools.partial(case.run, impl=job.implementation)
        outputs_of_one = sum(o.size * o.dtype.itemsize for o in jax.tree.leaves(case.abstract_outputs()))
        inputs_of_one = sum(array.nbytes for array in self._arrays)
        on_cpu = self._device.platform == "cpu"
        calls = 1 if on_cpu else timing.calls_of_a_program(inputs_of_one + outputs_of_one)
        program = timing.Program(function, self._arrays, calls, case.in_place)
        error = max(difference(output, self._expected) for output in program())
        taken = timing.time_program(program, calls, output_bytes=calls * outputs_of_one, clock=self._clock)
        return error, taken

    def _prepare(self, case: Case) -> None:
        if self._case is case:
            return
        self._case, self._arrays, self._expected = None, (), None
        arrays = case.fill(ParallelGenerator(SEED), case.arguments)
        self._expected = case.expected(*arrays)
        self._arrays = tuple(jax.device_put(array) for array in arrays)
        self._case = case
