"""The backward kernels: one prepares, one gives the gradients of keys and values, one those of queries."""

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Float, Int

from pallas_kernels.flash_attention.gpu_triton.tiles import (
    FLOOR,
    HIDDEN,
    LOG2_E,
    NOTHING,
    constants,
    first_keys,
    integers,
    key_range,
    last_queries,
    limits,
    product,
    sees,
    store,
    tile,
    tilings,
)
from pallas_kernels.triton_launch import launch


@triton.jit
def _prepare_backward(
    out_ptr, d_out_ptr, lse_ptr, d_lse_ptr, lengths_ptr, delta_ptr, lse_log2_ptr, T, S, log2_e,
    N: tl.constexpr, HV: tl.constexpr, WV: tl.constexpr, BLOCK_Q: tl.constexpr, LENGTHS: tl.constexpr,
):  # fmt: skip
    """delta = sum(out * d_out) - d_lse, since d logits = weights * (d weights - delta); and lse in base 2."""
    start, n, b = tl.program_id(0) * BLOCK_Q, tl.program_id(1), tl.program_id(2).to(tl.int64)
    queries, _ = limits(lengths_ptr, b, T, S, LENGTHS)
    rows = start + tl.arange(0, BLOCK_Q)
    out = tile(out_ptr + b * T * N * HV + n * HV, start, N * HV, queries, HV, BLOCK_Q, 0, WV).to(tl.float32)
    d_out = tile(d_out_ptr + b * T * N * HV + n * HV, start, N * HV, queries, HV, BLOCK_Q, 0, WV).to(tl.float32)
    at = (b * T + rows) * N + n
    lse = tl.load(lse_ptr + at, mask=rows < queries, other=HIDDEN)
    d_lse = tl.load(d_lse_ptr + at, mask=rows < queries, other=0.0)
    answered = lse > FLOOR
    delta = tl.where(answered, tl.sum(out * d_out, 1) - d_lse, 0.0)
    tl.store(delta_ptr + (b * N + n) * T + rows, delta, mask=rows < T)
    tl.store(lse_log2_ptr + (b * N + n) * T + rows, tl.where(answered, lse * log2_e, NOTHING), mask=rows < T)


