"""The metrics of a GRPO step: what its rollouts were like, and what its updates did. docs/runs.md has every name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from grpo_jax.objectives import group_advantages
from grpo_jax.rewards import joined_results, ngram_repetition
from grpo_jax.training.config import RunConfig
from grpo_jax.training.rollouts import JudgedRollout
from grpo_jax.training.rows import Rows

REPETITION_NGRAM = 4
"""Tokens of the n-grams whose repetition is measured in every rollout."""


def rollout_metrics(config: RunConfig, sampled: JudgedRollout) -> dict[str, Any]:
    """Rewards, lengths and group statistics over every row that was sampled, trained on or not."""
    rows, results = sampled.rows, sampled.results
    named = joined_results(results).metrics()
    metrics: dict[str, Any] = {"reward": named.pop("total/mean"), "reward_std": named.pop("total/std")}
    for key, value in named.items():
        component, _, statistic = key.rpartition("/")
        metrics[component if statistic == "mean" else f"{component}_{statistic}"] = value
    stats = group_advantages(
        rows.reward,
        config.grpo.group_size,
        config.grpo.advantage,
        lengths_B=rows.completion_lengths,
        components=rows.components,
        weights=results[0].weights,
    ).stats
    return {
        **metrics,
        **{name: float(value) for name, value in stats._asdict().items()},
        **_stage_accuracy(sampled, config.grpo.group_size),
        **_length_metrics(rows),
        "repetition": float(
            np.mean([ngram_repetition(row.ids, REPETITION_NGRAM) for row in sampled.inputs if row is not None])
        ),
        "completion_tokens": int(rows.completion_lengths.sum()),
    }


def _stage_accuracy(sampled: JudgedRollout, group_size: int) -> dict[str, float]:
    accuracy = sampled.rows.components["accuracy"]
    stages = np.repeat([problem.stage if problem is not None else "" for problem in sampled.problems], group_size)
    present = ~np.isnan(accuracy)
    return {
        f"accuracy/{stage}": float(accuracy[(stages == stage) & present].mean())
        for stage in dict.fromkeys(stages.tolist())
        if (present & (stages == stage)).any()
    }


def _length_metrics(rows: Rows) -> dict[str, float | None]:
    lengths, accuracy = rows.completion_lengths, rows.components["accuracy"]

    def mean(chosen: Bool[np.ndarray, " B"]) -> float | None:
        return float(np.mean(lengths[chosen])) if chosen.any() else None

    return {
        "completion_length_mean": float(lengths.mean()),
        "completion_length_min": float(lengths.min()),
        "completion_length_max": float(lengths.max()),
        "completion_length_terminated": mean(~rows.truncated),
        "completion_length_right": mean(accuracy == 1),
        "completion_length_wrong": mean(accuracy == 0),
        "truncated_fraction": float(rows.truncated.mean()),
    }


def over_updates(updates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The metrics of a step's updates as one: means over the updates that measured them, except that names in `_min` and
    `_max` are the least and the greatest, counts of tokens are sums, and the learning rate is the last one's."""
    # An update without a token to train on changed nothing; its loss and gradient of 0 are no measurements.
    live = [update for update in updates if float(update["tokens"]) > 0] or updates[-1:]
    return {name: _combined(name, [float(update[name]) for update in live]) for name in updates[0]}


def _combined(name: str, values: list[float]) -> float:
    measured = [value for value in values if not np.isnan(value)]
    if not measured:
        return float("nan")
    if name == "learning_rate":
        return values[-1]
    if name.endswith("_min"):
        return min(measured)
    if name.endswith("_max"):
        return max(measured)
    if name in ("tokens", "selected_tokens", "ratio_clamped", "kl_clamped"):
        return sum(measured)
    return float(np.mean(measured))
