"""Decode attention as a Pallas TPU kernel: a row's blocks of keys and values stream through VMEM past a running softmax.

The grid goes over rows, sets of heads, tiles of query rows and blocks of slots. The lengths (and the block table) are
scalars in SMEM ahead of the grid, and the index maps stop at a row's last block: a block that is asked for twice in a row is
not fetched again, so nothing past a length is read. One core reads a row in order, so `num_splits` has no use here and
changes nothing.

A head narrower than the 128 lanes would be padded to them, so XLA lays such arrays out with the slots along the lanes; the
contiguous cache is then taken as [B, K, H, S], which is that memory unchanged ("turned" below).

The queries of one group at all P positions are the rows of a matrix (row p * group + n). The contiguous cache takes one
block a step. Of a paged cache several pages a step come through as many references to the same array.
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

ROWS = 256  # query rows of a tile at most


def _widened(x: Array, dtype: Any) -> Array:
    """int8 and float8_e4m3fn are exact in bfloat16."""
    return x.astype(jnp.float32).astype(dtype) if x.dtype == jnp.int8 else x.astype(dtype)


def _kernel(
    lengths_ref: Any, table_ref: Any, query_ref: Any, *refs: Any,
    scale: float, P: int, group: int, rows: int, pages: int, page: int, heads: int, quantized: bool, tree: bool,
    key_turned: bool, value_turned: bool,
) -> None:  # fmt: skip
    remaining = list(refs)

    def taken(count: int) -> list[Any]:
        front = remaining[:count]
        del remaining[:count]
        return front

    keys, values = taken(pages), taken(pages)
    key_scales, value_scales = (taken(pages), taken(pages)) if quantized else ([], [])
    (allowed_ref,) = taken(1) if tree else (None,)
    out_ref, lse_ref, greatest_ref, total_ref, sum_ref = remaining

    b, tile, step = pl.program_id(0), pl.program_id(2), pl.program_id(3)
    slots = pages * page
    length = lengths_ref[b]
    start = step * slots

    @pl.when(step == 0)
    def _() -> None:
        greatest_ref[...] = jnp.full_like(greatest_ref, EMPTY)
        total_ref[...] = jnp.zeros_like(total_ref)
        sum_ref[...] = jnp.zeros_like(sum_ref)

    def together(references: list[Any], h: int) -> Array:
        parts = [reference[0, h] for reference in references]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)

    def scales_of(references: list[Any], h: int, used: Array | None) -> Array:
        parts = [reference[0, pl.ds(h, 1), :] for reference in references]
        scales = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
        return scales if used is None else jnp.where(used, scales, 0.0)

    def take(masked: bool) -> None:
        dtype = query_ref.dtype
        precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
        seen: Any = None
        used: Any = None
        used_rows: Any = None
        if masked:
            row = tile * rows + jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
            allowed = None if allowed_ref is None else allowed_ref[0]
            seen, used, used_rows = visible(start, slots, length, P, row // group, allowed)
        for h in range(heads):
            key = _widened(together(keys, h), dtype)
            across = (((1,), (0 if key_turned else 1,)), ((), ()))
            logits = scale * jax.lax.dot_general(
                query_ref[0, h], key, across, preferred_element_type=jnp.float32, precision=precision
            )
            if quantized:
                logits = logits * scales_of(key_scales, h, used)
            if masked:
                logits = jnp.where(seen, logits, EMPTY)
            before = greatest_ref[h]
            greatest = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
            weights = jnp.exp(logits - greatest)
            if masked:
                weights = jnp.where(seen, weights, 0.0)
            decay = jnp.exp(before - greatest)
            total_ref[h] = total_ref[h] * decay + jnp.sum(weights, axis=1, keepdims=True)
            greatest_ref[h] = greatest
            if quantized:
                weights = weights * scales_of(value_scales, h, used)
            value = _widened(together(values, h), dtype)
            if masked:
                value = jnp.where(used if value_turned else used_rows, value, jnp.zeros_like(value))
            along = (((1,), (1 if value_turned else 0,)), ((), ()))
            read = jax.lax.dot_general(
                weights.astype(dtype), value, along, preferred_element_type=jnp.float32, precision=precision
            )
            sum_ref[h] = sum_ref[h] * decay + read

    whole = start + slots <= length - P
    pl.when(whole)(lambda: take(masked=False))
    pl.when((start < length) & jnp.logical_not(whole))(lambda: take(masked=True))

    @pl.when(step == pl.num_programs(3) - 1)
    def _() -> None:
        total = total_ref[...]
        divisor = jnp.where(total > 0, total, 1.0)
        out_ref[0] = (sum_ref[...] / divisor).astype(out_ref.dtype)
        lse_ref[0] = jnp.where(total > 0, greatest_ref[...] + jnp.log(divisor), EMPTY)


def _heads(K: int) -> int:
    """Heads of a step: all, or eight at a time, as scales lie in tiles of eight."""
    return 8 if K % 8 == 0 else K


def _decode(
    query: Array, key: Array, value: Array, table: Array | None, lengths: Array, scale: float, mask: Array | None,
    key_scales: Array | None, value_scales: Array | None,
) -> tuple[Array, Array]:  # fmt: skip
    B, P, N, H = query.shape
    K, stored, HV = key.shape[1], key.shape[2], value.shape[3]
    group, heads, quantized = N // K, _heads(K), key_scales is not None
    slot_bytes = heads * (H + HV) * max(key.dtype.itemsize, 2)
    if table is None:
        S, page, pages = stored, slots_of_block(stored, slot_bytes), 1
    else:
        S, page = stored * table.shape[1], stored
        pages = max(1, min(slots_of_block(S, slot_bytes) // page, 8, table.shape[1]))
    steps = pl.cdiv(S, page * pages)
    lengths = jnp.clip(lengths, 0, S).astype(jnp.int32)

    M = P * group
    rows = min(ROWS, pl.cdiv(M, 16) * 16)
    padded = pl.cdiv(M, rows) * rows
    query_BKMH = query.reshape(B, P, K, group, H).transpose(0, 2, 1, 3, 4).reshape(B, K, M, H)
    query_BKMH = jnp.pad(query_BKMH, ((0, 0), (0, 0), (0, padded - M), (0, 0)))

    def of_slots(shape: tuple[int, ...], i: int, axis: int) -> pl.BlockSpec:
        """Block i of a step, in an array whose dimension `axis` holds the slots."""
        at = block_index(page, pages, i, None if table is None else key.shape[0])

        def index(b: Any, h: Any, tile: Any, step: Any, *scalars: Any) -> tuple[Any, ...]:
            block = at(b, step, *scalars)
            place = [b, h, *[0] * (len(shape) - 2)] if table is None else [block, h, *[0] * (len(shape) - 2)]
            if table is None:
                place[axis] = block
            return tuple(place)

        return pl.BlockSpec(shape, index)

    def of_cache(width: int, turned: bool) -> list[pl.BlockSpec]:
        shape, axis = ((1, heads, width, page), 3) if turned else ((1, heads, page, width), 2)
        return [of_slots(shape, i, axis) for i in range(pages)]

    key_turned, value_turned = (table is None and width % LANES > 0 and S % LANES == 0 for width in (H, HV))
    key = key.swapaxes(2, 3) if key_turned else key
    value = value.swapaxes(2, 3) if value_turned else value

    def of_rows(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, heads, rows, width), lambda b, h, tile, *_: (b, h, tile, 0))

    operands = [query_BKMH, *[key] * pages, *[value] * pages]
    specs = [of_rows(H), *of_cache(H, key_turned), *of_cache(HV, value_turned)]
    if key_scales is not None and value_scales is not None:
        operands += [*[key_scales] * pages, *[value_scales] * pages]
        specs += [of_slots((1, heads, page), i, 2) for i in range(pages)] * 2
    if mask is not None:
        allowed = allowed_rows(mask, group, padded)
        operands.append(allowed)
        one = allowed.shape[0] == 1
        specs.append(pl.BlockSpec((1, rows, allowed.shape[2]), lambda b, h, tile, *_: (0 if one else b, tile, 0)))
    out, lse = pl.pallas_call(
        functools.partial(
            _kernel, scale=scale, P=P, group=group, rows=rows, pages=pages, page=page, heads=heads, quantized=quantized,
            tree=mask is not None, key_turned=key_turned, value_turned=value_turned,
        ),
        out_shape=[
            jax.ShapeDtypeStruct((B, K, padded, HV), query.dtype),
            jax.ShapeDtypeStruct((B, K, padded, 1), jnp.float32),
        ],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(B, K // heads, padded // rows, steps),
            in_specs=specs,
            out_specs=[of_rows(HV), of_rows(1)],
            scratch_shapes=[
                pltpu.VMEM((heads, rows, 1), jnp.float32),
                pltpu.VMEM((heads, rows, 1), jnp.float32),
                pltpu.VMEM((heads, rows, HV), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")),
        name="gqa_decode",
    )(lengths, jnp.zeros((1, 1), jnp.int32) if table is None else table, *operands)  # fmt: skip

    def by_query(rows_BKM: Array) -> Array:
        cut = rows_BKM[:, :, :M].reshape(B, K, P, group, -1)
        return cut.transpose(0, 2, 1, 3, 4).reshape(B, P, N, -1)

    return by_query(out), by_query(lse)[..., 0]


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
    return _decode(query, key, value, None, lengths, scale, mask, key_scales, value_scales)


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
    return _decode(query, key_pages, value_pages, block_table, lengths, scale, mask, key_scales, value_scales)
