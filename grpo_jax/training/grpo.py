"""One step of GRPO: rollout → reward → score → advantage → update, each timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.data import CurriculumState, Problem
from grpo_jax.objectives import Advantages, Coefficients, group_advantages, kl_terms, row_weights, select_tokens
from grpo_jax.parallel import to_host
from grpo_jax.training.config import GRPORunConfig
from grpo_jax.training.controls import Controls
from grpo_jax.training.experiment import Experiment
from grpo_jax.training.phase_clock import PhaseClock
from grpo_jax.training.replay import add_groups, stored_groups, take_groups
from grpo_jax.training.rollouts import Filled, JudgedRollout, sample, sample_and_refill
from grpo_jax.training.rows import Rows, dealt, join, live_first, place_rows, rows_of_groups
from grpo_jax.training.samples import Sample
from grpo_jax.training.schedules import EXTRAS
from grpo_jax.training.state import StepConfig, TrainState
from grpo_jax.training.step_metrics import over_updates, rollout_metrics
from grpo_jax.training.steps import GRPOBatch, grpo_step, score
from grpo_jax.types import Params

# Key of a NumPy generator: no two kinds of draw share their noise.
_SELECTION = 17


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOOutcome:
    """What a step gives besides the state.

    Attributes:
      metrics: by name, plain numbers.
      trained: the groups that were trained on, in the order of their prompts.
      sampled: every group that was sampled.
      advantages: the advantages of the rows that were trained on.
      replay: the replay buffer after the step; None where groups are not replayed.
    """

    metrics: dict[str, Any]
    trained: JudgedRollout
    sampled: JudgedRollout
    advantages: Advantages
    replay: Rows | None

    def observed(self, group_size: int) -> tuple[list[Problem], Float[np.ndarray, " P"]]:
        """The problem of every group that was sampled, and its mean accuracy; NaN where none is known."""
        accuracy = self.sampled.rows.components["accuracy"].reshape(-1, group_size)
        known = np.isfinite(accuracy)
        mean = np.where(known, accuracy, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        problems = [problem for problem in self.sampled.problems if problem is not None]
        return problems, np.where(known.any(axis=1), mean, np.nan)


def grpo_iteration(
    experiment: Experiment,
    state: TrainState,
    reference: Params | None,
    curriculum: CurriculumState,
    step: int,
    clock: PhaseClock,
    controls: Controls,
    replay: Rows | None = None,
) -> tuple[TrainState, GRPOOutcome]:
    """Samples groups, judges them, and updates the policy.

    Args:
      experiment: the parts of the run.
      state: donated.
      reference: parameters of the reference policy; None with a KL coefficient of 0.
      curriculum: which stages the problems come from.
      step: the step of this phase, from 0; with the seed it decides every draw.
      clock: measures the phases.
      controls: coefficients, reward weights and temperature.
      replay: the replay buffer; None where groups are not replayed.
    """
    config = experiment.config
    size = config.grpo.group_size
    values = controls.values(config, step)
    updates = step * config.grpo.updates_a_step
    filled = _sampled(experiment, state, curriculum, step, controls, values, updates, clock)
    trained = filled.trained
    weights = dict(filled.sampled.results[0].weights)
    extra: dict[str, float | None] = dict(filled.metrics)
    if replay is not None:
        trained, replay, replayed = _replay_dead(config.grpo, trained, replay, weights, updates)
        extra["groups_replayed"] = replayed

    with clock("score"):
        rows, ref_logprobs = _score(experiment, state, reference, trained.rows, updates)
    if replay is not None:
        replay = _remember(config.grpo, replay, rows, weights, updates)
        extra["replay_groups"] = stored_groups(replay, size)

    components = dict(rows.components)
    # Groups that only fill the shape have no part in the statistics of the batch either.
    reward = np.where(np.repeat(filled.informative, size), rows.reward, np.float32(np.nan))
    if config.grpo.kl_in_reward:
        assert ref_logprobs is not None
        penalty = _kl_penalty(config.grpo.kl.estimator, rows, ref_logprobs)
        reward = reward - np.float32(values["kl_coef"]) * penalty
        components["kl"], weights["kl"] = -penalty, values["kl_coef"]
        counted = np.repeat(filled.informative, size)
        extra["kl_reward"] = -values["kl_coef"] * float(np.mean(penalty[counted])) if counted.any() else None
    advantages = group_advantages(
        reward,
        size,
        config.grpo.advantage,
        lengths_B=rows.completion_lengths,
        components=components,
        weights=weights,
    )
    row_weights_B = row_weights(config.grpo.groups, np.asarray(advantages.live_B), rows.truncated)
    if not config.grpo.on_policy:
        extra |= _staleness(rows, row_weights_B, updates)

    with clock("update") as results:
        coefficients = Coefficients(
            kl=values["kl_coef"] if config.grpo.kl_in_loss else None,
            entropy=values["entropy_coef"] if config.grpo.has_entropy_bonus else None,
        )
        update_metrics = []
        for batch in _batches(experiment, rows, ref_logprobs, advantages, row_weights_B, step):
            state, metrics = grpo_step(state, batch, coefficients)
            update_metrics.append(metrics)
        results.append(update_metrics)

    metrics = {
        **rollout_metrics(config, filled.sampled),
        **over_updates(jax.device_get(update_metrics)),
        **extra,
        **_in_effect(config.grpo, values),
    }
    return state, GRPOOutcome(metrics=metrics, trained=trained, sampled=filled.sampled, advantages=advantages, replay=replay)


def _sampled(
    experiment: Experiment,
    state: TrainState,
    curriculum: CurriculumState,
    step: int,
    controls: Controls,
    values: dict[str, float],
    updates: int,
    clock: PhaseClock,
) -> Filled:
    """The groups of the step; all count as informative unless dynamic sampling looks at their accuracy."""
    config = experiment.config
    how: dict[str, Any] = {
        "sampler": controls.sampler(config),
        "weights": {
            "format": values["format_weight"],
            "termination": values["termination_weight"],
            **{name.removeprefix(EXTRAS): value for name, value in values.items() if name.startswith(EXTRAS)},
        },
        "updates": updates,
        "clock": clock,
    }
    if config.grpo.groups.dead == "refill":
        return sample_and_refill(experiment, state.params, curriculum, step, **how)
    sampled = sample(experiment, state.params, curriculum, step, **how)
    return Filled(trained=sampled, informative=np.ones(config.grpo.prompts, bool), sampled=sampled, metrics={})


def _replay_dead(
    config: GRPORunConfig, trained: JudgedRollout, replay: Rows, weights: Mapping[str, float], updates: int
) -> tuple[JudgedRollout, Rows, int]:
    """The groups with those without a signal replaced by groups of the buffer, as far as it has any."""
    size = config.group_size
    live = _live_groups(config, trained.rows, weights)
    dead = np.flatnonzero(~live)
    last_update = updates + config.updates_a_step - 1
    taken, replay = take_groups(replay, dead.size, size, last_update, config.off_policy.max_staleness)
    if taken is None:
        return trained, replay, 0
    count = taken.version.size // size
    order = np.arange(live.size)
    order[dead[:count]] = live.size + np.arange(count)
    problems = [*trained.problems, *[None] * count]
    inputs = [*trained.inputs, *[None] * (count * size)]
    both = JudgedRollout(rows=join([trained.rows, taken]), problems=problems, inputs=inputs)
    return both.take_groups(order, size), replay, count


def _remember(config: GRPORunConfig, replay: Rows, rows: Rows, weights: Mapping[str, float], updates: int) -> Rows:
    """The buffer with the groups of this step that have a signal, scored."""
    fresh = rows.version[:: config.group_size] == updates
    groups = np.flatnonzero(fresh & _live_groups(config, rows, weights))
    return add_groups(replay, rows.take(rows_of_groups(groups, config.group_size)), config.group_size)


def _live_groups(config: GRPORunConfig, rows: Rows, weights: Mapping[str, float]) -> Bool[np.ndarray, " P"]:
    """The groups that the estimator gives a signal, by their rewards as they were judged."""
    advantages = group_advantages(
        rows.reward,
        config.group_size,
        config.advantage,
        lengths_B=rows.completion_lengths,
        components=rows.components,
        weights=weights,
    )
    return np.asarray(advantages.live_B).reshape(-1, config.group_size).any(axis=1)


def _score(
    experiment: Experiment, state: TrainState, reference: Params | None, rows: Rows, updates: int
) -> tuple[Rows, Float[np.ndarray, "B S"] | None]:
    """The rows with their old log-probs, and the reference's."""
    config, mesh = experiment.config.grpo, experiment.policy.mesh
    ref_logprobs = None
    if reference is not None:
        ref_logprobs = _scored(state.config, reference, rows.tokens, config.minibatches, mesh)
    if config.off_policy.old_logprobs == "sampler":
        rows = rows._replace(old_logprobs=rows.sampler_logprobs)
    elif config.scores_old_policy:
        now = _scored(state.config, state.params, rows.tokens, config.minibatches, mesh)
        rows = rows._replace(old_logprobs=np.where((rows.version == updates)[:, None], now, rows.old_logprobs))
    return rows, ref_logprobs


