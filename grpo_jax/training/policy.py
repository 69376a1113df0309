"""The policy of a run, before any problem is known: mesh, tokenizer, decoder, first parameters, and its steps' configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from grpo_jax.checkpoint import ExportedModel, GGUFModel, open_pretrained
from grpo_jax.data import CharacterTokenizer, HFTokenizer, Tokenizer
from grpo_jax.data.arithmetic import ALPHABET
from grpo_jax.model import ModelConfig, check_divisible, init_params, param_axes
from grpo_jax.objectives import GRPOConfig
from grpo_jax.parallel import make_mesh, replicated, tree_shardings
from grpo_jax.training.config import RunConfig, TokenizerConfig
from grpo_jax.training.position import Position
from grpo_jax.training.replay import empty_buffer
from grpo_jax.training.rows import Rows
from grpo_jax.training.rules import check_vocabulary
from grpo_jax.training.state import StepConfig, abstract_state, place_params
from grpo_jax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """What is trained.

    Attributes:
      config: the run's config.
      mesh: the device mesh; None is one device.
      tokenizer: text to ids.
      model: the decoder's shape.
      initial_params: makes the parameters that training starts from, laid out over the mesh.
    """

    config: RunConfig
    mesh: Mesh | None
    tokenizer: Tokenizer
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
            total_updates=max(config.grpo.steps * config.grpo.updates_a_step, 1),
            objective=self._objective,
            microbatches=config.grpo.microbatches,
            logit_chunk=config.logit_chunk,
            temperature=config.rollout.sampler.temperature,
            mesh=self.mesh,
        )

    @property
    def _objective(self) -> GRPOConfig:
        """The objective, with a fixed length left open filled in: the most tokens of a completion (Dr. GRPO)."""
        objective = self.config.grpo.objective
        if objective.policy.summed_by != "sequence_sum_fixed" or objective.policy.length is not None:
            return objective
        policy = dataclasses.replace(objective.policy, fixed_length=self.config.rollout.max_completion_tokens)
        return dataclasses.replace(objective, policy=policy)

    @property
    def needs_reference(self) -> bool:
        """Whether GRPO holds a reference policy; without a KL term none is loaded and none is kept."""
        return self.config.grpo.kl_coef > 0 and self.config.grpo.steps > 0

    @property
    def has_replay(self) -> bool:
        """Whether GRPO holds groups of earlier rollouts to train on again."""
        return self.config.grpo.groups.dead == "replay" and self.config.grpo.steps > 0

    def abstract_arrays(self, position: Position) -> dict[str, Any]:
        """Shapes, dtypes and shardings of what a checkpoint at this position holds."""
        train = abstract_state(self.sft_step_config if position.phase == "sft" else self.grpo_step_config)
        arrays = {"train": train} | ({"reference": train.params} if position.has_reference else {})
        if position.replay_components is not None:
            buffer = self.empty_replay(position.replay_components)
            sharding = None if self.mesh is None else replicated(self.mesh)
            arrays["replay"] = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), buffer
            )
        return arrays

    def empty_replay(self, components: Sequence[str]) -> Rows:
        """The replay buffer before the first group; `components` are the names of the reward's parts."""
        grpo = self.config.grpo
        groups = 2 * grpo.prompts if grpo.groups.replay_groups is None else grpo.groups.replay_groups
        return empty_buffer(groups, grpo.group_size, self.config.max_tokens, components)


def build_policy(config: RunConfig) -> Policy:
    """Reads the header of a pretrained model or the tokenizer's file; allocates no parameter.

    Raises:
      ValueError: a part cannot be built from the config; names it.
    """
    mesh = make_mesh(config.mesh_shape) if config.mesh_shape.size > 1 else None
    pretrained = None if config.pretrained is None else open_pretrained(config.pretrained.path)
    tokenizer = _tokenizer(config.data.tokenizer) if pretrained is None else pretrained.tokenizer()
    model = _model(config, pretrained, tokenizer)

    def initial_params() -> Params:
        if pretrained is not None:
            shardings = None if mesh is None else tree_shardings(mesh, param_axes(model))
            return pretrained.load_params(model, shardings=shardings)
        params = init_params(model, jax.random.key(config.seed))
        return params if mesh is None else place_params(params, model, mesh)

    return Policy(config=config, mesh=mesh, tokenizer=tokenizer, model=model, initial_params=initial_params)


def _tokenizer(config: TokenizerConfig) -> Tokenizer:
    if config.path is not None:
        return HFTokenizer.from_file(config.path, eos=config.eos)
    return CharacterTokenizer(ALPHABET if config.alphabet is None else config.alphabet)


def _model(config: RunConfig, pretrained: ExportedModel | GGUFModel | None, tokenizer: Tokenizer) -> ModelConfig:
    check_vocabulary(config, tokenizer.vocab_size)
    if pretrained is None:
        assert config.model is not None
        return config.model
    assert config.pretrained is not None
    model = dataclasses.replace(pretrained.model_config(), remat=config.pretrained.remat)
    check_divisible(model, config.mesh_shape)
    return model
