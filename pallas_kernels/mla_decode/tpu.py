"""MLA decoding as a Pallas TPU kernel: a row's latents stream through VMEM once, for logits and values alike.

The grid goes over rows, tiles of queries and blocks of slots. Lengths (and the block table) are scalars in SMEM ahead of the
grid, and the index maps stop at a row's last block: nothing past a length is fetched. One core reads a row in order, so any
`num_splits` gives the same.

All queries of a row are the rows of one matrix (row p * N + n), as they read the same latents. Rotary keys are narrower than
the 128 lanes, and XLA lays such arrays out with the slots along the lanes: the contiguous cache's are taken as [B, R, S],
which is that memory unchanged. So are the scales of a quantized cache, as [B, Z, S].
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.decode_tpu import LANES, allowed_rows, block_index, slots_of_block, visible
from pallas_kernels.merge import EMPTY

ROWS = 256  # queries of a tile at most: latents are then read once for 256 queries


def _dequantized(latent: Float[Array, "slots C"], scales: Float[Array, "Z slots"]) -> Float[Array, "slots C"]:
    """Each tile of C // Z latents times its slot's scale, in float32."""
    wide, down = latent.astype(jnp.float32), scales.T
    Z = down.shape[1]
    width = wide.shape[1] // Z
    return jnp.concatenate([wide[:, z * width : (z + 1) * width] * down[:, z : z + 1] for z in range(Z)], axis=1)


