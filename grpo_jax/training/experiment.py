"""What a run is made of, built from its config: a policy, prompts, problems, rewards, and the held-out test."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from grpo_jax.data import JsonlTask, PromptTemplate, Task, initial_state, make_task, stage_weights
from grpo_jax.evaluation import HeldoutTest
from grpo_jax.rewards import CompositeReward
from grpo_jax.training.config import RunConfig
from grpo_jax.training.policy import Policy, build_policy

# Problems per stage whose widths are checked before a run begins, where a task makes its problems as it goes.
_CHECKED = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The parts of a run.

    Attributes:
      config: the run's config.
      policy: what is trained.
      template: problems to prompts.
      task: where problems come from.
      reward: what completions are worth.
    """

    config: RunConfig
    policy: Policy
    template: PromptTemplate
    task: Task
    reward: CompositeReward

    @property
    def heldout_test(self) -> HeldoutTest:
        config = self.config
        return HeldoutTest(
            task=self.task,
            template=self.template,
            reward=self.reward,
            problems=config.evaluation.problems,
            samples=config.evaluation.samples,
            sampler=config.evaluation.sampler,
            rows=config.evaluation.rows,
            max_prompt_tokens=config.data.max_prompt_tokens,
            max_completion_tokens=config.rollout.max_completion_tokens,
            seed=config.seed,
            mesh=self.policy.mesh,
        )


def build_experiment(config: RunConfig) -> Experiment:
    """Builds the parts of a run and checks that its problems fit its rows; allocates no parameter.

    Raises:
      ValueError: a part cannot be built from the config, or a row cannot hold the task's problems; names it.
    """
    policy = build_policy(config)
    template = PromptTemplate(policy.tokenizer, config.data.prompt)
    task = make_task(config.data.task, config.data.task_options)
    if isinstance(task, JsonlTask):
        # Solutions are imitated in SFT only: without it a long one drops no problem.
        longest = config.rollout.max_completion_tokens if config.sft.steps else None
        task = task.limit_length(template, config.data.max_prompt_tokens, longest)
    stage_weights(config.data.curriculum, initial_state(task.stages))  # raises where it weighs a stage that is not there
    _check_widths(config, template, task)
    try:
        reward = CompositeReward(config.rewards, config.rollout.max_completion_tokens)
    except ValueError as error:
        # What begins with a section of the rewards is spelled as its key; the rest names a reward.
        raise ValueError(f"rewards.{error}" if re.match(r"\w+\.\w+ is ", str(error)) else str(error)) from error
    return Experiment(config=config, policy=policy, template=template, task=task, reward=reward)


def _check_widths(config: RunConfig, template: PromptTemplate, task: Task) -> None:
    rng = np.random.default_rng(config.seed)
    for stage in task.stages:
        problems = task.sample(rng, stage, _CHECKED)
        heldout = task.heldout(stage, config.evaluation.problems)
        if not problems or not heldout:
            side = "training" if not problems else "held-out"
            raise ValueError(
                f"data.task is {config.data.task!r}, but its stage {stage!r} has no {side} problem. Give it some"
            )
        prompts = [*problems, *heldout]
        widths = {
            "data.max_prompt_tokens": max(len(template.encode_prompt(problem)) for problem in prompts),
            "rollout.max_completion_tokens": max(
                (len(template.encode_completion(task.demonstration(problem, rng))) for problem in problems)
                if config.sft.steps
                else (0,)
            ),
        }
        limits = (config.data.max_prompt_tokens, config.rollout.max_completion_tokens)
        for (key, width), limit in zip(widths.items(), limits, strict=True):
            if width > limit:
                raise ValueError(
                    f"{key} is {limit}, but stage {stage!r} of task {config.data.task!r} has one of {width} tokens. "
                    f"Set it to {width} or more"
                )
