"""The rewards that failed in a run, with their inputs: reward_failures.jsonl, one JSON object for each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_jax.checkpoint.atomic import atomic_write
from grpo_jax.rewards import RewardFailure, RewardInput, RewardResult

MAX_A_STEP = 32
"""Failures written of one step; the metrics count them all."""


def failure_records(
    step: int, results: Sequence[RewardResult], inputs: Sequence[RewardInput | None]
) -> list[dict[str, Any]]:
    """The first failures of a GRPO step, each with what the reward was given.

    Args:
      step: the step.
      results: what the reward said of each rollout.
      inputs: the judged text of each row of all of them, in their order.
    """
    records: list[dict[str, Any]] = []
    first = 0
    for result in results:
        for failure in result.failures[: MAX_A_STEP - len(records)]:
            records.append(_record(step, failure, inputs[first + failure.row]))
        first += len(result.total)
    return records


def append_failures(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Appends failures to the file; makes none where there are none."""
    if records:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(map(_line, records)))


def read_failures(path: Path) -> list[dict[str, Any]]:
    """The failures so far; none where there is no file. A line that was cut short is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def remove_failures_after(path: Path, step: int) -> None:
    """Deletes the failures of later GRPO steps, which a resumed run does over again."""
    if path.exists():
        atomic_write(path, "".join(_line(record) for record in read_failures(path) if record["step"] <= step))


def _record(step: int, failure: RewardFailure, row: RewardInput | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "step": step,
        "component": failure.component,
        "failure": failure.failure,
        "report": failure.report,
    }
    if row is not None:
        record |= {"prompt": row.prompt, "completion": row.completion, "reference": row.reference, "end": row.end}
        record |= {"metadata": _plain(row.metadata)}
    return record


def _plain(metadata: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(dict(metadata), default=repr))
    except (RecursionError, ValueError, TypeError) as error:
        return f"cannot be written: {type(error).__name__}"


def _line(record: dict[str, Any]) -> str:
    # Escaped, for a completion can hold lone surrogates, which UTF-8 has no bytes for.
    return json.dumps(record, default=repr) + "\n"