def _kernel(
    lengths_ref: Any, table_ref: Any, q_latent_ref: Any, q_rope_ref: Any, *refs: Any,
    scale: float, P: int, N: int, rows: int, pages: int, page: int, quantized: bool, tree: bool,
    rope_turned: bool,
) -> None:  # fmt: skip
    remaining = list(refs)

    def taken(count: int) -> list[Any]:
        front = remaining[:count]
        del remaining[:count]
        return front

    latents, ropes = taken(pages), taken(pages)
    scales_refs = taken(pages) if quantized else []
    (allowed_ref,) = taken(1) if tree else (None,)
    out_ref, lse_ref, greatest_ref, total_ref, sum_ref = remaining

    b, tile, step = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    slots = pages * page
    length = lengths_ref[b]
    start = step * slots
    dtype = q_latent_ref.dtype
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None

    @pl.when(step == 0)
    def _() -> None:
        greatest_ref[...] = jnp.full_like(greatest_ref, EMPTY)
        total_ref[...] = jnp.zeros_like(total_ref)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def together(references: list[Any], axis: int) -> Array:
        parts = [reference[0] for reference in references]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)

    def product(a: Array, b: Array, contracted: int) -> Array:
        return jax.lax.dot_general(
            a, b, (((1,), (contracted,)), ((), ())), preferred_element_type=jnp.float32, precision=precision
        )

    def take(masked: bool) -> None:
        seen: Any = None
        used_down: Any = None
        if masked:
            row = tile * rows + jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
            allowed = None if allowed_ref is None else allowed_ref[0]
            seen, _, used_down = visible(start, slots, length, P, row // N, allowed)
        latent = together(latents, 0)
        if quantized:
            latent = _dequantized(latent, together(scales_refs, 1))
        latent = latent.astype(dtype)
        if masked:
            latent = jnp.where(used_down, latent, jnp.zeros_like(latent))
        rope = together(ropes, 1 if rope_turned else 0).astype(dtype)
        logits = product(q_latent_ref[0], latent, 1) + product(q_rope_ref[0], rope, 0 if rope_turned else 1)
        logits *= scale
        if masked:
            logits = jnp.where(seen, logits, EMPTY)
        before = greatest_ref[...]
        greatest = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
        weights = jnp.exp(logits - greatest)
        if masked:
            weights = jnp.where(seen, weights, 0.0)
        decay = jnp.exp(before - greatest)
        total_ref[...] = total_ref[...] * decay + jnp.sum(weights, axis=1, keepdims=True)
        greatest_ref[...] = greatest
        sum_ref[...] = sum_ref[...] * decay + product(weights.astype(dtype), latent, 0)

    whole = start + slots <= length - P
    pl.when(whole)(lambda: take(masked=False))
    pl.when((start < length) & jnp.logical_not(whole))(lambda: take(masked=True))

    @pl.when(step == pl.num_programs(2) - 1)
    def _() -> None:
        total = total_ref[...]
        divisor = jnp.where(total > 0, total, 1.0)
        out_ref[0] = (sum_ref[...] / divisor).astype(out_ref.dtype)
        lse_ref[0] = jnp.where(total > 0, greatest_ref[...] + jnp.log(divisor), EMPTY)


def _decode(
    q_latent: Array, q_rope: Array, latent: Array, rope: Array, table: Array | None, lengths: Array, scale: float,
    mask: Array | None, latent_scales: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    B, P, N, C = q_latent.shape
    R, stored = rope.shape[-1], latent.shape[1]
    # Two buffers of a block, its widened copy, and the logits of a tile of queries share VMEM.
    slot_bytes = max(C * q_latent.dtype.itemsize, 1)
    if table is None:
        S, page, pages = stored, slots_of_block(stored, slot_bytes, block_bytes=1 << 19), 1
    else:
        S, page = stored * table.shape[1], stored
        pages = max(1, min(slots_of_block(S, slot_bytes, block_bytes=1 << 19) // page, 8, table.shape[1]))
    steps = pl.cdiv(S, page * pages)
    lengths = jnp.clip(lengths, 0, S).astype(jnp.int32)

    M = P * N
    rows = min(ROWS, pl.cdiv(M, 16) * 16)
    padded = pl.cdiv(M, rows) * rows
    queries = [jnp.pad(q.reshape(B, M, -1), ((0, 0), (0, padded - M), (0, 0))) for q in (q_latent, q_rope)]

    def of_slots(width: int, i: int, turned: bool) -> pl.BlockSpec:
        """Block i of a step: [slots, width], or [width, slots] where turned."""
        at = block_index(page, pages, i, None if table is None else latent.shape[0])

        def index(b: Any, tile: Any, step: Any, *scalars: Any) -> tuple[Any, ...]:
            block = at(b, step, *scalars)
            if table is not None:
                return block, 0, 0
            return (b, 0, block) if turned else (b, block, 0)

        return pl.BlockSpec((1, width, page) if turned else (1, page, width), index)

    def of_rows(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, rows, width), lambda b, tile, *_: (b, tile, 0))

    rope_turned = table is None and R % LANES > 0 and S % LANES == 0
    rope = rope.swapaxes(1, 2) if rope_turned else rope
    operands = [*queries, *[latent] * pages, *[rope] * pages]
    specs = [of_rows(C), of_rows(R)]
    specs += [of_slots(C, i, False) for i in range(pages)] + [of_slots(R, i, rope_turned) for i in range(pages)]
    if latent_scales is not None:
        operands += [latent_scales.swapaxes(1, 2)] * pages
        specs += [of_slots(latent_scales.shape[-1], i, True) for i in range(pages)]
    if mask is not None:
        allowed = allowed_rows(mask, N, padded)
        one = allowed.shape[0] == 1
        operands.append(allowed)
        specs.append(pl.BlockSpec((1, rows, allowed.shape[2]), lambda b, tile, *_: (0 if one else b, tile, 0)))
    out, lse = pl.pallas_call(
        functools.partial(
            _kernel, scale=scale, P=P, N=N, rows=rows, pages=pages, page=page,
            quantized=latent_scales is not None, tree=mask is not None, rope_turned=rope_turned,
        ),
        out_shape=[
            jax.ShapeDtypeStruct((B, padded, C), q_latent.dtype),
            jax.ShapeDtypeStruct((B, padded, 1), jnp.float32),
        ],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B, padded // rows, steps),
            in_specs=specs,
            out_specs=[of_rows(C), of_rows(1)],
            scratch_shapes=[
                pltpu.VMEM((rows, 1), jnp.float32),
                pltpu.VMEM((rows, 1), jnp.float32),
                pltpu.VMEM((rows, C), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="mla_decode",
    )(lengths, jnp.zeros((1, 1), jnp.int32) if table is None else table, *operands)  # fmt: skip
    return out[:, :M].reshape(B, P, N, C), lse[:, :M, 0].reshape(B, P, N)


def mla_decode(
    q_latent: Float[Array, "B P N C"],
    q_rope: Float[Array, "B P N R"],
    latent: Array,
    rope: Array,
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | None = None,
    latent_scales: Float[Array, "B S Z"] | None = None,
    num_splits: int | None = None,
) -> tuple[Float[Array, "B P N C"], Float[Array, "B P N"]]:
    """One core reads a row in order: any num_splits gives the same."""
    return _decode(q_latent, q_rope, latent, rope, None, lengths, scale, mask, latent_scales)


def mla_decode_paged(
    q_latent: Float[Array, "B P N C"],
    q_rope: Float[Array, "B P N R"],
    latent_pages: Array,
    rope_pages: Array,
    block_table: Int[Array, "B blocks"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | None = None,
    latent_scales: Float[Array, "pages page Z"] | None = None,
    num_splits: int | None = None,
) -> tuple[Float[Array, "B P N C"], Float[Array, "B P N"]]:
    """One core reads a row in order: any num_splits gives the same."""
    return _decode(q_latent, q_rope, latent_pages, rope_pages, block_table, lengths, scale, mask, latent_scales)
