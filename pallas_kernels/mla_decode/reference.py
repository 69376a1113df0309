"""MLA decoding in plain jnp, as the other implementations must compute it.

Products take the queries' dtype and accumulate in float32; the softmax is float32. The exponentials are not divided by
their sum before the product with the latents but after it, where there is less to divide.

Hidden slots may hold any finite numbers, as those of a cache do that began as zeros. (The kernels bear NaN there too. Here a
weight of 0 times NaN would be NaN, and putting zeros in its place would copy the cache at every step.)
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from pallas_kernels.merge import EMPTY
from pallas_kernels.visibility import seen_slots


def mla_decode(
    q_latent_BPNC: Float[Array, "B P N C"],
    q_rope_BPNR: Float[Array, "B P N R"],
    latent_BSC: Num[Array, "B S C"],
    rope_BSR: Float[Array, "B S R"],
    lengths_B: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | None = None,
    latent_scales: Float[Array, "B S Z"] | None = None,
    num_splits: int | None = None,
) -> tuple[Float[Array, "B P N C"], Float[Array, "B P N"]]:
    dtype, P, S = q_latent_BPNC.dtype, q_latent_BPNC.shape[1], latent_BSC.shape[1]
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
    if latent_scales is not None:
        latent_BSC = dequantize(latent_BSC, latent_scales)
    latent_BSC, rope_BSR = latent_BSC.astype(dtype), rope_BSR.astype(dtype)

    def product(equation: str, x: Array, y: Array) -> Array:
        return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32, precision=precision)

    logits_BPNS = product("BPNC,BSC->BPNS", q_latent_BPNC, latent_BSC) + product("BPNR,BSR->BPNS", q_rope_BPNR, rope_BSR)
    sees_BP1S = seen_slots(lengths_B, P, S, mask)[:, :, None]
    logits_BPNS = jnp.where(sees_BP1S, logits_BPNS, EMPTY)
    # Logits are scaled when their maximum has been taken off, so that large ones lose nothing by it.
    # Where nothing is seen every logit is EMPTY, and the exponentials of their differences would be 1.
    highest_BPN1 = jnp.max(logits_BPNS, axis=-1, keepdims=True, initial=EMPTY)
    weights_BPNS = jnp.where(sees_BP1S, jnp.exp((logits_BPNS - highest_BPN1) * scale), 0)
    sum_BPN1 = jnp.sum(weights_BPNS, axis=-1, keepdims=True)

    read_BPNC = product("BPNS,BSC->BPNC", weights_BPNS.astype(dtype), latent_BSC)
    empty_BPN1 = sum_BPN1 == 0
    sum_BPN1 = jnp.where(empty_BPN1, 1, sum_BPN1)
    lse_BPN = jnp.where(empty_BPN1, EMPTY, highest_BPN1 * scale + jnp.log(sum_BPN1))[..., 0]
    return (read_BPNC * (1 / sum_BPN1)).astype(dtype), lse_BPN


def mla_decode_paged(
    q_latent_BPNC: Float[Array, "B P N C"],
    q_rope_BPNR: Float[Array, "B P N R"],
    latent_pages: Num[Array, "pages page C"],
    rope_pages: Float[Array, "pages page R"],
    block_table: Int[Array, "B blocks"],
    lengths_B: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | None = None,
    latent_scales: Float[Array, "pages page Z"] | None = None,
    num_splits: int | None = None,
) -> tuple[Float[Array, "B P N C"], Float[Array, "B P N"]]:
    B = block_table.shape[0]

    def gather(pages: Array) -> Array:
        # Entries past a row's length may be any number; "clip" reads some page, which the length then hides.
        return jnp.take(pages, block_table, axis=0, mode="clip").reshape(B, -1, pages.shape[-1])

    return mla_decode(
        q_latent_BPNC, q_rope_BPNR, gather(latent_pages), gather(rope_pages), lengths_B,
        scale=scale, mask=mask, latent_scales=None if latent_scales is None else gather(latent_scales),
    )  # fmt: skip


def dequantize(latent: Num[Array, "... C"], scales: Float[Array, "... Z"]) -> Float[Array, "... C"]:
    """Element c times scale c // (C // Z), in float32."""
    tiles = latent.astype(jnp.float32).reshape(*scales.shape, -1)
    return (tiles * scales[..., None]).reshape(latent.shape)
