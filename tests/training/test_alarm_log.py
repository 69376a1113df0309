"""Every alarm is one line of alarms.jsonl with what was done about it; a resumed run repeats none and loses none."""

from __future__ import annotations

from pathlib import Path

from grpo_jax.training.alarm_log import alarm_metrics, append_alarm, read_alarms, remove_alarms_after
from grpo_jax.training.monitor import Alarm


def alarm(step: int, name: str = "kl_runaway") -> Alarm:
    return Alarm(name=name, step=step, message=f"KL is 0·5 at {step}", advice="raise grpo.kl_coef")


def test_alarms_are_read_back_as_they_were_raised(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"
    assert read_alarms(path) == []
    append_alarm(path, alarm(3), "raise_kl")
    append_alarm(path, alarm(5, "dead_groups"), None)
    assert read_alarms(path) == [
        {"name": "kl_runaway", "step": 3, "message": "KL is 0·5 at 3", "advice": "raise grpo.kl_coef", "action": "raise_kl"},
        {"name": "dead_groups", "step": 5, "message": "KL is 0·5 at 5", "advice": "raise grpo.kl_coef", "action": None},
    ]
    assert "·" in path.read_text(encoding="utf-8")


def test_alarms_of_steps_that_are_done_again_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"
    for step in (2, 4, 4, 6):
        append_alarm(path, alarm(step), None)
    remove_alarms_after(path, 4)
    assert [entry["step"] for entry in read_alarms(path)] == [2, 4, 4]
    append_alarm(path, alarm(5), None)
    assert [entry["step"] for entry in read_alarms(path)] == [2, 4, 4, 5]
    remove_alarms_after(path, 0)
    assert read_alarms(path) == []


def test_a_line_that_a_kill_cut_short_is_left_out_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "alarms.jsonl"
    append_alarm(path, alarm(1), None)
    with path.open("a") as file:
        file.write('{"name": "dead_gr')
    assert [entry["step"] for entry in read_alarms(path)] == [1]
    remove_alarms_after(path, 9)
    append_alarm(path, alarm(2), None)
    assert [entry["step"] for entry in read_alarms(path)] == [1, 2]


def test_removing_makes_no_file(tmp_path: Path) -> None:
    remove_alarms_after(tmp_path / "alarms.jsonl", 3)
    assert not (tmp_path / "alarms.jsonl").exists()


def test_alarms_of_a_step_are_metrics() -> None:
    assert alarm_metrics([alarm(3), alarm(3, "dead_groups")]) == {"alarm/kl_runaway": 1, "alarm/dead_groups": 1}
    assert alarm_metrics([]) == {}
