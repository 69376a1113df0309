"""Norms in plain jnp, as the other implementations must compute them. Inside everything is float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    wide = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * inverse_rms * weight_D.astype(jnp.float32)).astype(x.dtype)
