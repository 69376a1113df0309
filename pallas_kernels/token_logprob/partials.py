"""What is known of softmax(logits) from a part of the vocabulary, and how parts become the whole.

A part is a tile, a split of one device's tiles, or a device's slice of the vocabulary. With z the logits of a part, m their
greatest, s = Σ e^(z − m) and u = Σ e^(z − m) (z − m), parts merge by

    m = max m_i    s = Σ s_i e^(m_i − m)    u = Σ e^(m_i − m) (u_i + s_i (m_i − m))

and the whole has log-sum-exp m + log s and entropy log s − u / s. (The online softmax of arXiv 1805.02867, carried on to
the entropy.)
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Where a logit is missing: far below any logit, and finite, so that no difference of two is NaN.
MISSING = -1e30


class Partials(NamedTuple):
    """A part's sums, in float32, a number a row, with splits of the vocabulary as a leading dimension where there are any.

    Attributes:
        greatest: m, the greatest logit.
        total: s = Σ e^(z − m).
        weighted: u = Σ e^(z − m) (z − m).
        target: the target's logit where the target is in this part, else 0.
        top_logits: the greatest logits, in falling order.
        top_ids: where they stand; of equal logits the lowest id comes first.
    """

    greatest: Float[Array, "*S M"]
    total: Float[Array, "*S M"]
    weighted: Float[Array, "*S M"]
    target: Float[Array, "*S M"]
    top_logits: Float[Array, "*S M n"]
    top_ids: Int[Array, "*S M n"]


def merge(parts: Partials, top_n: int) -> Partials:
    """Parts that lie along the leading dimension, in the order of their ids, as one."""
    sums = _merge_sums(parts, lambda values: jnp.max(values, axis=0), lambda values: jnp.sum(values, axis=0))
    return Partials._make((*sums, *_merge_top(parts.top_logits, parts.top_ids, top_n)))


def merge_over(axis: str, part: Partials, top_n: int) -> Partials:
    """Every device's part along a mesh axis, in the order of their ids, as one that all of them hold."""
    sums = _merge_sums(part, lambda values: jax.lax.pmax(values, axis), lambda values: jax.lax.psum(values, axis))
    if not top_n:
        return Partials._make((*sums, part.top_logits, part.top_ids))
    top_logits, top_ids = (jax.lax.all_gather(values, axis, to="invarying") for values in (part.top_logits, part.top_ids))
    return Partials._make((*sums, *_merge_top(top_logits, top_ids, top_n)))


def checks_types(axis: str) -> bool:
    """Whether the `shard_map` around this tracks which values vary over the axis (its argument `check_vma`)."""
    return axis in jax.typeof(jax.lax.axis_index(axis)).mat.varying


def varying_as(values: Array, *others: Array, but: str | None = None) -> Array:
    """`values`, for `shard_map` to take as varying over every mesh axis over which one of `others` does, `but` left out.

    Its transpose is the sum over those axes.
    """
    axes = {axis for other in others for axis in jax.typeof(other).mat.varying} - {but}
    missing = tuple(sorted(axes - set(jax.typeof(values).mat.varying)))
    return jax.lax.pcast(values, missing, to="varying") if missing else values


def _merge_sums(
    parts: Partials, greatest_of: Callable[[Array], Array], sum_of: Callable[[Array], Array]
) -> tuple[Array, ...]:
    greatest = greatest_of(parts.greatest)
    below = parts.greatest - greatest
    scale = jnp.exp(below)
    total = sum_of(scale * parts.total)
    weighted = sum_of(scale * (parts.weighted + parts.total * below))
    return greatest, total, weighted, sum_of(parts.target)


def _merge_top(top_logits: Float[Array, "S M n"], top_ids: Int[Array, "S M n"], top_n: int) -> tuple[Array, Array]:
    splits, M, candidates = top_logits.shape
    if not top_n:
        return jnp.zeros((M, 0), jnp.float32), jnp.zeros((M, 0), jnp.int32)
    # lax.top_k takes the first of equals: within a part the lowest id is first, and parts lie in the order of their ids.
    top_logits, top_ids = (jnp.moveaxis(values, 0, 1).reshape(M, splits * candidates) for values in (top_logits, top_ids))
    top_logits, places = jax.lax.top_k(top_logits, top_n)
    return top_logits, jnp.take_along_axis(top_ids, places, axis=1)
