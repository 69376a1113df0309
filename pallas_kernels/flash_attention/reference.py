"""Attention in plain jnp, as the other implementations must compute it; softmax in float32.

Heads lead in the products, because XLA's CPU backend multiplies contiguous matrices only, and the queries of one group stand
together as the rows of one matrix per key head, so that keys and values are never repeated.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Added to the logits of hidden keys, and the log-sum-exp of a query that sees nothing. Finite: -inf - -inf is NaN.
HIDDEN = -1e30


def flash_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K Hv"],
    *,
    scale: float,
    causal: bool,
    lengths: Int[Array, " B"] | None,
    segments: Int[Array, "B T"] | None,
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    B, T, N, H = query.shape
    S, K = key.shape[1:3]
    group = N // K
    if lengths is not None:
        # What lies past a length may be NaN, which a weight of zero would not cancel.
        filled = (jnp.arange(S) < lengths[:, None])[:, :, None, None]
        key, value = jnp.where(filled, key, 0), jnp.where(filled, value, 0)
        answered = (filled if T == S else (lengths > 0)[:, None, None, None])[..., 0]
        query = jnp.where(answered[..., None], query, 0)
    if query.dtype == jnp.float32:
        # There is less to scale in the queries than in the logits; with 16 bits it would cost digits.
        query, scale = query * scale, 1.0
    precision = jax.lax.Precision.HIGHEST if query.dtype == jnp.float32 else None
    query_BKMH = query.reshape(B, T, K, group, H).transpose(0, 2, 3, 1, 4).reshape(B, K, group * T, H)
    logits_BKMS = jnp.einsum("BKMH,BSKH->BKMS", query_BKMH, key, preferred_element_type=jnp.float32, precision=precision)
    logits = logits_BKMS.reshape(B, K, group, T, S) * scale
    bias = _bias(T, S, causal, lengths, segments)
    if bias is not None:
        logits = logits + bias[:, None, None]
    # The largest logit cancels out of numerators and sum alike, so it has no gradient of its own.
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True, initial=HIDDEN))
    numerators = jnp.exp(logits - largest)
    total = jnp.sum(numerators, axis=-1, keepdims=True)
    weights_BKMS = numerators.astype(value.dtype).reshape(B, K, group * T, S)
    read_BKMV = jnp.einsum("BKMS,BSKV->BKMV", weights_BKMS, value, preferred_element_type=jnp.float32, precision=precision)
    # Dividing after the product leaves less to divide.
    read_BKgTV = read_BKMV.reshape(B, K, group, T, -1) * (1 / total)
    out = read_BKgTV.transpose(0, 3, 1, 2, 4).reshape(B, T, N, -1).astype(query.dtype)
    lse = (largest + jnp.log(total))[..., 0].transpose(0, 3, 1, 2).reshape(B, T, N)
    if lengths is not None:
        out, lse = jnp.where(answered[..., None], out, 0), jnp.where(answered, lse, HIDDEN)
    return out, lse


def _bias(
    T: int, S: int, causal: bool, lengths: Int[Array, " B"] | None, segments: Int[Array, "B T"] | None
) -> Float[Array, "#B #T S"] | None:
    """What is added to the logits: [1, T, S] for causal attention alone, which is made once for all rows."""
    seen: Bool[Array, "#B #T S"] | None = jnp.tril(jnp.ones((1, T, S), bool)) if causal else None
    for more in (
        None if lengths is None else (jnp.arange(S) < lengths[:, None])[:, None],
        None if segments is None else segments[:, :, None] == segments[:, None, :],
    ):
        if more is not None:
            seen = more if seen is None else seen & more
    return None if seen is None else jnp.where(seen, jnp.float32(0), jnp.float32(HIDDEN))
