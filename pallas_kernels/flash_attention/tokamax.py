"""Attention by the package tokamax, to compare our kernels with; nothing in this project needs it."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.flash_attention import reference


def flash_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K Hv"],
    *,
    scale: float,
    causal: bool,
    lengths: Int[Array, " B"] | None,
    segments: Int[Array, "B T"] | None,
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """tokamax.dot_product_attention, with its own choice of kernel and its own gradients.

    It gives no log-sum-exp. The reference computes that one, and XLA leaves it out of a program that does not use it: so
    time programs that use `out` alone.
    """
    import tokamax

    mask = None if segments is None else (segments[:, :, None] == segments[:, None, :])[:, None]
    out = tokamax.dot_product_attention(query, key, value, mask=mask, scale=scale, is_causal=causal)
    _, lse = reference.flash_attention(
        query, key, value, scale=scale, causal=causal, lengths=lengths, segments=segments
    )  # fmt: skip
    return out.astype(query.dtype), lse.astype(jnp.float32)
