"""Rollouts of a step: prompts sampled and judged, groups without a signal filtered and refilled or replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from grpo_jax.data import CurriculumState, Problem, pad_rows, sample_problems
from grpo_jax.evaluation import begin_judging
from grpo_jax.generation import END_LENGTH, Rollout, SamplerConfig, rollout, row_keys
from grpo_jax.parallel import to_host
from grpo_jax.rewards import RewardInput, RewardResult, joined_results
from grpo_jax.training.experiment import Experiment
from grpo_jax.training.phase_clock import PhaseClock
from grpo_jax.training.rows import Rows, join, rows_of_groups
from grpo_jax.training.sft import grpo_seed
from grpo_jax.types import Params

DEFAULT_REFILLS = 3

# Orders of problems that a refill looks through for some that the step has not sampled yet.
REFILL_ORDERS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedRollout:
    """Rows of whole groups, judged.

    Attributes:
      rows: the rows.
      problems: the problem of each group.
      inputs: the judged text of each row; None for a replayed row, whose text is not kept.
      results: what the reward said of each rollout that the rows are from.
    """

    rows: Rows
    problems: Sequence[Problem | None]
    inputs: Sequence[RewardInput | None]
    results: Sequence[RewardResult] = ()

    def take_groups(self, groups: Int[np.ndarray, " P"], group_size: int) -> JudgedRollout:
        """The groups of these numbers, in this order."""
        rows = rows_of_groups(groups, group_size)
        return JudgedRollout(
            rows=self.rows.take(rows),
            problems=[self.problems[group] for group in groups],
            inputs=[self.inputs[row] for row in rows],
        )


def joined(parts: Sequence[JudgedRollout]) -> JudgedRollout:
    """All groups of all parts."""
    return JudgedRollout(
        rows=join([part.rows for part in parts]),
        problems=[problem for part in parts for problem in part.problems],
        inputs=[row for part in parts for row in part.inputs],
        results=[result for part in parts for result in part.results],
    )


def sample(
    experiment: Experiment,
    params: Params,
    curriculum: CurriculumState,
    step: int,
    *,
    sampler: SamplerConfig,
    weights: Mapping[str, float],
    updates: int,
    clock: PhaseClock,
    attempt: int = 0,
    seen: Collection[str] = (),
) -> JudgedRollout:
    """One rollout of a step, judged; chunk by chunk, so that the completions of one are judged while the next is sampled.

    Args:
      experiment: the parts of the run.
      params: the policy's.
      curriculum: which stages the problems come from.
      step: the step of GRPO, from 0; with the seed and the attempt it decides every draw.
      sampler: the distribution that completions are drawn from.
      weights: the weights of the rewards in this step, by component.
      updates: optimizer updates behind `params`.
      clock: measures the phases.
      attempt: 0 for the first rollout of the step, then 1, 2, … for what refills it.
      seen: keys of the problems that this step has sampled before; others are taken where there are any.
    """
    config = experiment.config
    problems = _problems(experiment, curriculum, step, attempt, seen)
    chunks = range(config.rollout.chunks)
    groups = np.split(np.arange(config.grpo.prompts), config.rollout.chunks)
    on_host: list[Rollout] = []
    judgings = []
    with clock("rollout"):
        # Sampled in the background from here on: only reading a chunk waits for it.
        ahead = _rollout(experiment, params, problems, groups[0], step, sampler, attempt)
    for number in chunks:
        with clock("rollout"):
            sampled = ahead
            if number + 1 in chunks:
                ahead = _rollout(experiment, params, problems, groups[number + 1], step, sampler, attempt)
            on_host.append(to_host(sampled))
        with clock("reward"):
            by_row = [problems[group] for group in groups[number] for _ in range(config.grpo.group_size)]
            judgings.append(begin_judging(experiment.reward, experiment.template, by_row, on_host[-1], weights=weights))
    with clock("reward"):
        results = [judging.result() for judging in judgings]
    rewards = joined_results(results)
    rows = Rows(
        tokens=np.concatenate([part.tokens for part in on_host]),
        prompt_lengths=np.concatenate([part.prompt_lengths for part in on_host]),
        lengths=np.concatenate([part.lengths for part in on_host]),
        truncated=np.concatenate([np.asarray(part.ends) == END_LENGTH for part in on_host]),
        sampler_logprobs=np.concatenate([part.logprobs for part in on_host]),
        old_logprobs=np.zeros((config.grpo.rows, on_host[0].tokens.shape[1]), np.float32),
        version=np.full(config.grpo.rows, updates, np.int32),
        reward=rewards.total,
        components=rewards.components,
    )
    inputs = [row for judging in judgings for row in judging.inputs]
    return JudgedRollout(rows=rows, problems=problems, inputs=inputs, results=[rewards])


def _problems(
    experiment: Experiment, curriculum: CurriculumState, step: int, attempt: int, seen: Collection[str]
) -> list[Problem]:
    config = experiment.config
    # Refills draw in orders of their own, so that how many there were does not move the place of the first rollouts in
    # their epochs. Each tries a few orders for problems that are new to the step; a small list may run out of them.
    fresh: dict[str, Problem] = {}
    drawn: list[Problem] = []
    for order in range(1 if attempt == 0 else REFILL_ORDERS):
        seed = grpo_seed(config.seed) + ((attempt * REFILL_ORDERS + order) << 32)
        drawn = sample_problems(experiment.task, config.data.curriculum, curriculum, seed, step, config.grpo.prompts)
        if attempt == 0:
            return drawn
        fresh |= {problem.key: problem for problem in drawn if problem.key not in seen and problem.key not in fresh}
        if len(fresh) >= config.grpo.prompts:
            break
    return [*fresh.values(), *drawn][: config.grpo.prompts]


def _rollout(
    experiment: Experiment,
    params: Params,
    problems: Sequence[Problem],
    groups: Int[np.ndarray, " P"],
    step: int,
    sampler: SamplerConfig,
    attempt: int,
) -> Rollout:
    """Completions of the problems of these groups; which groups are sampled together changes none of them."""
    config, template = experiment.config, experiment.template
    prompts, prompt_lengths = pad_rows(
        [template.encode_prompt(problems[group]) for group in groups],
        config.data.max_prompt_tokens,
        experiment.policy.tokenizer.pad_id,
    )
    return rollout(
        experiment.policy.model,
        params,
        prompts,
        prompt_lengths,
        row_keys(config.seed, step, attempt * config.grpo.rows + rows_of_groups(groups, config.grpo.group_size)),
        max_completion=config.rollout.max_completion_tokens,
        sampler=sampler,
        stop_ids=experiment.policy.tokenizer.eos_ids,
        samples_per_prompt=config.grpo.group_size,
        mesh=experiment.policy.mesh,
    )


def informative(accuracy: Float[np.ndarray, " B"], group_size: int) -> Bool[np.ndarray, " P"]:
    """The groups whose accuracies are not all the same: neither all wrong nor all right.

    By accuracy and not by reward: among equally right completions the shaped parts alone would decide, and runs filtered
    by those have been seen to collapse.
    """
    groups = accuracy.reshape(-1, group_size)
    known = np.isfinite(groups)
    return np.where(known, groups, -np.inf).max(1) > np.where(known, groups, np.inf).min(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filled:
    """A step's groups after dynamic sampling.

    Attributes:
      trained: the groups to train on, as many as one rollout has.
      informative: which of them are; the others fill the shape and are not trained on.
      sampled: every group that was sampled.
      metrics: how much of it there was.
    """

    trained: JudgedRollout
    informative: Bool[np.ndarray, " P"]
    sampled: JudgedRollout
    metrics: dict[str, float]


def sample_and_refill(
    experiment: Experiment,
    params: Params,
    curriculum: CurriculumState,
    step: int,
    *,
    sampler: SamplerConfig,
    weights: Mapping[str, float],
    updates: int,
    clock: PhaseClock,
) -> Filled:
    """Dynamic sampling (DAPO, 2503.14476): rollouts until there are `prompts` informative groups, or the limit is reached.

    Takes the arguments of `sample`.
    """
    groups = experiment.config.grpo.groups
    size, wanted = experiment.config.grpo.group_size, experiment.config.grpo.prompts
    limit = DEFAULT_REFILLS if groups.max_refills is None else groups.max_refills
    parts: list[JudgedRollout] = []
    found = np.zeros(0, bool)
    for attempt in range(limit + 1):
        part = sample(
            experiment,
            params,
            curriculum,
            step,
            sampler=sampler,
            weights=weights,
            updates=updates,
            clock=clock,
            attempt=attempt,
            seen={problem.key for part in parts for problem in part.problems if problem is not None},
        )
        parts.append(part)
        found = np.concatenate([found, informative(part.rows.components["accuracy"], size)])
        if found.sum() >= wanted:
            break
    sampled = joined(parts)
    # Informative groups first, in the order they were sampled; others make up the number.
    chosen = np.sort(np.argsort(~found, kind="stable")[:wanted])
    return Filled(
        trained=sampled.take_groups(chosen, size),
        informative=found[chosen],
        sampled=sampled,
        metrics={
            "refills": len(parts) - 1,
            "groups_filtered": int((~found).sum()),
            "groups_missing": int(wanted - found[chosen].sum()),
        },
    )
