"""A person sees step, reward, accuracy, pace and time left; a file gets plain lines and no control codes."""

import io
import re

import pytest

from grpo_jax.evaluation.scores import StageScore
from grpo_jax.training.progress import (
    ALARM_STEPS,
    PLAIN_INTERVAL,
    Progress,
    TimeLeft,
    duration,
    results_table,
    shown_metrics,
)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


METRICS = {"reward": 0.613, "accuracy": 0.5521, "tokens_per_second": 12345.6, "loss": 1e-9, "kl": 0.1}


def score(accuracy: float, length: float = 20.0) -> StageScore:
    return StageScore(sampled_accuracy=accuracy, greedy_accuracy=accuracy / 2, mean_length=length, termination_rate=0.995)


def run(file: io.StringIO, steps: int, seconds: float = 1.0, done: int = 0) -> str:
    clock = Clock()
    with Progress(file, clock=clock) as progress:
        progress.begin("grpo", steps, done)
        for step in range(done + 1, steps + 1):
            clock.now += seconds
            progress.step(step, METRICS)
    return file.getvalue()


def test_plain_line_has_step_reward_accuracy_pace_and_time_left() -> None:
    lines = run(io.StringIO(), steps=40, seconds=10.0).splitlines()
    assert lines[0] == "grpo 0/40  compiling the first step"
    assert lines[11] == "grpo 11/40  reward 0.613  accuracy 55.2%  tokens/s 12,346  4:50 left"
    assert lines[-1] == "grpo 40/40  reward 0.613  accuracy 55.2%  tokens/s 12,346"


def test_plain_output_has_no_control_codes() -> None:
    assert re.search(r"[\x00-\x09\x0b-\x1f]", run(io.StringIO(), steps=5)) is None


def test_quick_steps_do_not_flood_a_log() -> None:
    lines = run(io.StringIO(), steps=1000, seconds=PLAIN_INTERVAL / 100).splitlines()
    assert len(lines) <= 13
    assert lines[1].startswith("grpo 1/1000") and lines[-1].startswith("grpo 1000/1000")


def test_terminal_gets_a_bar_with_the_same_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run(Terminal(), steps=3))
    for word in ("grpo", "3/3", "reward 0.613", "accuracy 55.2%", "tokens/s 12,346"):
        assert word in text


def test_resumed_phase_counts_from_where_it_stands() -> None:
    lines = run(io.StringIO(), steps=8, seconds=10.0, done=5).splitlines()
    assert lines[0].startswith("grpo 5/8")
    assert lines[1].startswith("grpo 6/8")
    assert "10 left" in lines[2]


def test_time_left_leaves_the_first_step_out_because_it_compiles() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    clock.now += 500.0
    left.stepped()
    assert left.seconds(10) is None
    for _ in range(2):
        clock.now += 2.0
        left.stepped()
    assert left.seconds(10) == pytest.approx(20.0)


def test_time_left_follows_the_last_steps() -> None:
    clock = Clock()
    left = TimeLeft(clock, window=3)
    for seconds in (9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0):
        clock.now += seconds
        left.stepped()
    assert left.seconds(5) == pytest.approx(5.0)


def test_metric_that_is_missing_or_null_is_not_shown() -> None:
    assert shown_metrics("sft", {"loss": 0.25, "tokens_per_second": None}) == ["loss 0.250"]
    assert shown_metrics("grpo", {"loss": 0.25, "reward": 1.0}) == ["reward 1.000"]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (309, "5:09"), (3909, "1:05:09")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def table(before: dict[str, StageScore] | None, after: dict[str, StageScore] | None) -> str:
    file = io.StringIO()
    with Progress(file) as progress:
        progress.results(before, after)
    return file.getvalue()


def test_closing_table_has_every_stage_before_and_after_and_the_mean() -> None:
    text = table(
        {"addition": score(0.4), "subtraction": score(0.6)}, {"addition": score(0.9, 22.5), "subtraction": score(1.0)}
    )
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    assert list(rows) == ["addition", "subtraction", "mean"]
    for cell in ("40.0% → 90.0%", "20.0% → 45.0%", "20.0 → 22.5", "99.5% → 99.5%"):
        assert cell in rows["addition"]
    assert "50.0% → 95.0%" in rows["mean"]


def test_closing_table_leaves_a_test_that_was_not_made_open() -> None:
    assert "40.0% → –" in table({"addition": score(0.4)}, None)
    assert "– → 40.0%" in table(None, {"addition": score(0.4)})
    assert table(None, None) == ""


def test_closing_table_of_one_stage_has_no_mean() -> None:
    assert results_table({"all": score(0.4)}, {"all": score(0.5)}).row_count == 1


def test_test_is_told_in_one_line() -> None:
    file = io.StringIO()
    with Progress(file) as progress:
        progress.tested("held-out test", {"addition": score(0.4), "subtraction": score(0.6)})
    assert file.getvalue() == (
        "held-out test: 50.0% right sampled, 25.0% greedy, 99.5% ended by itself; weakest addition, 40.0%\n"
    )


def test_note_is_shown_as_it_is() -> None:
    file = io.StringIO()
    with Progress(file) as progress:
        progress.note("mesh [8, 8] :smile: " + "x" * 300)
    assert file.getvalue() == "mesh [8, 8] :smile: " + "x" * 300 + "\n"


def test_alarm_is_told_at_once_and_stays_on_the_line_for_some_steps() -> None:
    file, clock = io.StringIO(), Clock()
    with Progress(file, clock=clock) as progress:
        progress.begin("grpo", 40)
        for step in range(1, 20):
            clock.now += PLAIN_INTERVAL
            if step == 3:
                progress.alarm("dead_groups", "90 % had no signal [sic]. Sample harder.", "lower_temperature")
            if step == 5:
                progress.alarm("kl_runaway", "KL is 1.", None)
            progress.step(step, METRICS)
    lines = file.getvalue().splitlines()
    assert "alarm dead_groups: 90 % had no signal [sic]. Sample harder. Done now: lower_temperature." in lines
    assert "alarm kl_runaway: KL is 1." in lines
    shown = {int(line.split()[1].split("/")[0]): line for line in lines if line.startswith("grpo ")}
    assert [step for step, line in shown.items() if "! dead_groups" in line] == list(range(3, 3 + ALARM_STEPS))
    assert [step for step, line in shown.items() if "! kl_runaway" in line] == list(range(5, 5 + ALARM_STEPS))
    assert lines.index("alarm kl_runaway: KL is 1.") < lines.index(shown[5])


def test_alarm_is_shown_beside_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    file = Terminal()
    with Progress(file) as progress:
        progress.begin("grpo", 2)
        progress.alarm("dead_groups", "no signal.", "stop")
        progress.step(1, METRICS)
        progress.step(2, METRICS)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "alarm dead_groups: no signal. Done now: stop." in text and "! dead_groups" in text
