"""The checks that MLA decoding makes of its arguments, before anything else."""

from typing import Any

import jax.numpy as jnp

from pallas_kernels.mla_decode.quantize import QUANTIZED_DTYPES

FLOATS = ("float32", "bfloat16", "float16")
PAGE_MULTIPLE = 16  # the least rows that a tile of a matrix unit has


def check_contiguous(
    q_latent: Any,
    q_rope: Any,
    latent: Any,
    rope: Any,
    lengths: Any,
    *,
    scale: float,
    mask: Any,
    latent_scales: Any,
    num_splits: int | None,
) -> None:
    """Raises ValueError unless these are arguments of `mla_decode`."""
    op = "mla_decode"
    _check_queries(op, q_latent, q_rope, scale, mask, num_splits)
    B, _, _, C = q_latent.shape
    _require(
        latent.ndim == 3 and latent.shape[0] == B and latent.shape[2] == C,
        f"{op}: latent must be [B, S, C] with B={B} and C={C} of q_latent, and is {latent.shape}.",
    )
    S = latent.shape[1]
    _check_cache(op, q_rope, latent, rope, latent_scales, f"B={B}, S={S}")
    _check_lengths(op, lengths, B)


def check_paged(
    q_latent: Any, q_rope: Any, latent: Any, rope: Any, block_table: Any, lengths: Any, *,
    scale: float, mask: Any, latent_scales: Any, num_splits: int | None,
) -> None:  # fmt: skip
    """Raises ValueError unless these are arguments of `mla_decode_paged`."""
    op = "mla_decode_paged"
    _check_queries(op, q_latent, q_rope, scale, mask, num_splits)
    B, _, _, C = q_latent.shape
    _require(
        latent.ndim == 3 and latent.shape[2] == C,
        f"{op}: latent_pages must be [pages, page, C] with C={C} of q_latent, and is {latent.shape}.",
    )
    pages, page, _ = latent.shape
    _require(
        pages > 0 and page > 0 and page % PAGE_MULTIPLE == 0,
        f"{op}: there must be pages, of a multiple of {PAGE_MULTIPLE} slots; latent_pages is {latent.shape}.",
    )
    _check_cache(op, q_rope, latent, rope, latent_scales, f"pages={pages}, page={page}")
    _require(
        block_table.ndim == 2 and block_table.shape[0] == B and _integer(block_table),
        f"{op}: block_table must be integers [B, blocks] with B={B}, and is {block_table.dtype} {block_table.shape}.",
    )
    _check_lengths(op, lengths, B)


def check_shared_prefix(q_latent: Any, prefix_latent: Any, prefix_rope: Any, prefix_lengths: Any) -> None:
    """Raises ValueError unless rows can be dealt to prompts; `mla_decode` checks the rest."""
    op = "mla_decode_shared_prefix"
    _require(q_latent.ndim == 4, f"{op}: q_latent must be [B, P, N, C], and is {q_latent.shape}.")
    B = q_latent.shape[0]
    _require(
        prefix_latent.ndim == 3 and prefix_latent.shape[0] > 0 and B % prefix_latent.shape[0] == 0,
        f"{op}: prefix_latent must be [A, S0, C] with A dividing B={B} (row b continues prompt b // (B // A)), "
        f"and is {prefix_latent.shape}.",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _integer(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.integer)


def _check_queries(op: str, q_latent: Any, q_rope: Any, scale: float, mask: Any, num_splits: int | None) -> None:
    _require(
        q_latent.ndim == 4 and q_latent.dtype.name in FLOATS,
        f"{op}: q_latent must be [B, P, N, C] of {', '.join(FLOATS)}, and is {q_latent.dtype} {q_latent.shape}.",
    )
    B, P, N, C = q_latent.shape
    _require(
        q_rope.ndim == 4 and q_rope.shape[:3] == (B, P, N) and q_rope.dtype == q_latent.dtype,
        f"{op}: q_rope must be [B, P, N, R] with B={B}, P={P}, N={N} and the dtype {q_latent.dtype} of q_latent, "
        f"and is {q_rope.dtype} {q_rope.shape}.",
    )
    _require(
        P > 0 and N > 0 and C > 0 and q_rope.shape[3] > 0,
        f"{op}: P, N, C and R must be positive, and q_latent is {q_latent.shape}, q_rope {q_rope.shape}.",
    )
    _require(scale > 0, f"{op}: scale must be positive, and is {scale}; it is (H + R) ** -0.5 of the unabsorbed width.")
    if mask is not None:
        _require(
            mask.shape in ((P, P), (B, P, P)) and mask.dtype == jnp.bool_,
            f"{op}: mask must be bool [P, P] or [B, P, P] with B={B} and P={P} of q_latent, "
            f"and is {mask.dtype} {mask.shape}.",
        )
    _require(
        num_splits is None or num_splits >= 1,
        f"{op}: num_splits must be at least 1, and is {num_splits}; leave it out to have it chosen.",
    )


def _check_cache(op: str, q_rope: Any, latent: Any, rope: Any, latent_scales: Any, leading: str) -> None:
    R, C = q_rope.shape[-1], latent.shape[-1]
    _require(
        rope.shape == (*latent.shape[:2], R) and rope.dtype.name in FLOATS,
        f"{op}: the rotary keys must be [{leading}, R={R}] like the latents and q_rope, of {', '.join(FLOATS)}, "
        f"and are {rope.dtype} {rope.shape}.",
    )
    quantized = latent.dtype.name in QUANTIZED_DTYPES
    _require(
        quantized or latent.dtype.name in FLOATS,
        f"{op}: the latents must be of {', '.join((*FLOATS, *QUANTIZED_DTYPES))}, and are {latent.dtype}.",
    )
    if latent_scales is None:
        _require(
            not quantized, f"{op}: {latent.dtype} latents need latent_scales: quantize_latent gives both, pass its scales."
        )
        return
    _require(
        quantized,
        f"{op}: latent_scales belong to latents of {' or '.join(QUANTIZED_DTYPES)}; leave them out for {latent.dtype}.",
    )
    Z = latent_scales.shape[-1] if latent_scales.ndim else 0
    _require(
        latent_scales.shape == (*latent.shape[:2], Z) and Z > 0 and C % Z == 0 and latent_scales.dtype == jnp.float32,
        f"{op}: latent_scales must be float32 [{leading}, Z] with Z dividing C={C}, "
        f"and are {latent_scales.dtype} {latent_scales.shape}.",
    )


def _check_lengths(op: str, lengths: Any, B: int) -> None:
    _require(
        lengths.shape == (B,) and _integer(lengths),
        f"{op}: lengths must be integers [B] with B={B}, and are {lengths.dtype} {lengths.shape}.",
    )
