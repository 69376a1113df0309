"""What both attention modules share: weights, masks, and the float32 softmax."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from grpo_jax.model.config import ModelConfig
from grpo_jax.types import Array

# Finite, so that a row with nothing to attend to gives no NaN; far below any logit.
MASKED = -1e30


def weight(
    module: nn.Module, config: ModelConfig, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float
) -> Array:
    """Declares a parameter of `module` with its logical axis names and returns it in the compute dtype."""
    initializer = nn.with_logical_partitioning(nn.initializers.normal(std), axes)
    value: Any = module.param(name, initializer, shape, jnp.dtype(config.param_dtype))
    return value.astype(jnp.dtype(config.compute_dtype))


def residual_std(config: ModelConfig) -> float:
    """Initial standard deviation of projections that add to the residual stream: 2 per layer add up."""
    return config.initializer_range / (2 * config.num_layers) ** 0.5


def causal_mask(length: int) -> Bool[Array, "T T"]:
    """True where the query at row t may see the key at column s: s <= t."""
    return jnp.tril(jnp.ones((length, length), bool))


def slot_mask(positions_BT: Int[Array, "B T"], slots: int) -> Bool[Array, "B T S"]:
    """True where the query at a position may see a cache slot: slot <= position."""
    return jnp.arange(slots) <= positions_BT[..., None]


def softmax(scores: Float[Array, "... S"], mask: Bool[Array, "... S"], dtype: jnp.dtype) -> Float[Array, "... S"]:
    """Masked softmax over the last dimension, float32 inside, returned in `dtype`."""
    return jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), MASKED), axis=-1).astype(dtype)
