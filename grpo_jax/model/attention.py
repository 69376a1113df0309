"""Softmax attention on matrices that lie contiguous: the core that training, prefill and decoding share."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from grpo_jax.model.segments import same_segment
from grpo_jax.types import Array

# Added to the logits of hidden keys. Finite, so that a row that sees nothing gives no NaN; far below any logit.
HIDDEN = -1e30


def causal_bias(length: int) -> Float[Array, "1 T T"]:
    """Hides the key at column s from the query at row t unless s <= t."""
    return _bias(_causal(length))


def segment_bias(segments_BT: Int[Array, "B T"]) -> Float[Array, "B T T"]:
    """The same for packed rows: a key of another segment is hidden as well."""
    return _bias(_causal(segments_BT.shape[1]) & same_segment(segments_BT))


def slot_bias(positions_BT: Int[Array, "B T"], slots: int) -> Float[Array, "B T S"]:
    """Hides a cache slot from the query at a position unless slot <= position."""
    return _bias(jnp.arange(slots) <= positions_BT[..., None])


def _causal(length: int) -> Bool[Array, "1 T T"]:
    return jnp.tril(jnp.ones((1, length, length), bool))


def _bias(seen: Bool[Array, "B T S"]) -> Float[Array, "B T S"]:
    return jnp.where(seen, jnp.float32(0), jnp.float32(HIDDEN))


def exponentials(logits: Float[Array, "... S"]) -> tuple[Float[Array, "... S"], Float[Array, "... 1"]]:
    """The numerators of a softmax over the last dimension, and one over their sum; float32.

    The caller multiplies by the second after the product with the values, where there is less to multiply.
    """
    # The largest logit cancels out of numerator and sum alike, so it has no gradient of its own.
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    numerators = jnp.exp(shifted)
    return numerators, 1 / jnp.sum(numerators, axis=-1, keepdims=True)


def attend(
    query_BTNH: Float[Array, "B T N H"],
    key_BKSH: Float[Array, "B K S H"],
    value_BKSV: Float[Array, "B K S V"],
    bias_BTS: Float[Array, "#B T S"],
) -> Float[Array, "B T N V"]:
    """softmax(q k^T + bias) v, where query head n reads key/value head n // (N / K); queries come scaled.

    The queries of one group at all T positions stand together as the rows of one matrix per key head, so keys and
    values are never repeated. Heads lead in the products: XLA's CPU backend multiplies contiguous matrices only.
    """
    B, T, N, H = query_BTNH.shape
    K, S = key_BKSH.shape[1:3]
    group = N // K
    query_BKgTH = query_BTNH.reshape(B, T, K, group, H).transpose(0, 2, 3, 1, 4)
    query_BKMH = query_BKgTH.reshape(B, K, group * T, H)
    logits_BKMS = jnp.einsum("BKMH,BKSH->BKMS", query_BKMH, key_BKSH, preferred_element_type=jnp.float32)
    logits_BKgTS = logits_BKMS.reshape(B, K, group, T, S) + bias_BTS[:, None, None]
    weights_BKgTS, inverse_sum = exponentials(logits_BKgTS)
    weights_BKMS = weights_BKgTS.astype(value_BKSV.dtype).reshape(B, K, group * T, S)
    read_BKMV = jnp.einsum("BKMS,BKSV->BKMV", weights_BKMS, value_BKSV, preferred_element_type=jnp.float32)
    read_BKgTV = read_BKMV.reshape(B, K, group, T, -1) * inverse_sum
    return read_BKgTV.transpose(0, 3, 1, 2, 4).reshape(B, T, N, -1).astype(query_BTNH.dtype)


def heads_lead(x_BSKH: Float[Array, "B S K H"]) -> Float[Array, "B K S H"]:
    """Moves heads before tokens."""
    return x_BSKH.transpose(0, 2, 1, 3)
