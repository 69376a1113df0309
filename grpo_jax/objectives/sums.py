"""Metrics as sums, so that they add across micro-batches and devices and are divided once.

A mean of micro-batch means weighs a token by the micro-batch it happened to fall in. Here every mean travels as a
total and a weight, and least and greatest values travel apart, until `finalize_metrics` divides.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["LossSums", "add_sums", "finalize_metrics", "reduce_sums"]

type Scalars = dict[str, Float[Array, ""]]


class LossSums(NamedTuple):
    """Metrics of a part of a batch, keyed by metric name; a pytree.

    Attributes:
        totals: numerators of the means.
        weights: denominators of the means, with the keys of `totals`.
        counts: metrics that are sums and stay sums.
        minima: metrics that are least values.
        maxima: metrics that are greatest values.
        moments: metrics that are effective sample sizes, as [n, Σw, Σw²].
    """

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


def _divide(total: Float[Array, ""], weight: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), 0.0)


def finalize_metrics(sums: LossSums) -> Scalars:
    """The metrics of the whole batch by name; docs/objectives.md says what each means.

    A mean over no token (every row dropped, say) is 0.
    """
    means = {name: _divide(total, sums.weights[name]) for name, total in sums.totals.items()}
    # Kish: (Σw)² / Σw², as a fraction of the n samples.
    sizes = {name: _divide(total**2, n * square) for name, (n, total, square) in sums.moments.items()}
    return {**means, **sizes, **sums.counts, **sums.minima, **sums.maxima}
