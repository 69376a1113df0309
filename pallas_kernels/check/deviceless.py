"""Rows of targets: an implementation is compiled for a device that is not there."""

import dataclasses
import functools
from typing import Any

from pallas_kernels.check.failures import described
from pallas_kernels.check.jobs import Job
from pallas_kernels.resources import compile_for
from pallas_kernels.targets import TARGETS


def row(job: Job) -> dict[str, Any]:
    """The row of a job; what the compiler raises is part of it."""
    assert job.target is not None
    made = job.identity() | {"status": "ok", "message": None, "calls": None, "kernels": [], "temporary_bytes": None}
    try:
        compiled = compile_for(
            TARGETS[job.target], functools.partial(job.case.run, impl=job.implementation), *job.case.arguments
        )  # fmt: skip
    except Exception as raised:
        return made | described(raised, job)
    return made | {
        "calls": compiled.calls,
        "kernels": [dataclasses.asdict(kernel) for kernel in compiled.kernels],
        "temporary_bytes": compiled.temporary_bytes,
    }
