"""Decode attention as Triton kernels: each row's cache is cut into splits, which programs read side by side.

A program holds the queries of one group at all P positions as the rows of a matrix (row p * group + n), reads its split of
one head's keys and values once, and keeps a running softmax (arXiv 1805.02867). Splits are merged by their log-sum-exp
(flash decoding). One source serves the contiguous cache, whose row is a page of S slots, and the paged one.
"""

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.merge import EMPTY
from pallas_kernels.triton_launch import launch

NOTHING = tl.constexpr(EMPTY)
PROCESSORS = 132  # of an H100 or H200; splits are made until programs cover them twice


@triton.jit
def _widened(x, dtype: tl.constexpr):
    """Exact values of int8 or of the bits of float8_e4m3fn, in a dtype that a tensor core multiplies.

    The bits of an e4m3 moved to the top of a float16's exponent and mantissa are that number over 2^8 (the biases are 7 and
    15), subnormals included. Ampere has no instruction for it.
    """
    if x.dtype == tl.uint8:
        bits = x.to(tl.uint16)
        x = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    return x.to(dtype)


@triton.jit
def _pages(
    table_ptr, b, start, stop, PAGE: tl.constexpr, PAGED: tl.constexpr, ONE_PAGE: tl.constexpr, BLOCK_S: tl.constexpr
):
    """The page of the block at `start`, or of each of its slots; 0 from `stop` on, where the table may hold anything.

    A contiguous row is a page of its own.
    """
    if not PAGED:
        pages = b
    elif ONE_PAGE:
        pages = tl.load(table_ptr + start // PAGE, mask=start < stop, other=0).to(tl.int64)
    else:
        slots = start + tl.arange(0, BLOCK_S)
        pages = tl.load(table_ptr + slots // PAGE, mask=slots < stop, other=0).to(tl.int64)
    return pages


@triton.jit
def _block(
    start, pages, query, out, greatest, total, row_p,
    key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, mask_ptr, k, length, scale,
    K: tl.constexpr, H: tl.constexpr, HV: tl.constexpr, P: tl.constexpr, PAGE: tl.constexpr,
    PAGED: tl.constexpr, MASKED: tl.constexpr, TREE: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_HV: tl.constexpr,
):  # fmt: skip
    """Takes the slots [start, start + BLOCK_S) into the running softmax; MASKED where a query may not see all of them."""
    slots = start + tl.arange(0, BLOCK_S)
    inside = slots < length
    rows = (pages * K + k) * PAGE + (slots % PAGE if PAGED else slots)
    columns = tl.arange(0, BLOCK_H)
    value_columns = tl.arange(0, BLOCK_HV)

    key_at = key_ptr + rows[:, None] * H + columns[None, :]
    if MASKED:
        key = tl.load(key_at, mask=inside[:, None] & (columns < H)[None, :], other=0)
    elif BLOCK_H == H:
        key = tl.load(key_at)
    else:
        key = tl.load(key_at, mask=(columns < H)[None, :], other=0)
    logits = tl.dot(query, tl.trans(_widened(key, query.dtype)), input_precision="ieee") * scale
    if SCALED:
        logits *= tl.load(key_scale_ptr + rows, mask=inside, other=0.0)[None, :]

    if MASKED:
        newest = slots - (length - P)  # which of the P newest tokens a slot holds
        if TREE:
            among = (newest >= 0) & (newest < P)
            mask_at = mask_ptr + row_p[:, None] * P + newest[None, :]
            allowed = tl.load(mask_at, mask=among[None, :] & (row_p < P)[:, None], other=0) != 0
            seen = (newest < 0)[None, :] | allowed
            # What only padding rows see is not read either.
            used = inside & (tl.sum((seen & (row_p < P)[:, None]).to(tl.int32), axis=0) > 0)
        else:
            seen = newest[None, :] <= row_p[:, None]
            used = inside
        seen = seen & inside[None, :]
        logits = tl.where(seen, logits, NOTHING)

    new_greatest = tl.maximum(greatest, tl.max(logits, axis=1))
    weights = tl.exp(logits - new_greatest[:, None])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    decay = tl.exp(greatest - new_greatest)
    total = total * decay + tl.sum(weights, axis=1)

    value_at = value_ptr + rows[:, None] * HV + value_columns[None, :]
    if MASKED:
        value = tl.load(value_at, mask=used[:, None] & (value_columns < HV)[None, :], other=0)
        if SCALED:
            weights *= tl.load(value_scale_ptr + rows, mask=used, other=0.0)[None, :]
    else:
        if BLOCK_HV == HV:
            value = tl.load(value_at)
        else:
            value = tl.load(value_at, mask=(value_columns < HV)[None, :], other=0)
        if SCALED:
            weights *= tl.load(value_scale_ptr + rows)[None, :]
    out = out * decay[:, None]
    out = tl.dot(weights.to(query.dtype), _widened(value, query.dtype), out, input_precision="ieee")
    return out, new_greatest, total


@triton.jit
def _gqa_decode(
    query_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr, lengths_ptr, mask_ptr, out_ptr, lse_ptr, scale,
    B: tl.constexpr, P: tl.constexpr, N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, HV: tl.constexpr,
    S: tl.constexpr, PAGE: tl.constexpr, PAGED: tl.constexpr, ONE_PAGE: tl.constexpr, TREE: tl.constexpr,
    MASK_STRIDE: tl.constexpr, SCALED: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_HV: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = N // K
    TILES: tl.constexpr = (P * GROUP + BLOCK_M - 1) // BLOCK_M
    # Tiles of the same keys and values are neighbours, so that all but one find them in the L2 cache.
    tile = tl.program_id(0) % TILES
    k = (tl.program_id(0) // TILES) % K
    b = (tl.program_id(0) // (TILES * K)).to(tl.int64)
    split = tl.program_id(1)

    table_ptr += b * (S // PAGE)
    mask_ptr += b * MASK_STRIDE

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row_p = row // GROUP
    head = k * GROUP + row % GROUP
    columns = tl.arange(0, BLOCK_H)
    value_columns = tl.arange(0, BLOCK_HV)
    query_row = (b * P + row_p) * N + head
    query = tl.load(
        query_ptr + query_row[:, None] * H + columns[None, :], mask=(row_p < P)[:, None] & (columns < H)[None, :], other=0.0
    )

    # Each row's own blocks are dealt out evenly, by the length that the device holds.
    length = tl.minimum(tl.maximum(tl.load(lengths_ptr + b), 0), S)
    blocks = (length + BLOCK_S - 1) // BLOCK_S
    first = blocks * split // SPLITS * BLOCK_S
    end = blocks * (split + 1) // SPLITS * BLOCK_S
    # Blocks that every query sees whole take no masks.
    whole = tl.minimum(tl.maximum(length - P, 0) // BLOCK_S * BLOCK_S, end)
    whole = tl.maximum(whole, first)

    out = tl.zeros([BLOCK_M, BLOCK_HV], tl.float32)
    greatest = tl.full([BLOCK_M], NOTHING, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    # Page numbers are loaded a block ahead: keys and values then do not wait for a load of the same turn, and are pipelined.
    stop = tl.minimum(end, length)
    pages = _pages(table_ptr, b, first, stop, PAGE, PAGED, ONE_PAGE, BLOCK_S)
    for start in range(first, whole, BLOCK_S):
        next_pages = _pages(table_ptr, b, start + BLOCK_S, stop, PAGE, PAGED, ONE_PAGE, BLOCK_S)
        out, greatest, total = _block(
            start, pages, query, out, greatest, total, row_p,
            key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, mask_ptr, k, length, scale,
            K, H, HV, P, PAGE, PAGED, False, TREE, SCALED, BLOCK_S, BLOCK_H, BLOCK_HV,
        )  # fmt: skip
        pages = next_pages
    for start in tl.range(whole, end, BLOCK_S, num_stages=1):
        pages = _pages(table_ptr, b, start, stop, PAGE, PAGED, ONE_PAGE, BLOCK_S)
        out, greatest, total = _block(
            start, pages, query, out, greatest, total, row_p,
            key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, mask_ptr, k, length, scale,
            K, H, HV, P, PAGE, PAGED, True, TREE, SCALED, BLOCK_S, BLOCK_H, BLOCK_HV,
        )  # fmt: skip

    some = total > 0
    divisor = tl.where(some, total, 1.0)
    real = row_p < P
    out_row = split * (B * P * N) + query_row
    tl.store(lse_ptr + out_row, tl.where(some, greatest + tl.log(divisor), NOTHING), mask=real)
    out_at = out_ptr + out_row[:, None] * HV + value_columns[None, :]
    # The merge does not read what a split that saw nothing would write.
    wanted = real if SPLITS == 1 else real & some
    tl.store(
        out_at, (out / divisor[:, None]).to(out_ptr.dtype.element_ty), mask=wanted[:, None] & (value_columns < HV)[None, :]
    )


@triton.jit
def _merge(
    outs_ptr, lses_ptr, out_ptr, lse_ptr,
    ROWS: tl.constexpr, HV: tl.constexpr, SPLITS: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_HV: tl.constexpr,
):  # fmt: skip
    """out = sum_i exp(lse_i - lse) out_i with lse = log sum_i exp(lse_i): a program per query and head."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, BLOCK_SPLITS)
    columns = tl.arange(0, BLOCK_HV)
    lses = tl.load(lses_ptr + splits * ROWS + row, mask=splits < SPLITS, other=NOTHING)
    some = lses > NOTHING / 2
    outs = tl.load(
        outs_ptr + (splits[:, None] * ROWS + row) * HV + columns[None, :],
        mask=some[:, None] & (columns < HV)[None, :],
        other=0.0,
    )
    greatest = tl.max(lses, axis=0)
    weights = tl.where(some, tl.exp(lses - greatest), 0.0)
    total = tl.sum(weights, axis=0)
    divisor = tl.where(total > 0, total, 1.0)
    out = tl.sum(outs * weights[:, None], axis=0) / divisor
    tl.store(out_ptr + row * HV + columns, out.to(out_ptr.dtype.element_ty), mask=columns < HV)
    tl.store(lse_ptr + row, tl.where(total > 0, greatest + tl.log(divisor), NOTHING))


def _blocks(query: Array, key: Array, value: Array, rows: int) -> tuple[int, int, int]:
    """Query rows and slots of a block, and warps: what keeps registers below spilling and two programs on a processor."""
    width = max(key.shape[-1], value.shape[-1])
    rows = max(16, triton.next_power_of_2(rows))
    if query.dtype == jnp.float32:  # exact products run outside the tensor cores, with operands in registers
        return (16, 32, 4) if width <= 64 else (16, 16, 8)
    block_s = 64 if width <= 128 else 32
    if width > 128:
        return min(rows, 64), block_s, 4
    return (128, 32, 8) if rows >= 128 else (rows, block_s, 4)


def splits(programs: int, S: int, block_s: int) -> int:
    """How many parts to cut the cache into: programs for twice the processors, each with at least four blocks to read."""
    return max(1, min(triton.cdiv(2 * PROCESSORS, programs), S // (4 * block_s), 64))


def _decode(
    query: Array, key: Array, value: Array, table: Array | None, lengths: Array, scale: float, mask: Array | None,
    key_scales: Array | None, value_scales: Array | None, num_splits: int | None,
) -> tuple[Array, Array]:  # fmt: skip
    B, P, N, H = query.shape
    K, page, HV = key.shape[1], key.shape[2], value.shape[3]
    S = page if table is None else page * table.shape[1]
    block_m, block_s, warps = _blocks(query, key, value, P * N // K)
    tiles = triton.cdiv(P * N // K, block_m)
    parts = splits(B * K * tiles, S, block_s) if num_splits is None else num_splits
    block_hv = max(16, triton.next_power_of_2(HV))
    if key.dtype == jnp.float8_e4m3fn:  # which Triton does not accept on Ampere, not even as a pointer
        key, value = (jax.lax.bitcast_convert_type(array, jnp.uint8) for array in (key, value))
    partial = query.dtype if parts == 1 else jnp.float32
    unused = lengths  # a pointer that is not followed
    outs, lses = launch(
        _gqa_decode,
        query,
        key,
        value,
        unused if key_scales is None else key_scales,
        unused if value_scales is None else value_scales,
        unused if table is None else table,
        lengths,
        unused if mask is None else mask.astype(jnp.int8),
        outputs=[
            jax.ShapeDtypeStruct((parts, B, P, N, HV), partial),
            jax.ShapeDtypeStruct((parts, B, P, N), jnp.float32),
        ],
        grid=(B * K * tiles, parts),
        scalars={"scale": scale},
        constants={
            "B": B, "P": P, "N": N, "K": K, "H": H, "HV": HV, "S": S, "PAGE": page, "PAGED": table is not None,
            "ONE_PAGE": page % block_s == 0, "TREE": mask is not None,
            "MASK_STRIDE": P * P if mask is not None and mask.ndim == 3 else 0, "SCALED": key_scales is not None,
            "SPLITS": parts, "BLOCK_M": block_m, "BLOCK_S": block_s,
            "BLOCK_H": max(16, triton.next_power_of_2(H)), "BLOCK_HV": block_hv,
        },
        warps=warps,
        stages=2 if query.dtype == jnp.float32 else 3 if table is None else 4,
        name="gqa_decode",
    )  # fmt: skip
    if parts == 1:
        return outs[0], lses[0]
    out, lse = launch(
        _merge,
        outs,
        lses,
        outputs=[jax.ShapeDtypeStruct((B, P, N, HV), query.dtype), jax.ShapeDtypeStruct((B, P, N), jnp.float32)],
        grid=(B * P * N,),
        constants={
            "ROWS": B * P * N, "HV": HV, "SPLITS": parts, "BLOCK_SPLITS": triton.next_power_of_2(parts),
            "BLOCK_HV": block_hv,
        },
        name="gqa_decode_merge",
    )  # fmt: skip
    return out, lse


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
    return _decode(query, key, value, None, lengths, scale, mask, key_scales, value_scales, num_splits)


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
    return _decode(query, key_pages, value_pages, block_table, lengths, scale, mask, key_scales, value_scales, num_splits)
