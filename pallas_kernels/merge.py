"""Joining partial attentions over disjoint keys by their log-sum-exps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

EMPTY = -1e30  # the log-sum-exp of no keys; -inf would give NaN where two are subtracted


def merge_lse(
    outs: Float[Array, "M *batch C"], lses: Float[Array, "M *batch"]
) -> tuple[Float[Array, "*batch C"], Float[Array, "*batch"]]:
    """What attention over all keys gives, from its results over M disjoint sets of them.

    out = sum_m exp(lse_m - lse) out_m with lse = log sum_m exp(lse_m)

    Args:
        outs: each part's softmax-weighted mean.
        lses: each part's log-sum-exp of its logits, -1e30 where the part has no keys. Such a part weighs nothing, but its
            `outs` must be finite.

    Returns:
        The whole's mean in the dtype of `outs` and its log-sum-exp in float32; 0 and -1e30 where all parts are empty.

    Raises:
        ValueError: there is no part, or the shapes do not belong together.
    """
    if lses.ndim < 1 or lses.shape[0] < 1 or outs.shape[:-1] != lses.shape:
        raise ValueError(
            f"merge_lse: outs {outs.shape} and lses {lses.shape} must be [M, ..., C] and [M, ...] with at least one part M: "
            "stack the parts along the first dimension."
        )
    highest = jnp.max(lses, axis=0).astype(jnp.float32)
    weights = _weights(lses, highest)
    total = jnp.sum(weights, axis=0)
    summed = jnp.sum(weights[..., None] * outs, axis=0)
    return _finish(summed, total, highest, outs.dtype)


def merge_lse_across(
    out: Float[Array, "*batch C"], lse: Float[Array, "*batch"], axis_name: str | tuple[str, ...]
) -> tuple[Float[Array, "*batch C"], Float[Array, "*batch"]]:
    """`merge_lse` over the devices of a mesh axis, each with its own keys: for caches sharded along the sequence.

    Inside `shard_map`. Every device gets the whole.

    Args:
        out: this device's softmax-weighted mean.
        lse: its log-sum-exp, -1e30 where it has no keys.
        axis_name: the mesh axis, or several.
    """
    highest = jax.lax.pmax(lse.astype(jnp.float32), axis_name)
    weight = _weights(lse, highest)
    total = jax.lax.psum(weight, axis_name)
    summed = jax.lax.psum(weight[..., None] * out, axis_name)
    return _finish(summed, total, highest, out.dtype)


def _weights(lses: Array, highest: Array) -> Array:
    return jnp.where(lses > EMPTY / 2, jnp.exp(lses - highest), 0.0)


def _finish(summed: Array, total: Array, highest: Array, dtype: jnp.dtype) -> tuple[Array, Array]:
    empty = total == 0
    total = jnp.where(empty, 1.0, total)
    return (summed / total[..., None]).astype(dtype), jnp.where(empty, EMPTY, highest + jnp.log(total))
