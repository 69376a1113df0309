"""The forward kernel: a program per block of queries and head."""

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Float, Int

from pallas_kernels.flash_attention.gpu_triton.tiles import (
    FLOOR,
    HIDDEN,
    LN_2,
    LOG2_E,
    constants,
    first_keys,
    integers,
    key_range,
    limits,
    product,
    sees,
    store,
    tile,
    tilings,
)
from pallas_kernels.triton_launch import launch


@triton.jit
def _read_keys(
    acc, largest, total, query_0, query_1, segments_q, key_base, value_base, segments_ptr, query_start, begin, end, keys,
    scale_log2, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr, WV: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    for start in range(begin, end, BLOCK_K):
        key_0 = tile(key_base, start, K * H, keys, H, BLOCK_K, 0, W0, not MASKED)
        key_1 = key_0
        if W1 > 0:
            key_1 = tile(key_base, start, K * H, keys, H, BLOCK_K, W0, W1, not MASKED)
        logits = product(query_0, query_1, key_0, key_1, W1 > 0, PRECISION) * scale_log2
        if MASKED:
            segments_k = segments_q
            if SEGMENTS:
                columns = start + tl.arange(0, BLOCK_K)
                segments_k = tl.load(segments_ptr + columns, mask=columns < keys, other=0)
            seen = sees(query_start, start, keys, segments_q, segments_k, BLOCK_Q, BLOCK_K, CAUSAL, SEGMENTS)
            logits = tl.where(seen, logits, HIDDEN)
        higher = tl.maximum(largest, tl.max(logits, 1))
        weights = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(weights, 1)
        value = tile(value_base, start, K * HV, keys, HV, BLOCK_K, 0, WV, not MASKED)
        acc = tl.dot(weights.to(value.dtype), value, acc * shrink[:, None], input_precision=PRECISION)
        largest = higher
    return acc, largest, total


@triton.jit
def _flash_attention(
    query_ptr, key_ptr, value_ptr, lengths_ptr, segments_ptr, first_key_ptr, out_ptr, lse_ptr, T, S, scale_log2,
    N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, HV: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, WV: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SEGMENTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    blocks = tl.num_programs(0)
    # The last queries have most to read in causal attention: they start first.
    start = (blocks - 1 - tl.program_id(0)) * BLOCK_Q
    n, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    queries, keys = limits(lengths_ptr, b, T, S, LENGTHS)
    query_base = query_ptr + b * T * N * H + n * H
    key_base = key_ptr + b * S * K * H + n // (N // K) * H
    value_base = value_ptr + b * S * K * HV + n // (N // K) * HV
    rows = start + tl.arange(0, BLOCK_Q)
    query_0 = tile(query_base, start, N * H, queries, H, BLOCK_Q, 0, W0)
    query_1 = query_0
    if W1 > 0:
        query_1 = tile(query_base, start, N * H, queries, H, BLOCK_Q, W0, W1)
    segments_q = rows
    if SEGMENTS:
        segments_q = tl.load(segments_ptr + b * T + rows, mask=rows < T, other=0)
    acc = tl.zeros([BLOCK_Q, WV], tl.float32)
    largest = tl.full([BLOCK_Q], FLOOR, tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    first, masked, stop = key_range(first_key_ptr, b, start, blocks, queries, keys, BLOCK_Q, BLOCK_K, CAUSAL, SEGMENTS)
    if not SEGMENTS:
        acc, largest, total = _read_keys(
            acc, largest, total, query_0, query_1, segments_q, key_base, value_base, segments_ptr + b * T, start,
            first, masked, keys, scale_log2, H, HV, K, W0, W1, WV, BLOCK_Q, BLOCK_K, False, CAUSAL, SEGMENTS, PRECISION,
        )  # fmt: skip
    acc, largest, total = _read_keys(
        acc, largest, total, query_0, query_1, segments_q, key_base, value_base, segments_ptr + b * T, start,
        masked, stop, keys, scale_log2, H, HV, K, W0, W1, WV, BLOCK_Q, BLOCK_K, True, CAUSAL, SEGMENTS, PRECISION,
    )  # fmt: skip
    answered = (total > 0) & (rows < queries)
    total = tl.where(answered, total, 1.0)
    out = tl.where(answered[:, None], acc / total[:, None], 0.0)
    store(out_ptr + b * T * N * HV + n * HV, start, N * HV, T, HV, out, BLOCK_Q, 0, WV)
    lse = tl.where(answered, (largest + tl.log2(total)) * LN_2, HIDDEN)
    tl.store(lse_ptr + (b * N + n) * T + rows, lse, mask=rows < T)


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
    (B, T, N, H), S, HV = query.shape, key.shape[1], value.shape[-1]
    tiling, _, _ = tilings(query.dtype, H, HV)
    out, lse_BNT = launch(
        _flash_attention,
        query,
        key,
        value,
        integers(lengths),
        integers(segments),
        first_keys(segments, tiling),
        outputs=[jax.ShapeDtypeStruct((B, T, N, HV), query.dtype), jax.ShapeDtypeStruct((B, N, T), jnp.float32)],
        grid=(triton.cdiv(T, tiling.queries), N, B),
        scalars={"T": T, "S": S, "scale_log2": scale * LOG2_E},
        constants=constants(query, key, value, tiling, causal, lengths, segments),
        warps=tiling.warps,
        stages=tiling.stages,
    )
    return out, lse_BNT.transpose(0, 2, 1)
