"""The one place that writes metrics: a line of metrics.jsonl for every step, and TensorBoard events beside it.

A record is one JSON object: `phase`, `step` (within the phase), `total_step` (over all phases, as checkpoints count),
then the metrics. JSON has no NaN and no infinity; both are written as null. Every line is handed to the operating
system at once, so a killed process loses at most the line that it was writing; a resumed run cuts off what it will do
again.
"""

import io
import json
import math
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from grpo_jax.checkpoint.atomic import atomic_write
from grpo_jax.parallel import from_first, is_first, together

Phase = Literal["sft", "sft_evaluation", "grpo", "evaluation"]
Record = dict[str, Any]


class Scalar(Protocol):
    """A NumPy or jax array of one element."""

    def item(self) -> float | int | bool: ...


class MetricsLog:
    """The open log of a run. Use as a context manager, or call `close`."""

    def __init__(self, path: Path, *, tensorboard: Path | None = None, keep_through: int | None = None) -> None:
        """Opens the log for appending.

        Args:
            path: metrics.jsonl; made if missing.
            tensorboard: the folder for event files; None writes none.
            keep_through: the total step to go on from: records of later steps, and a half-written last line, are cut
                off first. None begins a new log.

        Raises:
            ValueError: a line of the log, not the last, is no record.
        """
        self._records = [] if keep_through is None else read_records(path)
        if keep_through is not None:
            self._records = [record for record in self._records if record["total_step"] <= keep_through]
        atomic_write(path, "".join(map(_line, self._records)))
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._events = None if tensorboard is None else _event_writer(tensorboard, keep_through)

    def write(self, phase: Phase, step: int, total_step: int, metrics: Mapping[str, float | Scalar | None]) -> Record:
        """Appends a record and returns it.

        Args:
            phase: what the step belongs to.
            step: the step within the phase; for a test, GRPO steps done before it.
            total_step: the step within the run, as its checkpoints count.
            metrics: numbers or arrays of one element; None is a metric that does not apply.
        """
        values = self.plain(metrics)
        record: Record = {"phase": phase, "step": step, "total_step": total_step, **values}
        self._file.write(_line(record))
        self._file.flush()
        self._records.append(record)
        if self._events is not None:
            for name, value in values.items():
                if value is not None:
                    self._events.add_scalar(f"{phase}/{name}", value, total_step)
        return record

    @staticmethod
    def plain(metrics: Mapping[str, float | Scalar | None]) -> dict[str, float | int | None]:
        """The metrics as a record holds them: plain numbers, None where there is none."""
        return {name: _plain(name, value) for name, value in metrics.items()}

    def records(self, phase: Phase | None = None) -> list[Record]:
        """The records so far, of all phases or of one; those from before a resumption included."""
        return [record for record in self._records if phase is None or record["phase"] == phase]

    def close(self) -> None:
        """Closes the log's files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self.close()


class SilentLog(MetricsLog):
    """The log of a process that writes none: it holds its records in memory."""

    def __init__(self, records: Sequence[Record]) -> None:
        """Begins with the records of the log that another process writes."""
        self._records = list(records)
        self._file = io.StringIO()
        self._events = None


def open_log(path: Path, *, tensorboard: Path | None = None, keep_through: int | None = None) -> MetricsLog:
    """The log of this process: `MetricsLog` for the first, which alone writes, with the same records for the others.

    Every process reads in it what was tested before an interruption, and all must find the same. The arguments and
    errors are those of `MetricsLog`.
    """
    log: MetricsLog = SilentLog([])
    with together():
        if is_first():
            log = MetricsLog(path, tensorboard=tensorboard, keep_through=keep_through)
    records = from_first(log.records())
    return log if is_first() else SilentLog(records)


def read_records(path: Path) -> list[Record]:
    """The records of a log, in the order they were written; none where there is no file.

    Where one step was logged twice, which a run without checkpoints does when it begins again, the last one counts.

    Raises:
        ValueError: a line is no record. The last line may be cut short; it is left out then.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records: dict[tuple[str, int, int], Record] = {}
    for number, line in enumerate(lines, start=1):
        # What follows the last line end is either nothing or a line that was cut short.
        if number == len(lines):
            break
        try:
            record = json.loads(line)
            key = (record["phase"], record["step"], record["total_step"])
        except (ValueError, KeyError, TypeError) as error:
            if number >= len(lines) - 1:
                break
            raise ValueError(
                f"{path}, line {number}: a record is a JSON object with phase, step and total_step; found "
                f"{line[:60]!r}. Remove the line"
            ) from error
        records.pop(key, None)
        records[key] = record
    return list(records.values())


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(name: str, value: Any) -> float | int | None:
    if value is None or isinstance(value, int):
        return value
    number = value if isinstance(value, float) else _item(name, value)
    return number if math.isfinite(number) else None


def _item(name: str, value: Any) -> float | int:
    try:
        return value.item()
    except (AttributeError, ValueError, TypeError) as error:
        raise TypeError(f"metric {name!r} must be a number or an array of one element; got {value!r:.80}") from error


def _event_writer(folder: Path, keep_through: int | None) -> Any:
    # Imported here because a run without event files has no use for it.
    from tensorboardX import SummaryWriter

    purge_step = None if keep_through is None else keep_through + 1
    # Files are named by the second; the suffix keeps a run resumed within one from writing over what it resumes.
    return SummaryWriter(logdir=str(folder), purge_step=purge_step, filename_suffix=f".{purge_step or 0}")
