"""Decode attention in plain jnp, as the kernels must compute it; also what a CPU run uses.

The queries of one group at all P positions stand together as the rows of one matrix per key head, so keys and values are
never repeated. Heads lead in the products: XLA's CPU backend multiplies contiguous matrices only.

Hidden slots may hold any finite numbers, as those of a cache do that began as zeros. (The kernels bear NaN there too. Here a
weight of 0 times NaN would be NaN, and putting zeros in its place would copy the cache at every step.)
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.merge import EMPTY
from pallas_kernels.visibility import seen_slots


def gqa_decode(
    query: Float[Array, "B P N H"],
    key: Array,
    value: Array,
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    key_scales: Float[Array, "B K S"] | None = None,
    value_scales: Float[Array, "B K S"] | None = None,
    num_splits: int | None = None,
) -> tuple[Float[Array, "B P N Hv"], Float[Array, "B P N"]]:
    """The cache is read in one piece, whatever num_splits."""
    B, P, N, H = query.shape
    K, S = key.shape[1:3]
    group = N // K
    precision = jax.lax.Precision.HIGHEST if query.dtype == jnp.float32 else None
    seen_BPS = seen_slots(lengths, P, S, mask)
    query_BKMH = query.reshape(B, P, K, group, H).transpose(0, 2, 3, 1, 4).reshape(B, K, group * P, H)
    logits_BKMS = scale * jnp.einsum(
        "BKMH,BKSH->BKMS", query_BKMH, key.astype(query.dtype),
        preferred_element_type=jnp.float32, precision=precision,
    )  # fmt: skip
    if key_scales is not None:
        logits_BKMS = logits_BKMS * key_scales[:, :, None]
    logits_BKgPS = jnp.where(seen_BPS[:, None, None], logits_BKMS.reshape(B, K, group, P, S), EMPTY)
    greatest_BKgP1 = jnp.max(logits_BKgPS, axis=-1, keepdims=True, initial=EMPTY)
    # Where nothing is seen, every difference is 0 and every weight would be 1.
    weights_BKgPS = jnp.exp(logits_BKgPS - jnp.maximum(greatest_BKgP1, EMPTY / 2))
    sums_BKgP1 = jnp.sum(weights_BKgPS, axis=-1, keepdims=True)
    weights_BKMS = weights_BKgPS.reshape(B, K, group * P, S)
    if value_scales is not None:
        # A slot that no query sees may hold anything, in the scales as well.
        weights_BKMS = weights_BKMS * jnp.where(jnp.any(seen_BPS, axis=1)[:, None], value_scales, 0)[:, :, None]
    read_BKMV = jnp.einsum(
        "BKMS,BKSV->BKMV", weights_BKMS.astype(query.dtype), value.astype(query.dtype),
        preferred_element_type=jnp.float32, precision=precision,
    )  # fmt: skip
    some = sums_BKgP1 > 0
    sums_BKgP1 = jnp.where(some, sums_BKgP1, 1)
    Hv = value.shape[3]
    out_BKgPV = read_BKMV.reshape(B, K, group, P, Hv) / sums_BKgP1
    lse_BKgP = jnp.where(some, greatest_BKgP1 + jnp.log(sums_BKgP1), EMPTY)[..., 0]
    out = out_BKgPV.transpose(0, 3, 1, 2, 4).reshape(B, P, N, Hv).astype(query.dtype)
    return out, lse_BKgP.transpose(0, 3, 1, 2).reshape(B, P, N)


def gqa_decode_paged(
    query: Float[Array, "B P N H"],
    key_pages: Array,
    value_pages: Array,
    block_table: Int[Array, "B blocks"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    key_scales: Float[Array, "pages K page"] | None = None,
    value_scales: Float[Array, "pages K page"] | None = None,
    num_splits: int | None = None,
) -> tuple[Float[Array, "B P N Hv"], Float[Array, "B P N"]]:
    """Gathers each row's pages into one piece."""

    def gathered(pages: Array | None) -> Array | None:
        if pages is None:
            return None
        rows = jnp.moveaxis(pages[jnp.clip(block_table, 0, pages.shape[0] - 1)], 2, 1)  # [B, K, blocks, page, ...]
        return rows.reshape(*rows.shape[:2], -1, *rows.shape[4:])

    key, value = gathered(key_pages), gathered(value_pages)
    assert key is not None and value is not None
    return gqa_decode(
        query, key, value, lengths, scale=scale, mask=mask,
        key_scales=gathered(key_scales), value_scales=gathered(value_scales),
    )  # fmt: skip