def _scored(
    config: StepConfig, params: Params, tokens: Int[np.ndarray, "B S"], minibatches: int, mesh: Mesh | None
) -> Float[np.ndarray, "B S"]:
    # A minibatch at a time, so that scoring needs no more memory than the update that follows.
    parts = np.split(tokens, minibatches)
    return np.concatenate([to_host(score(config, params, place_rows(part, mesh))) for part in parts])


def _kl_penalty(estimator: str, rows: Rows, ref_logprobs: Float[np.ndarray, "B S"]) -> Float[np.ndarray, " B"]:
    """The sum over each row's completion of the KL estimate, under the policy that sampled it."""
    mask = rows.completion_mask
    old, ref = np.where(mask, rows.old_logprobs, 0), np.where(mask, ref_logprobs, 0)
    return np.asarray(kl_terms(estimator, jnp.asarray(old), jnp.asarray(ref)).kl).sum(axis=1)


def _batches(
    experiment: Experiment,
    rows: Rows,
    ref_logprobs: Float[np.ndarray, "B S"] | None,
    advantages: Advantages,
    row_weights_B: Float[np.ndarray, " B"],
    step: int,
) -> Iterator[GRPOBatch]:
    """The batch of each optimizer update of the step."""
    config, mesh = experiment.config, experiment.policy.mesh
    live = row_weights_B > 0
    selected = select_tokens(
        config.grpo.policy,
        rows.old_logprobs,
        np.asarray(advantages.advantages_B),
        rows.completion_mask & live[:, None],
        np.random.default_rng([config.seed, _SELECTION, step]).random(rows.tokens.shape),
    )

    def batch(chosen: Int[np.ndarray, " N"]) -> GRPOBatch:
        order = chosen[live_first(live[chosen], config.grpo.microbatches)]

        def placed(values: Any) -> Array:
            return place_rows(np.asarray(values)[order], mesh)

        return GRPOBatch(
            tokens=placed(rows.tokens),
            prompt_lengths=placed(rows.prompt_lengths),
            lengths=placed(rows.lengths),
            advantages=placed(advantages.advantages_B),
            row_weights=placed(row_weights_B),
            sampler_logprobs=placed(rows.sampler_logprobs),
            ref_logprobs=None if ref_logprobs is None else placed(ref_logprobs),
            old_logprobs=None if config.grpo.on_policy else placed(rows.old_logprobs),
            selected=None if selected is None else placed(selected),
        )

    whole = None
    for pass_ in range(config.grpo.updates_per_rollout):
        for chosen in dealt(live, config.grpo.minibatches, config.seed, step, pass_):
            if config.grpo.minibatches > 1:
                yield batch(chosen)
            else:
                whole = batch(chosen) if whole is None else whole
                yield whole


