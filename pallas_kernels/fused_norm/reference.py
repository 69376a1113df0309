"""Norms in plain jnp, as the other implementations must compute them. Inside everything is float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pallas_kernels.fused_norm.quantized import SMALLEST_SCALE, largest


def rms_norm(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    return _normed(x, weight_D, eps).astype(x.dtype)


def add_rms_norm(
    x: Float[Array, "... D"], residual: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    total = x + residual
    return rms_norm(total, weight_D, eps=eps), total


def rms_norm_gelu(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    return jax.nn.gelu(_normed(x, weight_D, eps), approximate=True).astype(x.dtype)


def rms_norm_quantize(
    x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, dtype: jnp.dtype, eps: float
) -> tuple[Num[Array, "... D"], Float[Array, "..."]]:
    normed = _normed(x, weight_D, eps)
    scale = jnp.max(jnp.abs(normed), axis=-1) / largest(dtype)
    scale = jnp.where(scale >= SMALLEST_SCALE, scale, 0.0)
    steps = normed / jnp.where(scale > 0, scale, jnp.inf)[..., None]
    if jnp.issubdtype(dtype, jnp.integer):
        steps = jnp.round(steps)  # to nearest even; the cast alone would cut towards zero
    return steps.astype(dtype), scale


def _normed(x: Float[Array, "... D"], weight_D: Float[Array, " D"], eps: float) -> Float[Array, "... D"]:
    wide = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return wide * inverse_rms * weight_D.astype(jnp.float32)
