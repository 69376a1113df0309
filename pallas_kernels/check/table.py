"""The table, printed row by row as plain text: it needs no package, and a run that dies leaves its rows on the screen."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from pallas_kernels.check.jobs import Job

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its heading, what it shows of a row, how wide it is at least, and whether numbers stand in it."""

    heading: str
    cell: Callable[[Row], str]
    width: int = 0
    number: bool = False


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row[key])


def _op(row: Row) -> str:
    return f"{row['op']} +grad" if row["backward"] else row["op"]


def _number(key: str, shown: Callable[[Any], str]) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else shown(row[key])


def _share(key: str) -> Callable[[Row], str]:
    return _number(key, lambda share: f"{100 * share:.1f}%")


def _over_kernels(key: str, over: Callable[[Any], int]) -> Callable[[Row], str]:
    return lambda row: str(over(kernel[key] for kernel in row["kernels"])) if row.get("kernels") else "-"


def seconds(value: float) -> str:
    """With a unit that leaves one to three digits before the point."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def count(value: float, unit: str = "B") -> str:
    """Bytes and the like, with three digits: "75.5 MB"."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _note(row: Row) -> str:
    return "" if row["status"] == "ok" else f"{row['status'].upper()} {row['message'] or ''}".rstrip()


NAMES = (
    Column("op", _op),
    Column("shape", _text("shape")),
    Column("dtype", _text("dtype")),
    Column("implementation", _text("implementation")),
)
DEVICE = (
    *NAMES,
    Column("error", _number("error", lambda error: f"{error:.1e}"), 7, True),
    Column("allowed", _number("allowed", lambda error: f"{error:.0e}"), 7, True),
    Column("median", _number("seconds", seconds), 8, True),
    Column("least", _number("least_seconds", seconds), 8, True),
    Column("floor", _number("floor_seconds", seconds), 8, True),
    Column("bound", _number("bound", str), 7),
    Column("roofline", _share("roofline_share"), 8, True),
    Column("of copy", _share("copy_share"), 7, True),
    Column("", _note),
)
TARGET = (
    *NAMES,
    Column("target", _text("target")),
    Column("compiled", lambda row: "yes" if row["status"] == "ok" else "no", 8),
    Column("calls", _number("calls", str), 5, True),
    Column("registers", _over_kernels("registers", max), 9, True),
    Column("spilled", _over_kernels("spilled_bytes", sum), 7, True),
    Column("shared", _over_kernels("shared_bytes", max), 8, True),
    Column("temporaries", _number("temporary_bytes", count), 11, True),
    Column("", _note),
)


class Table:
    """Prints rows under headings, in columns as wide as the jobs to come need."""

    def __init__(self, columns: Sequence[Column], jobs: Sequence[Job], out: TextIO):
        self._columns = columns
        self._out = out
        identities = [job.identity() for job in jobs]
        known = {*map(id, NAMES)} | {id(column) for column in columns if column.heading == "target"}
        self._widths = [
            max(len(c.heading), c.width, *(len(c.cell(i)) for i in identities if id(c) in known), 0) for c in columns
        ]

    def headings(self) -> None:
        self._line([column.heading for column in self._columns])

    def row(self, row: Row) -> None:
        self._line([column.cell(row) for column in self._columns])

    def _line(self, cells: Sequence[str]) -> None:
        padded = [
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(cells, self._widths, self._columns)
        ]
        print("  ".join(padded).rstrip(), file=self._out, flush=True)
