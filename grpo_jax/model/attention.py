"""Attention over a span, which both attention modules train with, and the pieces that decoding shares with it."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from grpo_jax.types import Array

# Finite, so that a row with nothing to attend to gives no NaN; far below any logit.
MASKED = -1e30


def causal_mask(length: int) -> Bool[Array, "T S"]:
    """True where the query at row t may see the key at column s: s <= t."""
    return jnp.tril(jnp.ones((length, length), bool))


def slot_mask(positions_BT: Int[Array, "B T"], slots: int) -> Bool[Array, "B T S"]:
    """True where the query at a position may see a cache slot: slot <= position."""
    return jnp.arange(slots) <= positions_BT[..., None]


def softmax(scores: Float[Array, "... S"], mask: Bool[Array, "... S"], dtype: jnp.dtype) -> Float[Array, "... S"]:
    """Masked softmax over the last dimension, float32 inside, returned in `dtype`."""
    return jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), MASKED), axis=-1).astype(dtype)


def attend(
    query_BTNH: Float[Array, "B T N H"],
    key_BKSH: Float[Array, "B K S H"],
    value_BKSV: Float[Array, "B K S V"],
    mask_BTS: Bool[Array, "#B T S"],
) -> Float[Array, "B T N V"]:
    """softmax(q k^T) v, where query head n reads key/value head n // (N / K); queries come scaled.

    The queries of one group and all T positions stand together as the rows of one matrix per key head, so keys and
    values are never repeated. Heads lead before the products: XLA's CPU backend multiplies contiguous matrices only.
    """
    B, T, N, H = query_BTNH.shape
    K, S = key_BKSH.shape[1:3]
    group = N // K
    query_BKgTH = query_BTNH.reshape(B, T, K, group, H).transpose(0, 2, 3, 1, 4)
    query_BKMH = query_BKgTH.reshape(B, K, group * T, H)
    scores_BKMS = jnp.einsum("BKMH,BKSH->BKMS", query_BKMH, key_BKSH, preferred_element_type=jnp.float32)
    weights_BKgTS = softmax(scores_BKMS.reshape(B, K, group, T, S), mask_BTS[:, None, None], query_BTNH.dtype)
    read_BKMV = jnp.einsum("BKMS,BKSV->BKMV", weights_BKgTS.reshape(B, K, group * T, S), value_BKSV)
    return read_BKMV.reshape(B, K, group, T, -1).transpose(0, 3, 1, 2, 4).reshape(B, T, N, -1)


def heads_lead(x_BSKH: Float[Array, "B S K H"]) -> Float[Array, "B K S H"]:
    """Moves heads before tokens."""
    return x_BSKH.transpose(0, 2, 1, 3)
