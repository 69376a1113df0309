"""MLA decoding as a Triton kernel: each row's cache cut into splits that run side by side (Flash-Decoding).

A program holds a block of (query token, head) pairs of one row, and goes through one split of the row's slots with an
online softmax. The latents of some slots are loaded once and serve as keys and as values. Contiguous and paged caches
share the kernel: they differ in the address of a slot only.
"""

import dataclasses

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jax_triton import triton_lib
from jaxtyping import Array, Bool, Float, Int, Num

from pallas_kernels.dispatch import lowering_platform
from pallas_kernels.merge import merge_lse
from pallas_kernels.triton_launch import launch

# Programs that fit on an H200 at once: 132 multiprocessors, two programs each (shared memory allows no more).
CONCURRENT_PROGRAMS = 264
# A split should have work enough to be worth the float32 partial result that it writes.
LEAST_SLOTS_OF_A_SPLIT = 256

MOST_MASKED = 64  # new tokens under a mask, whose rows are 64-bit integers


@triton.jit
def _mla_decode(
    q_latent_ptr, q_rope_ptr, latent_ptr, rope_ptr, lengths_ptr, table_ptr, scales_ptr, mask_ptr,
    out_ptr, lse_ptr,
    rows, blocks_of_rows, N, S, pages_of_row, scale,
    P: tl.constexpr, C: tl.constexpr, R: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    MASKED: tl.constexpr, E4M3_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """PAGE is 0 for a contiguous cache, TILE is 0 for latents that are not quantized; E4M3_BITS has them as integers."""
    b = (tl.program_id(0) // blocks_of_rows).to(tl.int64)
    split, splits = tl.program_id(1), tl.num_programs(1)
    m = (tl.program_id(0) % blocks_of_rows) * BLOCK_M + tl.arange(0, BLOCK_M)  # pairs: m = p * N + n
    p = m // N
    c, r = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_R)
    in_m = (m < rows)[:, None]
    in_c, in_r = (c < C)[None, :], (r < R)[None, :]
    # Pointers to this row are 64-bit scalars; offsets within the row are 32-bit, which saves registers.
    q_latent_row, q_rope_row = q_latent_ptr + b * rows * C, q_rope_ptr + b * rows * R
    q_latent = tl.load(q_latent_row + m[:, None] * C + c[None, :], mask=in_m & in_c, other=0.0)
    q_rope = tl.load(q_rope_row + m[:, None] * R + r[None, :], mask=in_m & in_r, other=0.0)
    dtype: tl.constexpr = q_latent_ptr.dtype.element_ty

    if PAGE == 0:
        latent_ptr += b * S * C
        rope_ptr += b * S * R
        if TILE != 0:
            scales_ptr += b * S * (C // TILE)

    # This split's slots: the row's blocks are dealt evenly, whatever its length.
    length = tl.load(lengths_ptr + b)
    each = tl.cdiv(tl.cdiv(length, BLOCK_S), splits) * BLOCK_S
    begin = split * each
    end = tl.minimum(begin + each, length)

    last = length - P + p  # the last slot that each query sees, without a mask
    if MASKED:
        words_at = mask_ptr + (b * P + p) * 2
        low = tl.load(words_at, mask=m < rows, other=0).to(tl.uint64)
        bits = (tl.load(words_at + 1, mask=m < rows, other=0).to(tl.uint64) << 32) | low

    # Logits are scaled when their maximum has been taken off, so that large ones lose nothing by it.
    log2_e: tl.constexpr = 1.4426950408889634
    # Far above what hides a slot: as long as a query has seen none, its weights are exp(-9e29 * scale) = 0.
    highest = tl.full([BLOCK_M], -1e29, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    read = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    # Address arithmetic that would leave the loop would hold registers all through it, and at 64 rows spill.
    for first in tl.range(begin, end, BLOCK_S, disable_licm=True):
        s = first + tl.arange(0, BLOCK_S)
        in_s = s < end
        if PAGE == 0:
            at = s
        elif PAGE % BLOCK_S == 0:
            at = tl.load(table_ptr + b * pages_of_row + first // PAGE).to(tl.int64) * PAGE + s % PAGE
        else:
            at = tl.load(table_ptr + b * pages_of_row + s // PAGE, mask=in_s, other=0).to(tl.int64) * PAGE + s % PAGE
        latent = tl.load(latent_ptr + at[:, None] * C + c[None, :], mask=in_s[:, None] & in_c, other=0.0)
        rope = tl.load(rope_ptr + at[:, None] * R + r[None, :], mask=in_s[:, None] & in_r, other=0.0).to(dtype)
        if E4M3_BITS:
            # Sign, exponent and mantissa moved to their places in a float16, whose exponent is biased by 8 more.
            bits_of_half = ((latent.to(tl.uint16) & 0x80) << 8) | ((latent.to(tl.uint16) & 0x7F) << 7)
            latent = bits_of_half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        if TILE == 0:
            latent = latent.to(dtype)
        else:
            z = tl.arange(0, BLOCK_C // TILE)
            scales_at = scales_ptr + at[:, None] * (C // TILE) + z[None, :]
            scales = tl.load(scales_at, mask=in_s[:, None] & (z < C // TILE)[None, :], other=0.0)
            tiles = tl.reshape(latent.to(tl.float32), [BLOCK_S, BLOCK_C // TILE, TILE]) * scales[:, :, None]
            latent = tl.reshape(tiles, [BLOCK_S, BLOCK_C]).to(dtype)

        logits = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        logits = tl.dot(q_rope, tl.trans(rope), logits, input_precision="ieee")
        if MASKED:
            new = s - (length - P)  # which of the new tokens a slot holds; negative for earlier ones
            listed = (bits[:, None] >> tl.maximum(new, 0).to(tl.uint64)[None, :]) & 1
            sees = in_s[None, :] & ((new < 0)[None, :] | (listed != 0))
        else:
            sees = s[None, :] <= last[:, None]
        logits = tl.where(sees, logits, -1e30)
        higher = tl.maximum(highest, tl.max(logits, axis=1))
        weights = tl.exp2((logits - higher[:, None]) * (scale * log2_e))
        shrink = tl.exp2((highest - higher) * (scale * log2_e))
        total = total * shrink + tl.sum(weights, axis=1)
        read = tl.dot(weights.to(dtype), latent, read * shrink[:, None], input_precision="ieee")
        highest = higher

    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    lse = tl.where(empty, -1e30, highest * scale + tl.log2(total) / log2_e)
    row = (split.to(tl.int64) * (tl.num_programs(0) // blocks_of_rows) + b) * rows
    tl.store(lse_ptr + row + m, lse, mask=m < rows)
    out = (read * (1.0 / total)[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * C + m[:, None] * C + c[None, :], out, mask=in_m & in_c)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """What a program takes at a time: (token, head) pairs, and slots of the cache."""

    rows: int
    slots: int
    warps: int
    stages: int


def _architecture() -> int:
    """The compute capability (90 is Hopper) that jax-triton will compile for; in the interpreter, the oldest."""
    if triton.knobs.runtime.interpret or lowering_platform() != "gpu":
        return 80
    return triton_lib.make_cuda_target(None, 1).arch


def choose_tiles(rows: int, dtypes: set[jnp.dtype], architecture: int) -> Tiles:
    """Tiles whose float32 accumulator [rows, 512] stays in registers and whose slots fit in shared memory.

    Args:
        rows: (token, head) pairs of a row of the batch.
        dtypes: of the queries, in which products are made, and of the cache.
        architecture: compute capability times ten. From Hopper on, matrix instructions read 64 rows from shared memory.
    """
    if jnp.dtype("float32") in dtypes:
        return Tiles(rows=16, slots=16, warps=8, stages=1)
    if rows <= 16:
        return Tiles(rows=16, slots=64, warps=8, stages=2)
    return Tiles(rows=32 if rows <= 32 or architecture < 90 else 64, slots=32, warps=8, stages=2)


def choose_splits(programs: int, S: int) -> int:
    """How many splits fill a GPU once, given the programs that one split needs and the slots that a row may have."""
    return max(1, min(CONCURRENT_PROGRAMS // programs, triton.cdiv(S, LEAST_SLOTS_OF_A_SPLIT)))


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
    return _decode(
        q_latent_BPNC, q_rope_BPNR, latent_BSC, rope_BSR, lengths_B, None, scale, mask, latent_scales, num_splits
    )  # fmt: skip


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
    return _decode(
        q_latent_BPNC, q_rope_BPNR, latent_pages, rope_pages, lengths_B, block_table, scale, mask, latent_scales, num_splits
    )


def _words(mask_BPP: Bool[Array, "B P P"]) -> Array:
    """Each query's row of the mask as the bits of two 32-bit words: a load a query instead of one a slot."""
    P = mask_BPP.shape[-1]
    padded = jnp.pad(mask_BPP, ((0, 0), (0, 0), (0, MOST_MASKED - P))).reshape(*mask_BPP.shape[:2], 2, 32)
    return jnp.sum(padded.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)


def _decode(
    q_latent_BPNC: Array, q_rope_BPNR: Array, latent: Array, rope: Array, lengths_B: Array, block_table: Array | None,
    scale: float, mask: Array | None, latent_scales: Array | None, num_splits: int | None,
) -> tuple[Array, Array]:  # fmt: skip
    B, P, N, C = q_latent_BPNC.shape
    R, dtype = q_rope_BPNR.shape[-1], q_latent_BPNC.dtype
    pages_of_row = 0 if block_table is None else block_table.shape[1]
    S = latent.shape[1] * (pages_of_row or 1)
    architecture = _architecture()
    tiles = choose_tiles(P * N, {dtype, latent.dtype, rope.dtype}, architecture)
    # Triton knows float8_e4m3fn from compute capability 8.9 on.
    e4m3_bits = latent.dtype == jnp.float8_e4m3fn and architecture < 89
    if e4m3_bits:
        latent = jax.lax.bitcast_convert_type(latent, jnp.uint8)
    blocks_of_rows = triton.cdiv(P * N, tiles.rows)
    splits = num_splits or choose_splits(max(1, B * blocks_of_rows), S)
    unused = lengths_B
    outs, lses = launch(
        _mla_decode,
        q_latent_BPNC,
        q_rope_BPNR,
        latent,
        rope,
        lengths_B,
        unused if block_table is None else block_table,
        unused if latent_scales is None else latent_scales,
        unused if mask is None else _words(mask),
        outputs=[
            jax.ShapeDtypeStruct((splits, B, P, N, C), dtype if splits == 1 else jnp.float32),
            jax.ShapeDtypeStruct((splits, B, P, N), jnp.float32),
        ],
        grid=(B * blocks_of_rows, splits),
        scalars={
            "rows": P * N, "blocks_of_rows": blocks_of_rows, "N": N, "S": S, "pages_of_row": pages_of_row, "scale": scale,
        },
        constants={
            "P": P, "C": C, "R": R,
            "PAGE": 0 if block_table is None else latent.shape[1],
            "TILE": 0 if latent_scales is None else C // latent_scales.shape[-1],
            "MASKED": mask is not None, "E4M3_BITS": e4m3_bits,
            "BLOCK_M": tiles.rows, "BLOCK_S": tiles.slots,
            "BLOCK_C": max(16, triton.next_power_of_2(C)), "BLOCK_R": max(16, triton.next_power_of_2(R)),
        },
        warps=tiles.warps,
        stages=tiles.stages,
        name="mla_decode",
    )  # fmt: skip
    if splits == 1:
        return outs[0], lses[0]
    out, lse = merge_lse(outs, lses)
    return out.astype(dtype), lse
