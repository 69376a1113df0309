"""The alarms of a run in its directory: alarms.jsonl, one JSON object for each, and their names among the metrics."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from grpo_jax.checkpoint.atomic import atomic_write
from grpo_jax.training.monitor import Alarm


def append_alarm(path: Path, alarm: Alarm, action: str | None) -> None:
    """Appends an alarm and what was done about it."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_line({**dataclasses.asdict(alarm), "action": action}))


def read_alarms(path: Path) -> list[dict]:
    """The alarms so far; none where there is no file. A line that was cut short is left out."""
    if not path.exists():
        return []
    # What follows the last line end is a line that was cut short, or nothing.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def remove_alarms_after(path: Path, step: int) -> None:
    """Deletes the alarms of later GRPO steps, which a resumed run does over again."""
    if path.exists():
        atomic_write(path, "".join(_line(alarm) for alarm in read_alarms(path) if alarm["step"] <= step))


def alarm_metrics(alarms: Sequence[Alarm]) -> dict[str, int]:
    """The metric of each alarm that a step raised: `alarm/NAME`, 1."""
    return {f"alarm/{alarm.name}": 1 for alarm in alarms}


def _line(record: dict) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
