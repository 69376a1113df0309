"""Every kernel, compiled by every chip's own compiler, and what it takes of the chip.

On an H200 and a v5e that is every shape that the kernel is checked on, on the other chips its first. The committed table
of registers, spills and shared memory must say what the compilers that it names say today:

    python -m pallas_kernels.check --target all --json benchmarks/results/kernel_resources.json
"""

import json
import os
import pathlib
from typing import Any

import pytest

from pallas_kernels.check import deviceless, report
from pallas_kernels.check.jobs import OTHERS, Job, target_jobs
from pallas_kernels.dispatch import EXTRAS
from pallas_kernels.registry import all_cases
from pallas_kernels.targets import TARGETS

TABLE = pathlib.Path(__file__).parents[2] / "benchmarks/results/kernel_resources.json"
REMEDY = "python -m pallas_kernels.check --target all --json benchmarks/results/kernel_resources.json"

# Of the packages that the table names, those that decide what a GPU kernel takes.
DECIDING = ("jax", "jaxlib", "jax-triton", "triton", "nvidia-cuda-nvcc")
COUNTED = ("registers", "spilled_bytes", "shared_bytes")

EVERY = [job for job in target_jobs(all_cases(), list(TARGETS)) if job.implementation not in OTHERS]
WHOLE_TARGETS = ("h200", "v5e")


def is_first(job: Job) -> bool:
    """Whether no earlier case of the op has the same direction."""
    alike = [case for case in all_cases() if (case.op, case.backward) == (job.case.op, job.case.backward)]
    return job.case is alike[0]


def parameters() -> list[Any]:
    first = {id(job) for job in EVERY if is_first(job)}
    chosen = [job for job in EVERY if id(job) in first or job.target in WHOLE_TARGETS]
    return [pytest.param(job, marks=() if id(job) in first else pytest.mark.every_shape, id=str(job)) for job in chosen]


pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="Triton's interpreter takes the place of its compiler"
)


@pytest.fixture(scope="session")
def committed() -> dict[str, Any]:
    if not TABLE.exists():
        pytest.skip(f"there is no table: {REMEDY}")
    return json.loads(TABLE.read_text())


def differing(table: dict[str, Any]) -> str:
    """The versions that the table was made with, where others are installed."""
    installed = report.versions()
    return ", ".join(
        f"{package} {table['versions'][package]} (installed: {installed[package]})"
        for package in DECIDING
        if table["versions"][package] != installed[package]
    )


def missing_package(job: Job) -> str | None:
    assert job.target is not None
    (implementation,) = (i for i in job.case.table if i.name == job.implementation)
    if not TARGETS[job.target].installed:
        return TARGETS[job.target].package
    return None if implementation.installed else implementation.package


@pytest.mark.parametrize("job", parameters())
def test_a_kernel_compiles_and_does_not_spill(job: Job, request: pytest.FixtureRequest) -> None:
    missing = missing_package(job)
    if missing is not None:
        pytest.skip(f"{missing} is not installed: run make test-aot")
    row = deviceless.row(job)
    if row["status"] == "refused" and job.implementation == "gpu_mosaic":
        pytest.skip(row["message"])
    assert row["status"] == "ok", row["message"]
    assert row["calls"] >= 1, "the program holds no kernel"
    if job.implementation == "gpu_triton":
        assert row["kernels"], "no kernel was recorded"
    assert all(kernel["spilled_bytes"] == 0 for kernel in row["kernels"]), row["kernels"]
    if TABLE.exists() and not differing(table := request.getfixturevalue("committed")):
        recorded = [entry for entry in table["rows"] if all(entry[k] == v for k, v in job.identity().items())]
        assert recorded, f"the table has no such row: {REMEDY}"
        assert counts(row) == counts(recorded[0]), f"the table is out of date: {REMEDY}"


def counts(row: dict[str, Any]) -> list[tuple[int, ...]]:
    return sorted(tuple(kernel[key] for key in COUNTED) for kernel in row["kernels"])


def test_the_table_was_made_with_the_compilers_that_are_installed(committed: dict[str, Any]) -> None:
    if other := differing(committed):
        pytest.skip(f"the table is not compared: it was made with {other}")
    assert committed["mode"] == "deviceless" and committed["complete"]


def test_the_table_has_no_rows_of_cases_that_are_gone(committed: dict[str, Any]) -> None:
    current = [job.identity() for job in EVERY]
    recorded = [{key: row[key] for key in current[0]} for row in committed["rows"]]
    gone = [entry for entry in recorded if entry not in current and entry["implementation"] not in OTHERS]
    assert not gone, f"{REMEDY}: {gone[:3]}"


def test_what_an_implementation_needs_has_an_extra_that_brings_it() -> None:
    needed = {i.package for case in all_cases() for i in case.table if i.package is not None}
    assert needed <= set(EXTRAS), f"dispatch.EXTRAS lacks {needed - set(EXTRAS)}"
