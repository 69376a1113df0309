"""Decoding with multi-head latent attention: queries of a few new tokens against a cache of latents.

In the absorbed form (DeepSeek-V2, arXiv 2405.04434) all query heads read one key/value head: the key of a slot is its latent
(width C) and its rotary key (width R), its value is the latent again. So a cache of C + R numbers a token is read once for
all heads.

    logits[b,p,n,s] = scale * (q_latent[b,p,n] . latent[b,s] + q_rope[b,p,n] . rope[b,s])
    out[b,p,n]      = sum over s of softmax(logits)[s] * latent[b,s]

Decoding is not differentiated: these ops have no gradients.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.merge import merge_lse
from pallas_kernels.mla_decode import support
from pallas_kernels.mla_decode.arguments import check_contiguous, check_paged, check_shared_prefix
from pallas_kernels.mla_decode.quantize import quantize_latent

__all__ = [
    "MLA_DECODE",
    "MLA_DECODE_PAGED",
    "mla_decode",
    "mla_decode_paged",
    "mla_decode_shared_prefix",
    "quantize_latent",
]

MLA_DECODE = (
    Implementation(
        name="gpu_triton", platform="gpu", module="pallas_kernels.mla_decode.gpu_triton", function="mla_decode",
        package="jax_triton", refuses=support.gpu_triton_refuses,
    ),
    Implementation(
        name="gpu_mosaic", platform="gpu", module="pallas_kernels.mla_decode.gpu_mosaic", function="mla_decode",
        by_default=False, refuses=support.gpu_mosaic_refuses,
    ),
    Implementation(
        name="tpu", platform="tpu", module="pallas_kernels.mla_decode.tpu", function="mla_decode",
        refuses=support.tpu_refuses,
    ),
    Implementation(name=REFERENCE, module="pallas_kernels.mla_decode.reference", function="mla_decode"),
)  # fmt: skip

MLA_DECODE_PAGED = (
    Implementation(
        name="gpu_triton", platform="gpu", module="pallas_kernels.mla_decode.gpu_triton", function="mla_decode_paged",
        package="jax_triton", refuses=support.gpu_triton_refuses_paged,
    ),
    Implementation(
        name="tpu", platform="tpu", module="pallas_kernels.mla_decode.tpu", function="mla_decode_paged",
        refuses=support.tpu_refuses_paged,
    ),
    Implementation(name=REFERENCE, module="pallas_kernels.mla_decode.reference", function="mla_decode_paged"),
)  # fmt: skip

Result = tuple[Float[Array, "B P N C"], Float[Array, "B P N"]]


def mla_decode(
    q_latent: Float[Array, "B P N C"],
    q_rope: Float[Array, "B P N R"],
    latent: Num[Array, "B S C"],
    rope: Float[Array, "B S R"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    latent_scales: Float[Array, "B S Z"] | None = None,
    num_splits: int | None = None,
    impl: str | None = None,
) -> Result:
    """Attention of P new tokens a row to the row's cache, in which they already stand.

    A row's P query tokens are its last: they sit in slots [length - P, length). Every query sees the slots before them.
    Query p sees slot length - P + j where mask[b, p, j]; without a mask where j <= p. Slots from `length` on are never
    seen, and may hold anything, NaN included. A query that sees no slot at all (its row is empty, or shorter than P so that
    its own slot does not exist) gives out = 0 and log-sum-exp = -1e30.

    Args:
        q_latent: queries against the latents: q_nope W_key^T. float32, bfloat16 or float16.
        q_rope: rotated queries, of the same dtype.
        latent: the cache's latents: a float dtype (brought to the queries' dtype on chip), or int8 or float8_e4m3fn
            with `latent_scales`.
        rope: the cache's rotated keys, of a float dtype.
        lengths: tokens of each row in the cache, the P new ones included; taken as clamped to [0, S].
        scale: multiplies the logits; positive. It belongs to the width before absorption: (H + R) ** -0.5.
        mask: which of the new tokens see which, as [query, key]: the tree of a speculative verification. One for all rows,
            or one a row. Causal by default.
        latent_scales: float32 scales of a quantized cache, one for C // Z neighbouring elements of a slot: element c
            stands for latent[b, s, c] * latent_scales[b, s, c // (C // Z)].
        num_splits: into how many parts a GPU kernel cuts each row, to be worked on side by side; chosen from the shapes by
            default. It changes the order of sums, nothing else. Other implementations ignore it.
        impl: forces an implementation: gpu_triton, gpu_mosaic, tpu or reference.

    Returns:
        The read latents in q_latent's dtype, and the float32 log-sum-exp of the logits, by which results over disjoint
        slots merge (`merge_lse`).

    Raises:
        ValueError: shapes or dtypes do not fit together, or `impl` cannot serve them.
    """
    check_contiguous(
        q_latent, q_rope, latent, rope, lengths,
        scale=scale, mask=mask, latent_scales=latent_scales, num_splits=num_splits,
    )  # fmt: skip
    lengths = jnp.clip(lengths, 0, latent.shape[1]).astype(jnp.int32)
    arguments = (q_latent, q_rope, latent, rope, lengths)
    options = _options(q_latent, scale, mask, latent_scales, num_splits)
    return choose("mla_decode", MLA_DECODE, impl, *arguments, **options).load()(*arguments, **options)


def mla_decode_paged(
    q_latent: Float[Array, "B P N C"],
    q_rope: Float[Array, "B P N R"],
    latent_pages: Num[Array, "pages page C"],
    rope_pages: Float[Array, "pages page R"],
    block_table: Int[Array, "B blocks"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    latent_scales: Float[Array, "pages page Z"] | None = None,
    num_splits: int | None = None,
    impl: str | None = None,
) -> Result:
    """`mla_decode` on a cache that lies in pages: slot s of row b is slot s % page of page block_table[b, s // page].

    Args:
        q_latent: as in `mla_decode`.
        q_rope: likewise.
        latent_pages: latents of all rows; `page` is a multiple of 16.
        rope_pages: rotated keys.
        block_table: the pages of each row in order. Entries of blocks past the row's length are never followed, and may
            hold anything.
        lengths: as in `mla_decode`, with S = blocks * page.
        scale: as in `mla_decode`.
        mask: likewise.
        latent_scales: scales of quantized latents, in pages as they are.
        num_splits: as in `mla_decode`.
        impl: gpu_triton, tpu or reference.

    Returns:
        As `mla_decode`.

    Raises:
        ValueError: shapes or dtypes do not fit together, or `impl` cannot serve them.
    """
    check_paged(
        q_latent, q_rope, latent_pages, rope_pages, block_table, lengths,
        scale=scale, mask=mask, latent_scales=latent_scales, num_splits=num_splits,
    )  # fmt: skip
    lengths = jnp.clip(lengths, 0, block_table.shape[1] * latent_pages.shape[1]).astype(jnp.int32)
    arguments = (q_latent, q_rope, latent_pages, rope_pages, block_table.astype(jnp.int32), lengths)
    options = _options(q_latent, scale, mask, latent_scales, num_splits)
    return choose("mla_decode_paged", MLA_DECODE_PAGED, impl, *arguments, **options).load()(*arguments, **options)


def _options(
    q_latent: Array, scale: float, mask: Array | None, latent_scales: Array | None, num_splits: int | None
) -> dict[str, Any]:
    """What implementations get: a mask is always one a row."""
    B, P = q_latent.shape[:2]
    mask_BPP = None if mask is None else jnp.broadcast_to(mask, (B, P, P))
    return {"scale": scale, "mask": mask_BPP, "latent_scales": latent_scales, "num_splits": num_splits}


def mla_decode_shared_prefix(
    q_latent: Float[Array, "B P N C"],
    q_rope: Float[Array, "B P N R"],
    prefix_latent: Float[Array, "A S0 C"],
    prefix_rope: Float[Array, "A S0 R"],
    prefix_lengths: Int[Array, " A"],
    latent: Float[Array, "B S C"],
    rope: Float[Array, "B S R"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    impl: str | None = None,
) -> Result:
    """`mla_decode` where groups of rows continue one prompt, whose cache is stored once and read once for the group.

    With A prompts and G = B // A samples of each, row b continues prompt b // G. Its cache is the prompt's followed by its
    own, and every query sees all of the prompt's. A prompt's slots are read once for the G * P * N queries of its group;
    the two partial attentions merge by their log-sum-exps (as in Hydragen, arXiv 2402.05099).

    Args:
        q_latent: as in `mla_decode`.
        q_rope: likewise.
        prefix_latent: latents of the prompts.
        prefix_rope: their rotated keys.
        prefix_lengths: their lengths, taken as clamped to [0, S0].
        latent: latents of what each row added, the P new tokens included.
        rope: rotated keys of it.
        lengths: its length; the prompt does not count.
        scale: as in `mla_decode`.
        mask: likewise.
        impl: an implementation of `mla_decode`.

    Returns:
        As `mla_decode`.

    Raises:
        ValueError: shapes or dtypes do not fit together, or `impl` cannot serve them.
    """
    check_shared_prefix(q_latent, prefix_latent, prefix_rope, prefix_lengths)
    B, P, N, C = q_latent.shape
    A = prefix_latent.shape[0]

    def group(query: Array) -> Array:
        # One query token with the group's G * P * N queries for heads: it stands in the prompt's last slot, so sees all.
        return query.reshape(A, 1, -1, query.shape[-1])

    prefix_out, prefix_lse = mla_decode(
        group(q_latent),
        group(q_rope),
        prefix_latent,
        prefix_rope,
        prefix_lengths,
        scale=scale,
        impl=impl,
    )
    out, lse = mla_decode(q_latent, q_rope, latent, rope, lengths, scale=scale, mask=mask, impl=impl)
    merged, lse = merge_lse(jnp.stack([prefix_out.reshape(B, P, N, C), out]), jnp.stack([prefix_lse.reshape(B, P, N), lse]))
    return merged.astype(q_latent.dtype), lse
