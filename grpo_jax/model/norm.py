"""RMSNorm (arXiv 1910.07467), computed in float32."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from grpo_jax.types import Array


class RMSNorm(nn.Module):
    """x / rms(x) * scale over the last dimension; returns the dtype of its input.

    Attributes:
        epsilon: added to the mean square.
        param_dtype: dtype of the scale, which starts at one.
        axis: logical axis name of the normed dimension.
    """

    epsilon: float
    param_dtype: str
    axis: str = "norm"

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        initializer = nn.with_logical_partitioning(nn.initializers.ones_init(), (self.axis,))
        scale: Any = self.param("scale", initializer, (x.shape[-1],), jnp.dtype(self.param_dtype))
        wide = x.astype(jnp.float32)
        inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        return (wide * inverse_rms * scale.astype(jnp.float32)).astype(x.dtype)
