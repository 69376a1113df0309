"""What both attention modules share: masks and the float32 softmax."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from grpo_jax.types import Array

# Finite, so that a row with nothing to attend to gives no NaN; far below any logit.
MASKED = -1e30


def causal_mask(length: int) -> Bool[Array, "T T"]:
    """True where the query at row t may see the key at column s: s <= t."""
    return jnp.tril(jnp.ones((length, length), bool))


def slot_mask(positions_BT: Int[Array, "B T"], slots: int) -> Bool[Array, "B T S"]:
    """True where the query at a position may see a cache slot: slot <= position."""
    return jnp.arange(slots) <= positions_BT[..., None]


def softmax(scores: Float[Array, "... S"], mask: Bool[Array, "... S"], dtype: jnp.dtype) -> Float[Array, "... S"]:
    """Masked softmax over the last dimension, float32 inside, returned in `dtype`."""
    return jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), MASKED), axis=-1).astype(dtype)
