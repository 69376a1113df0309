"""The monitor on the metrics of real runs (benchmarks/alarms.py): each failure is named, a healthy run is left in peace."""

import json
from pathlib import Path

import pytest

from grpo_jax.training.monitor import ALARMS, Monitor, MonitorConfig

RUNS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "alarms.json").read_text(encoding="utf-8"))


def raised(records: list[dict]) -> dict[str, int]:
    """The alarms of a run and the step that each was raised at first."""
    found: dict[str, int] = {}
    for end in range(1, len(records) + 1):
        for alarm in Monitor(MonitorConfig()).check(records[:end]):
            found.setdefault(alarm.name, alarm.step)
    return found


@pytest.mark.parametrize("name", ALARMS)
def test_each_alarm_is_raised_by_the_run_that_was_made_to_fail_in_its_way(name: str) -> None:
    assert name in raised(RUNS[name])


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("healthy")])
def test_no_alarm_is_raised_by_a_healthy_run(name: str) -> None:
    assert len(RUNS[name]) >= 25 and raised(RUNS[name]) == {}
