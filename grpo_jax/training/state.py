"""What a training step takes and returns: parameters, optimizer state, step counter, and the static facts of the step."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int

from grpo_jax.model import ModelConfig, abstract_params, check_divisible, param_axes
from grpo_jax.objectives import GRPOConfig
from grpo_jax.parallel import MeshShape, place, replicated, shard_tree, tree_shardings
from grpo_jax.training.optimizer import OptimizerConfig, make_optimizer
from grpo_jax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepConfig:
    """The static part of a step: what XLA compiles for. Two equal configs share one compiled step.

    Attributes:
      model: the architecture.
      optimizer: AdamW, its schedule and clipping.
      total_updates: updates over which the schedule runs.
      objective: the GRPO loss; unused by SFT.
      microbatches: parts into which a batch's rows are split; the gradient is the same.
      logit_chunk: positions of a row whose logits are alive at once.
      temperature: the sampling temperature, at which GRPO's log-probs are scored.
      mesh: the device mesh; None is one device.
    """

    model: ModelConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    total_updates: int = 1
    objective: GRPOConfig = dataclasses.field(default_factory=GRPOConfig)
    microbatches: int = 1
    logit_chunk: int = 128
    temperature: float = 1.0
    mesh: Mesh | None = None

    def make_optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.optimizer, self.total_updates)


@flax.struct.dataclass
class TrainState:
    """Everything a step changes. A pytree; `config` is static."""

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    config: StepConfig = flax.struct.field(pytree_node=False)

    @classmethod
    def create(cls, params: Params, config: StepConfig) -> TrainState:
        """A fresh state around `params`, placed on the config's mesh; the optimizer's moments are sharded as they are."""
        if config.mesh is None:
            return _create(params, config)
        params = place_params(params, config.model, config.mesh)
        return jax.tree.map(place, _create(params, config), state_shardings(abstract_state(config)))


def _create(params: Params, config: StepConfig) -> TrainState:
    opt_state = config.make_optimizer().init(params)
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=opt_state, config=config)


def abstract_state(config: StepConfig) -> TrainState:
    """The shapes, dtypes and shardings of a state; allocates nothing."""
    state = jax.eval_shape(lambda params: _create(params, config), abstract_params(config.model))
    if config.mesh is None:
        return state
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        state_shardings(state),
    )


def place_params(params: Params, model: ModelConfig, mesh: Mesh) -> Params:
    """Parameters laid out over the mesh by their logical axes (parallel/sharding.py)."""
    check_divisible(model, MeshShape(**dict(mesh.shape)))
    return shard_tree(params, mesh, param_axes(model))


def state_shardings(state: TrainState) -> Any:
    """A NamedSharding for each leaf: the optimizer's moments lie where their parameters lie, scalars everywhere."""
    mesh = state.config.mesh
    assert mesh is not None
    shardings = tree_shardings(mesh, param_axes(state.config.model))
    everywhere: Any = replicated(mesh)
    return TrainState(
        step=everywhere,
        params=shardings,
        opt_state=optax.tree_map_params(
            state.config.make_optimizer(),
            lambda _, sharding: sharding,
            state.opt_state,
            shardings,
            transform_non_params=lambda _: everywhere,
        ),
        config=state.config,
    )
