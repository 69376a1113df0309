"""Log-ratios of probabilities, held within a range in which their exponentials are finite."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["LOG_RATIO_LIMIT", "beyond_limit", "saturate"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held within ± this before they are exponentiated: exp(20) is 4.9e8, far from float32's end."""


@jax.custom_jvp
def saturate(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`log_ratio` held within ±LOG_RATIO_LIMIT, with the gradient of the identity.

    The exponential that follows then neither overflows nor loses its gradient outside the range: the gradient is
    the boundary's, finite and of the right sign, where that of `clip` would be zero and leave the very tokens that
    went furthest without a pull back. NaN stays NaN.
    """
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@saturate.defjvp
def _saturate_jvp(primals, tangents):
    return saturate(primals[0]), tangents[0]


def beyond_limit(log_ratio: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Where `saturate` holds a value back."""
    return jnp.abs(log_ratio) > LOG_RATIO_LIMIT