def _staleness(rows: Rows, row_weights_B: Float[np.ndarray, " B"], updates: int) -> dict[str, float | None]:
    behind = (updates - rows.version)[row_weights_B > 0]
    return {
        "staleness_mean": float(behind.mean()) if behind.size else None,
        "staleness_max": float(behind.max()) if behind.size else None,
    }


def _in_effect(config: GRPORunConfig, values: dict[str, float]) -> dict[str, float]:
    """The coefficients that this step was trained with; those of terms that it does not have are left out."""
    absent = {"kl_coef": config.kl_coef == 0, "entropy_coef": not config.has_entropy_bonus}
    return {name: value for name, value in values.items() if not absent.get(name, False)}


def read_samples(experiment: Experiment, outcome: GRPOOutcome, groups: int) -> list[Sample]:
    """The first `groups` groups of a step that were sampled in it, as people read them."""
    size, trained = experiment.config.grpo.group_size, outcome.trained
    fresh = [group for group, problem in enumerate(trained.problems) if problem is not None][:groups]
    samples = []
    for row in rows_of_groups(np.array(fresh, int), size):
        problem, judged = trained.problems[row // size], trained.inputs[row]
        assert problem is not None and judged is not None
        samples.append(
            Sample(
                prompt=experiment.template.prompt_text(problem),
                completion=judged.completion,
                reference=judged.reference,
                stage=problem.stage,
                tokens=len(judged.ids),
                end=judged.end,
                components={name: _number(values[row]) for name, values in trained.rows.components.items()},
                reward=_number(trained.rows.reward[row]),
                advantage=float(outcome.advantages.advantages_B[row]),
            )
        )
    return samples


def _number(value: np.floating) -> float | None:
    return None if np.isnan(value) else float(value)
