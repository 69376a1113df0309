"""What a run is made of, built from its config: mesh, tokenizer, prompts, problems, rewards, model, first parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
from jax.sharding import Mesh

from grpo_jax.checkpoint import GGUFModel
from grpo_jax.data import CharacterTokenizer, HFTokenizer, JsonlTask, PromptTemplate, Task, Tokenizer, make_task
from grpo_jax.data.arithmetic import ALPHABET
from grpo_jax.evaluation import HeldoutTest
from grpo_jax.model import ModelConfig, check_divisible, init_params, param_axes
from grpo_jax.parallel import make_mesh, tree_shardings
from grpo_jax.rewards import CompositeReward
from grpo_jax.training.config import RunConfig, TokenizerConfig
from grpo_jax.training.rules import check_vocabulary
from grpo_jax.training.state import StepConfig, place_params
from grpo_jax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The parts of a run.

    Attributes:
      config: the run's config.
      mesh: the device mesh; None is one device.
      tokenizer: text to ids.
      template: problems to prompts.
      task: where problems come from.
      reward: what completions are worth.
      model: the decoder's shape.
      initial_params: makes the parameters that training starts from, laid out over the mesh.
    """

    config: RunConfig
    mesh: Mesh | None
    tokenizer: Tokenizer
    template: PromptTemplate
    task: Task
    reward: CompositeReward
    model: ModelConfig
    initial_params: Callable[[], Params]

    @property
    def sft_step_config(self) -> StepConfig:
        config = self.config
        return StepConfig(
            model=self.model,
            optimizer=config.sft.optimizer,
            total_updates=max(config.sft.steps, 1),
            microbatches=config.sft.microbatches,
            logit_chunk=config.logit_chunk,
            mesh=self.mesh,
        )

    @property
    def grpo_step_config(self) -> StepConfig:
        config = self.config
        return StepConfig(
            model=self.model,
            optimizer=config.grpo.optimizer,
            total_updates=max(config.grpo.steps * config.grpo.updates_per_rollout, 1),
            objective=config.grpo.objective,
            microbatches=config.grpo.microbatches,
            logit_chunk=config.logit_chunk,
            temperature=config.rollout.sampler.temperature,
            mesh=self.mesh,
        )

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
            mesh=self.mesh,
        )


def build_experiment(config: RunConfig) -> Experiment:
    """Builds the parts of a run; reads files of problems and the header of a pretrained model, allocates no parameter.

    Raises:
      ValueError: a part cannot be built from the config; names it.
    """
    mesh = make_mesh(config.mesh_shape) if config.mesh_shape.size > 1 else None
    pretrained = None if config.pretrained is None else GGUFModel(config.pretrained.path)
    tokenizer = _tokenizer(config.data.tokenizer) if pretrained is None else pretrained.tokenizer()
    model = _model(config, pretrained, tokenizer)
    template = PromptTemplate(tokenizer, config.data.prompt)
    task = make_task(config.data.task, config.data.task_options)
    if isinstance(task, JsonlTask):
        # Solutions are imitated in SFT only: without it a long one drops no problem.
        longest = config.rollout.max_completion_tokens if config.sft.steps else None
        task = task.limit_length(template, config.data.max_prompt_tokens, longest)

    def initial_params() -> Params:
        if pretrained is not None:
            shardings = None if mesh is None else tree_shardings(mesh, param_axes(model))
            return pretrained.load_params(model, shardings=shardings)
        params = init_params(model, jax.random.key(config.seed))
        return params if mesh is None else place_params(params, model, mesh)

    return Experiment(
        config=config,
        mesh=mesh,
        tokenizer=tokenizer,
        template=template,
        task=task,
        reward=CompositeReward(config.rewards),
        model=model,
        initial_params=initial_params,
    )


def _tokenizer(config: TokenizerConfig) -> Tokenizer:
    if config.path is not None:
        return HFTokenizer.from_file(config.path, eos=config.eos)
    return CharacterTokenizer(ALPHABET if config.alphabet is None else config.alphabet)


def _model(config: RunConfig, pretrained: GGUFModel | None, tokenizer: Tokenizer) -> ModelConfig:
    if pretrained is None:
        assert config.model is not None
        check_vocabulary(config, tokenizer.vocab_size)
        return config.model
    assert config.pretrained is not None
    model = dataclasses.replace(pretrained.model_config(), remat=config.pretrained.remat)
    check_divisible(model, config.mesh_shape)
    return model
