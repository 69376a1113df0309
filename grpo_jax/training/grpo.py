"""One step of GRPO: rollout → reward → score → update, each timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float

from grpo_jax.data import CurriculumState, Problem, pad_rows, sample_problems
from grpo_jax.evaluation import judge
from grpo_jax.generation import END_EOS, Rollout, rollout, row_keys
from grpo_jax.objectives import Advantages, group_advantages, row_weights
from grpo_jax.parallel import to_host
from grpo_jax.rewards import RewardInput, RewardResult
from grpo_jax.training.experiment import Experiment
from grpo_jax.training.phase_clock import PhaseClock
from grpo_jax.training.rows import live_first, place_rows
from grpo_jax.training.samples import Sample
from grpo_jax.training.sft import grpo_seed
from grpo_jax.training.state import TrainState
from grpo_jax.training.steps import GRPOBatch, grpo_step, score
from grpo_jax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOOutcome:
    """What a step gives besides the state.

    Attributes:
      metrics: by name, numbers and scalars on the device.
      rows: the judged rows, in the order of their prompts.
      problems: the problem of each row.
      rewards: the rewards of the rows.
      advantages: the advantages of the rows.
    """

    metrics: dict[str, Any]
    rows: Sequence[RewardInput]
    problems: Sequence[Problem]
    rewards: RewardResult
    advantages: Advantages


def grpo_iteration(
    experiment: Experiment,
    state: TrainState,
    reference: Params | None,
    curriculum: CurriculumState,
    step: int,
    clock: PhaseClock,
) -> tuple[TrainState, GRPOOutcome]:
    """Samples groups, judges them, and updates the policy.

    Args:
      experiment: the parts of the run.
      state: donated.
      reference: parameters of the reference policy; None with a KL coefficient of 0.
      curriculum: which stages the problems come from.
      step: the step of this phase, from 0; with the seed it decides every draw.
      clock: measures the phases.
    """
    config = experiment.config
    problems = sample_problems(
        experiment.task, config.data.curriculum, curriculum, grpo_seed(config.seed), step, config.grpo.prompts
    )

    with clock("rollout") as results:
        sampled = _rollout(experiment, state.params, problems, step)
        results.append(sampled)
    with clock("reward"):
        by_row = [problem for problem in problems for _ in range(config.grpo.group_size)]
        on_host = to_host(sampled)
        rewards, rows = judge(experiment.reward, experiment.template, by_row, on_host)
        advantages = group_advantages(rewards.total, config.grpo.group_size, config.grpo.advantage)
    with clock("score") as results:
        batch = _batch(experiment, on_host, advantages)
        if reference is not None:
            batch = dataclasses.replace(batch, ref_logprobs=score(state.config, reference, batch.tokens))
        if config.grpo.updates_per_rollout > 1:
            batch = dataclasses.replace(batch, old_logprobs=score(state.config, state.params, batch.tokens))
        results.append(batch)
    with clock("update") as results:
        for _ in range(config.grpo.updates_per_rollout):
            state, update_metrics = grpo_step(state, batch)
        results.append(update_metrics)

    stage_accuracy = _stage_accuracy(by_row, rewards.accuracy)
    metrics = {
        **_reward_metrics(rewards, advantages),
        **_length_metrics(on_host, rewards.accuracy),
        **{f"accuracy/{stage}": accuracy for stage, accuracy in stage_accuracy.items()},
        **update_metrics,
        "completion_tokens": int((on_host.lengths - on_host.prompt_lengths).sum()),
    }
    return state, GRPOOutcome(
        metrics=metrics,
        rows=rows,
        problems=by_row,
        rewards=rewards,
        advantages=advantages,
    )


def _rollout(experiment: Experiment, params: Params, problems: Sequence[Problem], step: int) -> Rollout:
    config, template = experiment.config, experiment.template
    prompts, prompt_lengths = pad_rows(
        [template.encode_prompt(problem) for problem in problems],
        config.data.max_prompt_tokens,
        experiment.policy.tokenizer.pad_id,
    )
    return rollout(
        experiment.policy.model,
        params,
        prompts,
        prompt_lengths,
        row_keys(config.seed, step, np.arange(config.grpo.rows)),
        max_completion=config.rollout.max_completion_tokens,
        sampler=config.rollout.sampler,
        stop_ids=experiment.policy.tokenizer.eos_ids,
        samples_per_prompt=config.grpo.group_size,
        mesh=experiment.policy.mesh,
    )


def _batch(experiment: Experiment, sampled: Rollout, advantages: Advantages) -> GRPOBatch:
    config = experiment.config
    weights = np.asarray(row_weights(config.grpo.objective, advantages.live_B))
    order = live_first(weights > 0, config.grpo.microbatches)

    def place(array: Any) -> Array:
        return place_rows(np.asarray(array)[order], experiment.policy.mesh)

    return GRPOBatch(
        tokens=place(sampled.tokens),
        prompt_lengths=place(sampled.prompt_lengths),
        lengths=place(sampled.lengths),
        advantages=place(advantages.advantages_B),
        row_weights=place(weights),
        sampler_logprobs=place(sampled.logprobs),
    )


def _stage_accuracy(problems: Sequence[Problem], accuracy: Float[np.ndarray, " B"]) -> dict[str, float]:
    stages = np.array([problem.stage for problem in problems])
    present = ~np.isnan(accuracy)
    return {
        str(stage): float(accuracy[(stages == stage) & present].mean())
        for stage in dict.fromkeys(stages)
        if (present & (stages == stage)).any()
    }


def _reward_metrics(rewards: RewardResult, advantages: Advantages) -> dict[str, Any]:
    named = rewards.metrics()
    metrics = {"reward": named.pop("total/mean"), "reward_std": named.pop("total/std")}
    for key, value in named.items():
        component, _, statistic = key.rpartition("/")
        metrics[component if statistic == "mean" else f"{component}_{statistic}"] = value
    return metrics | advantages.stats._asdict()


def _length_metrics(sampled: Rollout, accuracy: Float[np.ndarray, " B"]) -> dict[str, float | None]:
    lengths = sampled.lengths - sampled.prompt_lengths
    terminated = np.asarray(sampled.ends) == END_EOS

    def mean(rows: Bool[np.ndarray, " B"]) -> float | None:
        return float(np.mean(np.asarray(lengths)[rows])) if rows.any() else None

    return {
        "completion_length_mean": float(lengths.mean()),
        "completion_length_min": float(lengths.min()),
        "completion_length_max": float(lengths.max()),
        "completion_length_terminated": mean(terminated),
        "completion_length_right": mean(np.asarray(accuracy == 1)),
        "completion_length_wrong": mean(np.asarray(accuracy == 0)),
        "truncated_fraction": float(1 - terminated.mean()),
    }


def read_samples(experiment: Experiment, outcome: GRPOOutcome, groups: int) -> list[Sample]:
    """The first `groups` groups of a step, as people read them."""
    count = groups * experiment.config.grpo.group_size
    return [
        Sample(
            prompt=experiment.template.prompt_text(problem),
            completion=row.completion,
            reference=row.reference,
            stage=problem.stage,
            tokens=len(row.ids),
            end=row.end,
            components={name: _number(values[index]) for name, values in outcome.rewards.components.items()},
            reward=_number(outcome.rewards.total[index]),
            advantage=float(outcome.advantages.advantages_B[index]),
        )
        for index, (problem, row) in enumerate(zip(outcome.problems[:count], outcome.rows[:count], strict=True))
    ]


def _number(value: np.floating) -> float | None:
    return None if np.isnan(value) else float(value)
