"""Metrics as sums, so that they add across micro-batches and devices and are divided once.

A mean of micro-batch means weighs a token by the micro-batch it happened to fall in. Here every mean travels as a
total and a weight, and least and greatest values travel apart, until `finalize_metrics` divides.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["LossSums", "add_sums", "finalize_metrics", "no_sums", "reduce_sums"]

type Scalars = dict[str, Float[Array, ""]]


class LossSums(NamedTuple):
    """Metrics of a part of a batch, keyed by metric name; a pytree.

    Attributes:
        losses: numerators of the losses, which are means under the loss's own weights.
        loss_weight: their denominator.
        totals: numerators of the means.
        weights: denominators of the means, with the keys of `totals`.
        counts: metrics that are sums and stay sums.
        minima: metrics that are least values.
        maxima: metrics that are greatest values.
        moments: metrics that are effective sample sizes, as [n, Σw, Σw²].
    """

    losses: Scalars
    loss_weight: Float[Array, ""]
    totals: Scalars
    weights: Scalars
    counts: Scalars
    minima: Scalars
    maxima: Scalars
    moments: dict[str, Float[Array, "3"]]


def reduce_sums(stacked: LossSums) -> LossSums:
    """Sums stacked along a new leading axis, as `jax.lax.scan` over micro-batches stacks them, made one."""
    added = jax.tree.map(lambda values: jnp.sum(values, axis=0), stacked)
    return added._replace(
        minima={name: jnp.min(values, axis=0) for name, values in stacked.minima.items()},
        maxima={name: jnp.max(values, axis=0) for name, values in stacked.maxima.items()},
    )


def add_sums(*parts: LossSums) -> LossSums:
    """The sums of all parts of a batch together."""
    return reduce_sums(jax.tree.map(lambda *values: jnp.stack(values), *parts))


def no_sums(like: LossSums) -> LossSums:
    """The sums of no micro-batch at all, with the names and shapes of `like`: what changes nothing that it is added to."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return zeros._replace(
        minima={name: jnp.full(leaf.shape, jnp.inf, leaf.dtype) for name, leaf in like.minima.items()},
        maxima={name: jnp.full(leaf.shape, -jnp.inf, leaf.dtype) for name, leaf in like.maxima.items()},
    )


def _divide(total: Float[Array, ""], weight: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), jnp.nan)


def finalize_metrics(sums: LossSums) -> Scalars:
    """The metrics of the whole batch by name; docs/objectives.md says what each means.

    Over no token (every row dropped, say) the losses and the counts are 0 and everything else, which was not
    measured, is NaN.
    """
    loss_weight = jnp.where(sums.loss_weight > 0, sums.loss_weight, 1.0)
    losses = {name: total / loss_weight for name, total in sums.losses.items()}
    means = {name: _divide(total, sums.weights[name]) for name, total in sums.totals.items()}
    # Kish: (Σw)² / Σw², as a fraction of the n samples.
    sizes = {name: _divide(total**2, n * square) for name, (n, total, square) in sums.moments.items()}
    extremes = {name: jnp.where(jnp.isfinite(value), value, jnp.nan) for name, value in (sums.minima | sums.maxima).items()}
    return {**losses, **means, **sizes, **extremes, **sums.counts}
