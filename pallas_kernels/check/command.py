"""The command line: which rows are wanted, and the loop that makes, prints and writes them."""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import jax

from pallas_kernels import targets
from pallas_kernels.cases import Case
from pallas_kernels.check import device, deviceless, jobs, measure, table, timing
from pallas_kernels.check.report import Report
from pallas_kernels.dispatch import REFERENCE
from pallas_kernels.registry import all_cases

# Rows left out that are named on the screen, so that they do not push the table off it. The JSON names all.
NAMED_LEFT = 12

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

DESCRIPTION = """\
Checks every kernel: on the GPU or TPU at hand its error against float64 NumPy, its time, and what share that is of the
roofline; with --target, whether it compiles for a device that is not there, and what it takes of it.

On a CPU only the references run: a kernel is proved there by the tests (tests/pallas_kernels), or compiled with --target.
The exit status is 1 if an error exceeds what is allowed, or an implementation raised; 2 if the command makes no sense."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m pallas_kernels.check", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--op", metavar="NAMES", help="ops, separated by commas; all by default")
    made.add_argument("--impl", metavar="NAMES", help="implementations, separated by commas; all by default")
    made.add_argument(
        "--target", metavar="NAMES",
        help=f"compile for these instead of running: {', '.join(targets.TARGETS)}, separated by commas, or all. The "
        "reference is compiled only if --impl names it",
    )  # fmt: skip
    made.add_argument(
        "--budget", metavar="SECONDS", type=float,
        help="start no row that would probably end later than this; the most important come first, and those left out are "
        "named (all of them in the JSON). By default 240 on a device, and no limit with --target",
    )  # fmt: skip
    made.add_argument(
        "--json", metavar="PATH", type=pathlib.Path,
        help="write the rows there as well, after each row (the format: python -m pydoc pallas_kernels.check)",
    )  # fmt: skip
    made.add_argument("--list", action="store_true", help="list the cases and stop")
    return made


def main(
    argv: Sequence[str] | None = None,
    *,
    cases: Sequence[Case] | None = None,
    out: TextIO | None = None,
    clock: timing.Clock = time.perf_counter,
) -> int:
    """Runs the command; returns the exit status.

    Args:
        argv: the command line's arguments, by default the process's.
        cases: what to check, by default all_cases().
        out: where the table goes, by default the standard output.
        clock: seconds.
    """
    began = clock()
    command = parser()
    chosen = command.parse_args(argv)
    out = out or sys.stdout
    if chosen.target is not None or chosen.list:
        _without_devices()
    cases = all_cases() if cases is None else cases
    cases = _named_ops(command, cases, chosen.op)
    impls = _named(command, "--impl", chosen.impl, sorted({i.name for case in cases for i in case.table}))
    if chosen.list:
        _list(cases, out)
        return 0
    if chosen.budget is not None and not chosen.budget > 0:
        command.error(f"--budget must be a positive number of seconds, and is {chosen.budget:g}.")
    if chosen.json is not None and not chosen.json.absolute().parent.is_dir():
        command.error(f"--json: the folder {chosen.json.absolute().parent} does not exist.")
    if os.environ.get("TRITON_INTERPRET") == "1":
        command.error("TRITON_INTERPRET=1 replaces Triton's compiler by its interpreter: unset it.")
    if chosen.target is not None:
        return _compile(command, chosen, cases, impls, out, clock, began)
    return _measure(command, chosen, cases, impls, out, clock, began)


def _measure(
    command: argparse.ArgumentParser,
    chosen: argparse.Namespace,
    cases: Sequence[Case],
    impls: Sequence[str] | None,
    out: TextIO,
    clock: timing.Clock,
    began: float,
) -> int:
    here = device.at_hand()
    todo = _with_impl(command, jobs.device_jobs(cases, here.platform, here.target), impls, f"on a {here.platform}")
    driver = f", driver {here.driver}" if here.driver else ""
    print(f"{here.kind} ({here.platform}{driver}), jax {jax.__version__}", file=out)
    copied = None
    if here.platform == "cpu":
        print(
            "Kernels need a GPU or a TPU: on this CPU only the references run, and their times say nothing of kernels. "
            "--target compiles kernels here, and pytest tests/pallas_kernels interprets them.", file=out,
        )  # fmt: skip
    else:
        copied = timing.copy_bandwidth(clock=clock)
        sheet = f", {here.target.bandwidth / 1e9:.0f} GB/s by its data sheet" if here.target else ""
        print(f"A large copy moves {copied / 1e9:.0f} GB/s{sheet}.", file=out)
        if here.target is None:
            print(f"Its data sheet is not known, so there is no roofline: known are {_descriptions()}.", file=out)
    bench = measure.Bench(here, copied, clock)
    report = Report(chosen.json, here, copied)
    budget = 240.0 if chosen.budget is None else chosen.budget
    return _loop(todo, bench.row, table.DEVICE, report, out, budget, clock, began)


def _compile(
    command: argparse.ArgumentParser,
    chosen: argparse.Namespace,
    cases: Sequence[Case],
    impls: Sequence[str] | None,
    out: TextIO,
    clock: timing.Clock,
    began: float,
) -> int:
    every = list(targets.TARGETS)
    names = every if chosen.target == "all" else _named(command, "--target", chosen.target, every) or []
    missing = sorted({targets.TARGETS[name].package for name in names if not targets.TARGETS[name].installed})
    if missing:
        command.error(f"--target {chosen.target} needs {' and '.join(missing)}: {targets.INSTALL}.")
    todo = jobs.target_jobs(cases, names, with_reference=REFERENCE in (impls or ()))
    todo = _with_impl(command, todo, impls, f"for {', '.join(names)}")
    report = Report(chosen.json, None, None)
    return _loop(todo, deviceless.row, table.TARGET, report, out, chosen.budget, clock, began)


def _loop(
    todo: Sequence[jobs.Job],
    make: Callable[[jobs.Job], dict[str, Any]],
    columns: Sequence[table.Column],
    report: Report,
    out: TextIO,
    budget: float | None,
    clock: timing.Clock,
    began: float,
) -> int:
    """Makes the rows of the jobs, within `budget` seconds of `began`."""
    printed = table.Table(columns, todo, out)
    printed.headings()
    left = list(todo)
    first = clock()
    why = None
    try:
        while left:
            done = len(todo) - len(left)
            # A row takes about as long as those before it.
            expected = (clock() - first) / done if done else 0.0
            if budget is not None and clock() - began + expected > budget:
                why = f"the budget of {budget:g} s"
                break
            row = make(left[0])
            report.add(row)
            printed.row(row)
            left.pop(0)
    except KeyboardInterrupt:
        why = "Ctrl-C"
    report.close(left)
    if left:
        print(f"\n{why} left {len(left)} of {len(todo)} rows out:", file=out)
        for job in left[:NAMED_LEFT]:
            print(f"  {job}", file=out)
        if len(left) > NAMED_LEFT:
            print(f"  and {len(left) - NAMED_LEFT} more, which --json names", file=out)
    judged = [row for row in report.rows if row["implementation"] not in jobs.OTHERS]
    failed = sum(row["status"] in ("wrong", "error") for row in judged)
    refused = sum(row["status"] == "refused" for row in judged)
    also = f", {refused} refused by their implementations" if refused else ""
    print(f"\n{len(report.rows)} rows, {failed} failed{also}, {clock() - began:.0f} s", file=out, flush=True)
    if why == "Ctrl-C":
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failed else 0


def _without_devices() -> None:
    targets.prepare()
    if not jax.config.jax_platforms:  # type: ignore[attr-defined]
        # JAX read its environment when it was imported; without this it would look for the devices of the plugins.
        jax.config.update("jax_platforms", "cpu")


def _named(command: argparse.ArgumentParser, option: str, given: str | None, known: Sequence[str]) -> list[str] | None:
    """The names that an option gives, in order; None where it is not given."""
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        command.error(f"{option}: {', '.join(map(repr, unknown))} unknown; the known ones are {', '.join(known)}.")
    return list(dict.fromkeys(names))


def _named_ops(command: argparse.ArgumentParser, cases: Sequence[Case], given: str | None) -> list[Case]:
    names = _named(command, "--op", given, list(dict.fromkeys(case.op for case in cases)))
    return [case for case in cases if names is None or case.op in names]


def _with_impl(
    command: argparse.ArgumentParser, todo: list[jobs.Job], impls: Sequence[str] | None, where: str
) -> list[jobs.Job]:
    kept = [job for job in todo if impls is None or job.implementation in impls]
    if not kept:
        able = ", ".join(sorted({job.implementation for job in todo})) or "none"
        command.error(f"no implementation that was asked for has a row {where}; those that have: {able}.")
    return kept


def _descriptions() -> str:
    return ", ".join(target.description for target in targets.TARGETS.values())


def _list(cases: Sequence[Case], out: TextIO) -> None:
    for case in jobs.in_order(cases):
        grad = " +grad" if case.backward else ""
        names = ", ".join(implementation.name for implementation in case.table)
        work = f"{table.count(case.bytes)}, {table.count(case.flops, 'FLOP')}"
        print(f"{case.op}{grad}: {case.label} {case.dtype} ({work}): {names}", file=out)
