"""A step's metrics cover every sampled row, and several updates are one by sums, means and extremes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
from tiny_rows import GROUP, random_rows

from grpo_jax.data import Problem
from grpo_jax.rewards import RewardInput, RewardResult
from grpo_jax.training.config import RunConfig
from grpo_jax.training.rollouts import JudgedRollout, joined
from grpo_jax.training.step_metrics import over_updates, rollout_metrics

WEIGHTS = {"accuracy": 1.0, "format": 0.25, "termination": 0.0}


def judged(seed: int, stages: list[str], accuracy: list[float] | None = None) -> JudgedRollout:
    rows = random_rows(seed, groups=len(stages))
    if accuracy is not None:
        rows = rows._replace(components=rows.components | {"accuracy": np.array(accuracy, np.float32)})
    total = sum(weight * rows.components[name] for name, weight in WEIGHTS.items()).astype(np.float32)
    rows = rows._replace(reward=total)
    result = RewardResult(
        total=total,
        components=rows.components,
        weights=WEIGHTS,
        missing={name: int(np.isnan(values).sum()) for name, values in rows.components.items()},
        failed={"accuracy": 1, "format": 0, "termination": 2},
        timed_out={},
        gated={},
    )
    inputs = [
        RewardInput(prompt="", completion="", reference="", ids=tokens[start:stop].tolist(), end="eos")
        for tokens, start, stop in zip(rows.tokens, rows.prompt_lengths, rows.lengths, strict=True)
    ]
    problems = [Problem(prompt=stage, answer="", stage=stage, key=f"{seed}{index}") for index, stage in enumerate(stages)]
    return JudgedRollout(rows=rows, problems=problems, inputs=inputs, results=[result])


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return tiny_runs.load(tmp_path)


def test_several_rollouts_count_as_one(config: RunConfig) -> None:
    parts = [judged(0, ["easy", "hard"]), judged(1, ["hard"])]
    whole = joined(parts)
    metrics = rollout_metrics(config, whole)
    rewards = np.concatenate([part.rows.reward for part in parts]).astype(np.float64)
    assert rewards.size == 3 * GROUP
    assert metrics["reward"] == pytest.approx(rewards.mean()) and metrics["reward_std"] == pytest.approx(rewards.std())
    accuracy = np.concatenate([part.rows.components["accuracy"] for part in parts]).astype(np.float64)
    assert metrics["accuracy"] == pytest.approx(accuracy.mean())
    assert metrics["accuracy_failed"] == 2 and metrics["termination_failed"] == 4 and metrics["format_missing"] == 0
    assert metrics["accuracy/easy"] == pytest.approx(accuracy[:GROUP].mean())
    assert metrics["accuracy/hard"] == pytest.approx(accuracy[GROUP:].mean())
    lengths = np.concatenate([part.rows.completion_lengths for part in parts])
    assert metrics["completion_tokens"] == lengths.sum() and metrics["completion_length_mean"] == lengths.mean()
    groups = rewards.reshape(-1, GROUP)
    assert metrics["group_std_mean"] == pytest.approx(groups.std(axis=1).mean(), rel=1e-5)


def test_rows_of_unknown_accuracy_are_in_no_accuracy(config: RunConfig) -> None:
    metrics = rollout_metrics(config, judged(0, ["easy", "hard"], [1, 0, math.nan, 1] + [math.nan] * 4))
    assert metrics["accuracy"] == pytest.approx(2 / 3) and metrics["accuracy_missing"] == 5
    assert metrics["accuracy/easy"] == pytest.approx(2 / 3) and "accuracy/hard" not in metrics


def test_lengths_are_told_apart_by_their_end_and_their_answer(config: RunConfig) -> None:
    sampled = judged(4, ["easy"], [1, 1, 0, 0])
    lengths = sampled.rows.completion_lengths
    metrics = rollout_metrics(config, sampled)
    assert metrics["completion_length_right"] == lengths[:2].mean()
    assert metrics["completion_length_wrong"] == lengths[2:].mean()
    cut = sampled.rows.truncated
    assert 0 < cut.sum() < 4 and lengths[cut].mean() != lengths[~cut].mean(), "the rows must differ for the test to tell"
    assert metrics["truncated_fraction"] == cut.mean()
    assert metrics["completion_length_terminated"] == lengths[~cut].mean()
    all_wrong = rollout_metrics(config, judged(0, ["easy"], [0, 0, 0, 0]))
    assert all_wrong["completion_length_right"] is None


def test_repetition_is_that_of_the_completions(config: RunConfig) -> None:
    sampled = judged(0, ["easy"])
    ids = [[7] * 8, [1, 2, 3, 4, 5], [1], [1, 2, 1, 2, 1, 2]]
    inputs = [RewardInput(prompt="", completion="", reference="", ids=row, end="eos") for row in ids]
    metrics = rollout_metrics(config, JudgedRollout(**{**vars(sampled), "inputs": inputs}))
    # Of the 4-grams: 1 distinct of 5; 2 of 2; none; 2 of 3.
    assert metrics["repetition"] == pytest.approx((4 / 5 + 0 + 0 + 1 / 3) / 4)


def test_updates_are_joined_by_the_kind_of_their_metric() -> None:
    updates = [
        {"loss": 1.0, "ratio_min": 0.9, "ratio_max": 1.1, "tokens": 10.0, "learning_rate": 0.3, "kl_clamped": 1.0},
        {"loss": 4.0, "ratio_min": 0.7, "ratio_max": 1.5, "tokens": 30.0, "learning_rate": 0.2, "kl_clamped": 2.0},
    ]
    assert over_updates(updates) == {
        "loss": 2.5, "ratio_min": 0.7, "ratio_max": 1.5, "tokens": 40.0, "learning_rate": 0.2, "kl_clamped": 3.0,
    }  # fmt: skip
    assert over_updates(updates[:1]) == updates[0]


def test_an_update_that_measured_nothing_is_left_out() -> None:
    nothing = {"entropy": math.nan, "ratio_min": math.nan, "mismatch_max": math.nan, "tokens": 0.0}
    something = {"entropy": 2.0, "ratio_min": 0.5, "mismatch_max": 0.1, "tokens": 8.0}
    assert over_updates([nothing, something]) == over_updates([something, nothing]) == something
    assert math.isnan(over_updates([nothing, nothing])["entropy"])


def test_an_update_without_a_token_is_no_measurement_of_loss_and_gradient() -> None:
    live = {"loss": 2.0, "grad_norm": 4.0, "tokens": 10.0, "learning_rate": 0.1}
    empty = {"loss": 0.0, "grad_norm": 0.0, "tokens": 0.0, "learning_rate": 0.1}
    assert over_updates([empty, live, empty]) == live
    assert over_updates([empty, empty]) == empty
