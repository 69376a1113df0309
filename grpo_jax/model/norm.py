"""RMSNorm (arXiv 1910.07467), computed in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from grpo_jax.model.config import ModelConfig
from grpo_jax.model.linear import declare
from grpo_jax.types import Array


class RMSNorm(nn.Module):
    """x / rms(x) * scale over the last dimension; returns the dtype of its input."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale = declare(self, self.config, "scale", (x.shape[-1],), ("norm",), mean=1.0)
        wide = x.astype(jnp.float32)
        inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.config.norm_eps)
        return (wide * inverse_rms * scale.astype(jnp.float32)).astype(x.dtype)