@triton.jit
def _d_query_of_keys(
    d_query_0, d_query_1, query_0, query_1, d_out, lse, delta, segments_q, key_base, value_base, segments_ptr, query_start,
    begin, end, keys, scale_log2, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr,
    WV: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    SEGMENTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    for start in range(begin, end, BLOCK_K):
        key_0 = tile(key_base, start, K * H, keys, H, BLOCK_K, 0, W0, not MASKED)
        key_1 = key_0
        if W1 > 0:
            key_1 = tile(key_base, start, K * H, keys, H, BLOCK_K, W0, W1, not MASKED)
        value = tile(value_base, start, K * HV, keys, HV, BLOCK_K, 0, WV, not MASKED)
        logits = product(query_0, query_1, key_0, key_1, W1 > 0, PRECISION) * scale_log2
        weights = tl.exp2(logits - lse[:, None])
        if MASKED:
            segments_k = segments_q
            if SEGMENTS:
                columns = start + tl.arange(0, BLOCK_K)
                segments_k = tl.load(segments_ptr + columns, mask=columns < keys, other=0)
            seen = sees(query_start, start, keys, segments_q, segments_k, BLOCK_Q, BLOCK_K, CAUSAL, SEGMENTS)
            weights = tl.where(seen, weights, 0.0)
        d_weights = tl.dot(d_out, tl.trans(value), input_precision=PRECISION)
        d_logits = (weights * (d_weights - delta[:, None])).to(key_0.dtype)
        d_query_0 = tl.dot(d_logits, key_0, d_query_0, input_precision=PRECISION)
        if W1 > 0:
            d_query_1 = tl.dot(d_logits, key_1, d_query_1, input_precision=PRECISION)
    return d_query_0, d_query_1


@triton.jit
def _flash_attention_d_query(
    query_ptr, key_ptr, value_ptr, d_out_ptr, lse_ptr, delta_ptr, lengths_ptr, segments_ptr, first_key_ptr, d_query_ptr,
    T, S, scale, scale_log2, N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, HV: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, WV: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SEGMENTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    blocks = tl.num_programs(0)
    start = (blocks - 1 - tl.program_id(0)) * BLOCK_Q
    n, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    queries, keys = limits(lengths_ptr, b, T, S, LENGTHS)
    query_offset = b * T * N * H + n * H
    key_base = key_ptr + b * S * K * H + n // (N // K) * H
    value_base = value_ptr + b * S * K * HV + n // (N // K) * HV
    rows = start + tl.arange(0, BLOCK_Q)
    query_0 = tile(query_ptr + query_offset, start, N * H, queries, H, BLOCK_Q, 0, W0)
    d_query_0 = tl.zeros([BLOCK_Q, W0], tl.float32)
    query_1, d_query_1 = query_0, d_query_0
    if W1 > 0:
        query_1 = tile(query_ptr + query_offset, start, N * H, queries, H, BLOCK_Q, W0, W1)
        d_query_1 = tl.zeros([BLOCK_Q, W1], tl.float32)
    d_out = tile(d_out_ptr + b * T * N * HV + n * HV, start, N * HV, queries, HV, BLOCK_Q, 0, WV)
    lse = tl.load(lse_ptr + (b * N + n) * T + rows, mask=rows < T, other=NOTHING)
    delta = tl.load(delta_ptr + (b * N + n) * T + rows, mask=rows < T, other=0.0)
    segments_q = rows
    if SEGMENTS:
        segments_q = tl.load(segments_ptr + b * T + rows, mask=rows < T, other=0)
    first, masked, stop = key_range(first_key_ptr, b, start, blocks, queries, keys, BLOCK_Q, BLOCK_K, CAUSAL, SEGMENTS)
    if not SEGMENTS:
        d_query_0, d_query_1 = _d_query_of_keys(
            d_query_0, d_query_1, query_0, query_1, d_out, lse, delta, segments_q, key_base, value_base,
            segments_ptr + b * T, start, first, masked, keys, scale_log2, H, HV, K, W0, W1, WV, BLOCK_Q, BLOCK_K, False,
            CAUSAL, SEGMENTS, PRECISION,
        )  # fmt: skip
    d_query_0, d_query_1 = _d_query_of_keys(
        d_query_0, d_query_1, query_0, query_1, d_out, lse, delta, segments_q, key_base, value_base,
        segments_ptr + b * T, start, masked, stop, keys, scale_log2, H, HV, K, W0, W1, WV, BLOCK_Q, BLOCK_K, True,
        CAUSAL, SEGMENTS, PRECISION,
    )  # fmt: skip
    store(d_query_ptr + query_offset, start, N * H, T, H, d_query_0 * scale, BLOCK_Q, 0, W0)
    if W1 > 0:
        store(d_query_ptr + query_offset, start, N * H, T, H, d_query_1 * scale, BLOCK_Q, W0, W1)


@triton.jit
def _d_key_of_queries(
    d_key_0, d_key_1, d_value, key_0, key_1, value, segments_k, query_base, d_out_base, lse_base, delta_base, segments_ptr,
    key_start, begin, end, T, queries, scale_log2, H: tl.constexpr, HV: tl.constexpr, N: tl.constexpr, MEMBERS: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, WV: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the queries from `begin` to `end` of all the group's members give.

    Tiles are [keys, queries] here: the weights are then the left side of the product that makes d_value. One loop runs over
    blocks and members both, so that its pipeline never runs dry in between.
    """
    blocks = tl.maximum(end - begin + BLOCK_Q - 1, 0) // BLOCK_Q
    for step in range(0, blocks * MEMBERS):
        member = step // blocks
        start = begin + (step - member * blocks) * BLOCK_Q
        rows = start + tl.arange(0, BLOCK_Q)
        query_0 = tile(query_base + member * H, start, N * H, queries, H, BLOCK_Q, 0, W0)
        query_1 = query_0
        if W1 > 0:
            query_1 = tile(query_base + member * H, start, N * H, queries, H, BLOCK_Q, W0, W1)
        d_out = tile(d_out_base + member * HV, start, N * HV, queries, HV, BLOCK_Q, 0, WV)
        # A query past the end has no weight at all.
        at = tl.full([], T, tl.int64) * member
        lse = tl.load(lse_base + at + rows, mask=rows < queries, other=NOTHING)
        delta = tl.load(delta_base + at + rows, mask=rows < queries, other=0.0)
        logits = product(key_0, key_1, query_0, query_1, W1 > 0, PRECISION) * scale_log2
        weights = tl.exp2(logits - lse[None, :])
        if MASKED:
            # Keys past their limit only spoil their own gradients, which are not kept.
            if CAUSAL:
                columns = key_start + tl.arange(0, BLOCK_K)
                weights = tl.where(columns[:, None] <= rows[None, :], weights, 0.0)
            if SEGMENTS:
                segments_q = tl.load(segments_ptr + rows, mask=rows < queries, other=0)
                weights = tl.where(segments_k[:, None] == segments_q[None, :], weights, 0.0)
        d_value = tl.dot(weights.to(d_out.dtype), d_out, d_value, input_precision=PRECISION)
        d_weights = tl.dot(value, tl.trans(d_out), input_precision=PRECISION)
        d_logits = (weights * (d_weights - delta[None, :])).to(query_0.dtype)
        d_key_0 = tl.dot(d_logits, query_0, d_key_0, input_precision=PRECISION)
        if W1 > 0:
            d_key_1 = tl.dot(d_logits, query_1, d_key_1, input_precision=PRECISION)
    return d_key_0, d_key_1, d_value


@triton.jit
def _flash_attention_d_key_value(
    query_ptr, key_ptr, value_ptr, d_out_ptr, lse_ptr, delta_ptr, lengths_ptr, segments_ptr, last_query_ptr, d_key_ptr,
    d_value_ptr, T, S, scale, scale_log2, N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, HV: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr, WV: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, SEGMENTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0) * BLOCK_K
    head, b = tl.program_id(1), tl.program_id(2).to(tl.int64)
    queries, keys = limits(lengths_ptr, b, T, S, LENGTHS)
    key_offset = b * S * K * H + head * H
    value_offset = b * S * K * HV + head * HV
    columns = start + tl.arange(0, BLOCK_K)
    key_0 = tile(key_ptr + key_offset, start, K * H, keys, H, BLOCK_K, 0, W0)
    d_key_0 = tl.zeros([BLOCK_K, W0], tl.float32)
    key_1, d_key_1 = key_0, d_key_0
    if W1 > 0:
        key_1 = tile(key_ptr + key_offset, start, K * H, keys, H, BLOCK_K, W0, W1)
        d_key_1 = tl.zeros([BLOCK_K, W1], tl.float32)
    value = tile(value_ptr + value_offset, start, K * HV, keys, HV, BLOCK_K, 0, WV)
    d_value = tl.zeros([BLOCK_K, WV], tl.float32)
    stop = tl.where(start < keys, queries, 0)
    segments_k = columns
    if SEGMENTS:
        segments_k = tl.load(segments_ptr + b * S + columns, mask=columns < S, other=0)
        stop = tl.minimum(stop, tl.load(last_query_ptr + b * tl.num_programs(0) + tl.program_id(0)))
    first, masked = 0, 0
    if CAUSAL:
        first = start // BLOCK_Q * BLOCK_Q
        masked = tl.minimum(stop, (start + BLOCK_K + BLOCK_Q - 1) // BLOCK_Q * BLOCK_Q)
    if SEGMENTS:
        masked = stop
    MEMBERS: tl.constexpr = N // K
    query_base = query_ptr + b * T * N * H + head * MEMBERS * H
    d_out_base = d_out_ptr + b * T * N * HV + head * MEMBERS * HV
    at = (b * N + head * MEMBERS) * T
    if CAUSAL or SEGMENTS:
        d_key_0, d_key_1, d_value = _d_key_of_queries(
            d_key_0, d_key_1, d_value, key_0, key_1, value, segments_k, query_base, d_out_base, lse_ptr + at, delta_ptr + at,
            segments_ptr + b * S, start, first, masked, T, queries, scale_log2, H, HV, N, MEMBERS, W0, W1, WV, BLOCK_Q,
            BLOCK_K, True, CAUSAL, SEGMENTS, PRECISION,
        )  # fmt: skip
    if not SEGMENTS:
        d_key_0, d_key_1, d_value = _d_key_of_queries(
            d_key_0, d_key_1, d_value, key_0, key_1, value, segments_k, query_base, d_out_base, lse_ptr + at, delta_ptr + at,
            segments_ptr + b * S, start, masked, stop, T, queries, scale_log2, H, HV, N, MEMBERS, W0, W1, WV, BLOCK_Q,
            BLOCK_K, False, CAUSAL, SEGMENTS, PRECISION,
        )  # fmt: skip
    visible = (columns < keys)[:, None]
    store(d_key_ptr + key_offset, start, K * H, S, H, tl.where(visible, d_key_0 * scale, 0.0), BLOCK_K, 0, W0)
    if W1 > 0:
        store(d_key_ptr + key_offset, start, K * H, S, H, tl.where(visible, d_key_1 * scale, 0.0), BLOCK_K, W0, W1)
    store(d_value_ptr + value_offset, start, K * HV, S, HV, tl.where(visible, d_value, 0.0), BLOCK_K, 0, WV)


def flash_attention_backward(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K Hv"],
    out: Float[Array, "B T N Hv"],
    lse: Float[Array, "B T N"],
    d_out: Float[Array, "B T N Hv"],
    d_lse: Float[Array, "B T N"],
    *,
    scale: float,
    causal: bool,
    lengths: Int[Array, " B"] | None,
    segments: Int[Array, "B T"] | None,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K Hv"]]:
    (B, T, N, H), (S, K), HV = query.shape, key.shape[1:3], value.shape[-1]
    _, tiling_q, tiling_k = tilings(query.dtype, H, HV)
    per_query = jax.ShapeDtypeStruct((B, N, T), jnp.float32)
    delta, lse_log2 = launch(
        _prepare_backward,
        out,
        d_out,
        lse,
        d_lse,
        integers(lengths),
        outputs=[per_query, per_query],
        grid=(triton.cdiv(T, 32), N, B),
        scalars={"T": T, "S": S, "log2_e": LOG2_E},
        constants={
            "N": N, "HV": HV, "WV": max(16, triton.next_power_of_2(HV)), "BLOCK_Q": 32, "LENGTHS": lengths is not None,
        },
    )  # fmt: skip
    shared = (query, key, value, d_out, lse_log2, delta, integers(lengths), integers(segments))
    scalars = {"T": T, "S": S, "scale": scale, "scale_log2": scale * LOG2_E}
    d_key, d_value = launch(
        _flash_attention_d_key_value,
        *shared,
        last_queries(segments, tiling_k),
        outputs=[key, value],
        grid=(triton.cdiv(S, tiling_k.keys), K, B),
        scalars=scalars,
        constants=constants(query, key, value, tiling_k, causal, lengths, segments),
        warps=tiling_k.warps,
        stages=tiling_k.stages,
    )
    (d_query,) = launch(
        _flash_attention_d_query,
        *shared,
        first_keys(segments, tiling_q),
        outputs=[query],
        grid=(triton.cdiv(T, tiling_q.queries), N, B),
        scalars=scalars,
        constants=constants(query, key, value, tiling_q, causal, lengths, segments),
        warps=tiling_q.warps,
        stages=tiling_q.stages,
    )
    return d_query, d_key, d_value
