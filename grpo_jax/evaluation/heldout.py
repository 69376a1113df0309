"""The held-out test: every stage's held-out problems, sampled several times and once greedily.

Every stage is tested at every test, so that what a later stage made the policy forget shows. The problems are the same
at every test of every run of a task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from grpo_jax.data import Problem, PromptTemplate, Task, pad_rows
from grpo_jax.evaluation.scores import StageScore
from grpo_jax.generation import END_EOS, Rollout, SamplerConfig, rollout, row_keys
from grpo_jax.model import ModelConfig
from grpo_jax.parallel import from_first, to_host
from grpo_jax.rewards import CompositeReward, PendingRewards, RewardInput, RewardResult
from grpo_jax.types import Params

# Tests number their steps from here, beyond any step of training, so that they never draw a rollout's noise.
_FIRST_STEP = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judging:
    """Completions that were handed to the reward.

    Attributes:
      inputs: the judged text of each row.
      pending: their rewards to come.
    """

    inputs: list[RewardInput]
    pending: PendingRewards

    def result(self) -> RewardResult:
        """Their rewards, once all are there; the same on every host."""
        # Every host has judged the same rows, but a reward's time limit can pass on one and not on another.
        return from_first(self.pending.result())


def begin_judging(
    reward: CompositeReward,
    template: PromptTemplate,
    problems: Sequence[Problem],
    sampled: Rollout,
    *,
    weights: Mapping[str, float] | None = None,
) -> Judging:
    """Decodes the completions of a rollout and hands them to the reward, which judges them meanwhile.

    Args:
      reward: the composite reward.
      template: whose tokenizer decodes.
      problems: one for each row.
      sampled: a rollout with at least as many rows as problems, on the host or the device; later rows are ignored.
      weights: weights of reward components, by name, in the place of the configured ones.

    Raises:
      ValueError: `weights` names no component of the reward, or has a weight that is not a finite number.
    """
    tokens, starts, stops, ends = to_host((sampled.tokens, sampled.prompt_lengths, sampled.lengths, sampled.ends))
    rows = []
    for index, problem in enumerate(problems):
        ids = tokens[index, starts[index] : stops[index]].tolist()
        rows.append(
            RewardInput(
                prompt=problem.prompt,
                completion=template.completion_text(ids),
                reference=problem.answer,
                ids=ids,
                end="eos" if ends[index] == END_EOS else "length",
                metadata=problem.metadata,
            )
        )
    return Judging(inputs=rows, pending=reward.submit(rows, weights))


def judge(
    reward: CompositeReward,
    template: PromptTemplate,
    problems: Sequence[Problem],
    sampled: Rollout,
    *,
    weights: Mapping[str, float] | None = None,
) -> tuple[RewardResult, list[RewardInput]]:
    """As `begin_judging`, but returns the rewards themselves, with the judged text of each row."""
    judging = begin_judging(reward, template, problems, sampled, weights=weights)
    return judging.result(), judging.inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldoutTest:
    """What is tested and how; `run` does it for given parameters.

    Attributes:
      task: where the held-out problems come from.
      template: makes prompts of them.
      reward: judges accuracy.
      problems: problems per stage.
      samples: completions sampled per problem.
      sampler: the distribution of the sampled completions.
      rows: rows generated at once.
      max_prompt_tokens: width of the prompts.
      max_completion_tokens: most tokens of a completion.
      seed: the run's seed.
      mesh: the device mesh; None is one device.
    """

    task: Task
    template: PromptTemplate
    reward: CompositeReward
    problems: int
    samples: int
    sampler: SamplerConfig
    rows: int
    max_prompt_tokens: int
    max_completion_tokens: int
    seed: int
    mesh: Mesh | None = None

    def run(self, model: ModelConfig, params: Params, step: int) -> dict[str, StageScore]:
        """Scores of every stage; `step`, counted over all phases of a run, keys the draws."""
        problems = [problem for stage in self.task.stages for problem in self.task.heldout(stage, self.problems)]
        stages = np.array([problem.stage for problem in problems])
        right, lengths, ended = self._generate(model, params, problems, self.sampler, self.samples, step)
        greedy_right, _, _ = self._generate(model, params, problems, SamplerConfig(temperature=0.0), 1, step)
        return {
            stage: StageScore(
                sampled_accuracy=float(right[stages == stage].mean()),
                greedy_accuracy=float(greedy_right[stages == stage].mean()),
                mean_length=float(lengths[stages == stage].mean()),
                termination_rate=float(ended[stages == stage].mean()),
            )
            for stage in self.task.stages
        }

    def _generate(
        self,
        model: ModelConfig,
        params: Params,
        problems: Sequence[Problem],
        sampler: SamplerConfig,
        samples: int,
        step: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(right, completion length, ended by itself), each [problems, samples]."""
        at_once = max(self.rows // samples, 1)
        judgings: list[Judging] = []
        for start in range(0, len(problems), at_once):
            part = list(problems[start : start + at_once])
            # The last part is filled up so that its shape, and with it the compiled program, is that of the others.
            prompts, prompt_lengths = self._prompts(part + [part[0]] * (at_once - len(part)))
            first_row = start * samples
            sampled = rollout(
                model,
                params,
                prompts,
                prompt_lengths,
                row_keys(self.seed, _FIRST_STEP + step, np.arange(first_row, first_row + at_once * samples)),
                max_completion=self.max_completion_tokens,
                sampler=sampler,
                stop_ids=self.template.tokenizer.eos_ids,
                samples_per_prompt=samples,
                mesh=self.mesh,
            )
            rows = [problem for problem in part for _ in range(samples)]
            judgings.append(begin_judging(self.reward, self.template, rows, sampled))
        right = np.concatenate([np.nan_to_num(judging.result().accuracy) for judging in judgings])
        inputs = [row for judging in judgings for row in judging.inputs]
        lengths, ended = np.array([len(row.ids) for row in inputs]), np.array([row.end == "eos" for row in inputs])
        shape = (len(problems), samples)
        return right.reshape(shape), lengths.reshape(shape), ended.reshape(shape)

    def _prompts(self, problems: Sequence[Problem]) -> tuple[Int[np.ndarray, "P T"], Int[np.ndarray, " P"]]:
        ids = [self.template.encode_prompt(problem) for problem in problems]
        return pad_rows(ids, self.max_prompt_tokens, self.template.tokenizer.pad_id)
