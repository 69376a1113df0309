"""Tiles of the attention kernels: how they are loaded, which of their keys are seen, and how large they are."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Int

LOG2_E = math.log2(math.e)
# A hidden key's logit, and the least running maximum: what is hidden lies so far below that its exponential is zero even in
# a row that has seen nothing yet.
HIDDEN = tl.constexpr(-1e30)
FLOOR = tl.constexpr(-1e29)
# The log-sum-exp that backward uses for a query that sees nothing: exp2(x - NOTHING) is zero.
NOTHING = tl.constexpr(1e30)
LN_2 = tl.constexpr(math.log(2))


@triton.jit
def tile(
    base, start, stride, limit, width, ROWS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr,
    INSIDE: tl.constexpr = False,
):  # fmt: skip
    """Rows start.. and columns FIRST.. of a matrix; zero past limit and width, whatever lies in memory there.

    INSIDE says that all the rows are below the limit.
    """
    rows = tl.arange(0, ROWS)
    columns = FIRST + tl.arange(0, COLUMNS)
    pointers = base + tl.full([], stride, tl.int64) * start + rows[:, None] * stride + columns[None, :]
    if INSIDE and width >= FIRST + COLUMNS:
        return tl.load(pointers)
    inside = (start + rows < limit)[:, None]
    if width < FIRST + COLUMNS:
        inside = inside & (columns < width)[None, :]
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store(base, start, stride, limit, width, values, ROWS: tl.constexpr, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = FIRST + tl.arange(0, COLUMNS)
    inside = (start + rows < limit)[:, None] & (columns < width)[None, :]
    corner = base + tl.full([], stride, tl.int64) * start
    tl.store(corner + rows[:, None] * stride + columns[None, :], values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def product(a0, a1, b0, b1, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """a b^T, where both are cut into columns 0 and columns 1."""
    product = tl.dot(a0, tl.trans(b0), input_precision=PRECISION)
    if SPLIT:
        product = tl.dot(a1, tl.trans(b1), product, input_precision=PRECISION)
    return product


@triton.jit
def sees(
    query_start, key_start, key_limit, segments_q, segments_k,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Which keys each query sees, [BLOCK_Q, BLOCK_K]."""
    rows = query_start + tl.arange(0, BLOCK_Q)
    columns = key_start + tl.arange(0, BLOCK_K)
    seen = (columns < key_limit)[None, :]
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    if SEGMENTS:
        seen = seen & (segments_q[:, None] == segments_k[None, :])
    return seen


@triton.jit
def limits(lengths_ptr, b, T, S, LENGTHS: tl.constexpr):
    """Queries that are answered and keys that may be seen."""
    queries, keys = T, S
    if LENGTHS:
        keys = tl.minimum(S, tl.load(lengths_ptr + b))
        if T == S:
            queries = keys
    return queries, keys


