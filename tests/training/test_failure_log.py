"""The log of failed rewards: each with its input, a bounded number a step, and gone with the steps that are done over."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tiny_runs

from grpo_jax.rewards import CompositeReward, PoolConfig, RewardConfig, RewardInput
from grpo_jax.training.failure_log import (
    MAX_A_STEP,
    append_failures,
    failure_records,
    read_failures,
    remove_failures_after,
)
from grpo_jax.training.loop import train


def fails_on_odd(row) -> float:
    if sum(row.ids) % 2:
        raise ZeroDivisionError("odd")
    return 1.0


def result(*completions: str):
    rows = [RewardInput(prompt="1+1", completion=text, reference="2", ids=[len(text)], end="eos") for text in completions]
    config = RewardConfig(extras={"test_failure_log:fails_on_odd": 1.0}, pool=PoolConfig(workers=0))
    with CompositeReward(config) as reward:
        return reward.score(rows), rows


def test_a_failure_is_recorded_with_its_own_input() -> None:
    (first, rows), (second, more) = result("aa", "b"), result("ccc", "dd", "e\ud800")
    records = failure_records(7, [first, second], [*rows, *more])
    assert [(each["step"], each["completion"]) for each in records] == [(7, "b"), (7, "ccc")]
    assert records[0]["failure"] == "raised" and "ZeroDivisionError: odd" in records[0]["report"]
    assert records[0]["component"] == "test_failure_log:fails_on_odd" and records[0]["prompt"] == "1+1"


def test_a_step_writes_a_bounded_number(tmp_path: Path) -> None:
    one, rows = result(*["a"] * (MAX_A_STEP + 9))
    assert len(failure_records(1, [one, one], [*rows, *rows])) == MAX_A_STEP
    path = tmp_path / "failures.jsonl"
    append_failures(path, [])
    assert not path.exists() and read_failures(path) == []


def test_text_of_any_kind_survives_and_later_steps_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    for step in (1, 2, 3):
        one, rows = result("x\ud800\u2028")
        append_failures(path, failure_records(step, [one], rows))
    with path.open("a") as file:
        file.write('{"step": 4, "cut sh')
    assert [each["step"] for each in read_failures(path)] == [1, 2, 3]
    remove_failures_after(path, 2)
    assert [each["step"] for each in read_failures(path)] == [1, 2]
    assert read_failures(path)[0]["completion"] == "x\ud800\u2028"
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_run_goes_on_where_a_reward_fails_and_its_group_is_not_poisoned(tmp_path: Path) -> None:
    config = tiny_runs.load(tmp_path, "rewards.extras={'test_failure_log:fails_on_odd': 0.5}", "grpo.steps=2")
    train(config)
    metrics = [json.loads(line) for line in (Path(config.run_dir) / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in metrics if record["phase"] == "grpo"]
    failed = [record["test_failure_log:fails_on_odd_failed"] for record in steps]
    assert all(0 < count < 16 for count in failed), "nothing failed, or everything: the test has no object"
    assert all(np.isfinite(record["loss"]) for record in steps)
    records = read_failures(Path(config.run_dir) / "reward_failures.jsonl")
    assert len(records) == sum(failed) and {record["step"] for record in records} == {1, 2}
