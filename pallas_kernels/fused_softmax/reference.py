"""Softmax in plain jnp, as the other implementations must compute it. Inside everything is float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def softmax(x: Float[Array, "... V"]) -> Float[Array, "... V"]:
    wide = x.astype(jnp.float32)
    # Any number may be subtracted; the greatest keeps exp within range. A row of -inf subtracts a finite one: no NaN.
    lowest = float(jnp.finfo(jnp.float32).min)
    greatest = jax.lax.stop_gradient(jnp.maximum(jnp.max(wide, axis=-1, keepdims=True), lowest))
    exponentials = jnp.exp(wide - greatest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return (exponentials / jnp.where(total == 0, 1.0, total)).astype(x.dtype)