@triton.jit
def key_range(first_key_ptr, b, start, blocks, queries, keys, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
               CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr):  # fmt: skip
    """Where the keys of a block of queries begin, where they need masks, and where they end."""
    first = 0
    stop = tl.where(start < queries, keys, 0)
    if CAUSAL:
        stop = tl.minimum(stop, start + BLOCK_Q)
    masked = stop // BLOCK_K * BLOCK_K
    if CAUSAL:
        masked = tl.minimum(masked, start // BLOCK_K * BLOCK_K)
    if SEGMENTS:
        first = tl.load(first_key_ptr + b * blocks + start // BLOCK_Q)
        masked = first
    return first, masked, stop


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Queries and keys of a tile, warps of a program, depth of its pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def widths(H: int) -> tuple[int, int]:
    """Two powers of two, each 0 or at least 16, that cover H: 192 -> (128, 64), 128 -> (128, 0), 100 -> (128, 0)."""
    first = max(16, 1 << (H.bit_length() - 1))
    second = max(16, triton.next_power_of_2(H - first)) if first < H else 0
    return (2 * first, 0) if second == first else (first, second)


# By generation and by whether both widths are at most 128 and the keys' is loaded in one piece: for the forward kernel, for
# the gradient of queries, and for those of keys and values. These are the largest found that spill no register. Ampere's
# also fit the shared memory of later desktop cards.
TILINGS = {
    ("hopper", True): (Tiling(128, 64, 8, 3), Tiling(128, 64, 8, 2), Tiling(64, 64, 8, 2)),
    ("hopper", False): (Tiling(128, 64, 8, 3), Tiling(128, 64, 8, 2), Tiling(32, 64, 8, 2)),
    ("blackwell", True): (Tiling(128, 64, 8, 3), Tiling(128, 64, 8, 2), Tiling(32, 128, 8, 2)),
    ("blackwell", False): (Tiling(128, 64, 8, 3), Tiling(128, 64, 8, 2), Tiling(64, 64, 8, 2)),
    ("ampere", True): (Tiling(64, 32, 4, 2), Tiling(64, 32, 4, 2), Tiling(64, 32, 4, 2)),
    ("ampere", False): (Tiling(64, 32, 4, 2), Tiling(32, 32, 4, 2), Tiling(32, 32, 4, 2)),
}


def _generation() -> str:
    """The kind of GPU that the program is lowered for; "ampere" stands for all that have no warpgroup products."""
    described = jax.sharding.get_abstract_mesh().abstract_device
    kind = (described or jax.devices()[0]).device_kind
    if any(name in kind for name in ("B200", "B300")):
        return "blackwell"
    return "hopper" if any(name in kind for name in ("H100", "H200", "H20", "H800")) else "ampere"


def tilings(dtype: jnp.dtype, H: int, HV: int) -> tuple[Tiling, Tiling, Tiling]:
    narrow = max(H, HV) <= 128 and widths(H)[1] == 0
    if dtype == jnp.float32:
        # Full float32 products run on the ordinary cores, from registers.
        wide = Tiling(32, 32, 4, 2) if max(H, HV) <= 64 else Tiling(16, 16, 4, 2)
        return wide, wide, Tiling(16, 16, 4, 2)
    return TILINGS[_generation(), narrow]


def constants(
    query: Array, key: Array, value: Array, tiling: Tiling, causal: bool, lengths: Any, segments: Any
) -> dict[str, Any]:
    H, HV = query.shape[-1], value.shape[-1]
    W0, W1 = widths(H)
    return {
        "N": query.shape[2], "K": key.shape[2], "H": H, "HV": HV,
        "W0": W0, "W1": W1, "WV": max(16, triton.next_power_of_2(HV)),
        "BLOCK_Q": tiling.queries, "BLOCK_K": tiling.keys, "CAUSAL": causal, "LENGTHS": lengths is not None,
        "SEGMENTS": segments is not None, "PRECISION": "ieee" if query.dtype == jnp.float32 else "tf32",
    }  # fmt: skip


def _range_of_blocks(segments: Int[Array, "B T"], block: int) -> tuple[Int[Array, "B blocks"], Int[Array, "B blocks"]]:
    """The least and the greatest segment in each block of tokens."""
    rest = -segments.shape[1] % block
    blocks = jnp.pad(segments, ((0, 0), (0, rest)), mode="edge").reshape(segments.shape[0], -1, block)
    return blocks.min(-1), blocks.max(-1)


def _overlaps(segments: Int[Array, "B T"], rows: int, columns: int) -> Array:
    """Whether a block of rows and a block of columns may share a segment: their ranges of segments meet."""
    (low, high), (low_c, high_c) = _range_of_blocks(segments, rows), _range_of_blocks(segments, columns)
    return (low[:, :, None] <= high_c[:, None]) & (low_c[:, None] <= high[:, :, None])


def first_keys(segments: Int[Array, "B T"] | None, tiling: Tiling) -> Int[Array, "B blocks"]:
    """For each block of queries, the first key of the first block of keys that shares a segment with it."""
    if segments is None:
        return jnp.zeros((1, 1), jnp.int32)
    return jnp.argmax(_overlaps(segments, tiling.queries, tiling.keys), axis=-1).astype(jnp.int32) * tiling.keys


def last_queries(segments: Int[Array, "B T"] | None, tiling: Tiling) -> Int[Array, "B blocks"]:
    """For each block of keys, the end of the last block of queries that shares a segment with it."""
    if segments is None:
        return jnp.zeros((1, 1), jnp.int32)
    backwards = _overlaps(segments, tiling.keys, tiling.queries)[:, :, ::-1]
    return (backwards.shape[-1] - jnp.argmax(backwards, axis=-1).astype(jnp.int32)) * tiling.queries


def integers(array: Int[Array, "..."] | None) -> Int[Array, "..."]:
    return jnp.zeros((1,), jnp.int32) if array is None else array.astype(jnp.int32)
