"""Attention on TPUs: JAX's splash attention kernels, forward and backward, behind our layout, lengths and log-sum-exp.

Splash takes [heads, tokens, width] of one row and tokens in multiples of 128, so rows are padded and heads moved first.
Lengths become segment numbers. Its own derivative knows no cotangent of the log-sum-exp, which only shifts `di` (the sum of
out * d_out that each query subtracts from its d_weights): so its backward kernels are called here with that shift.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float, Int

LANES = 128
# A tile of logits is at most 512 x 512 float32, 1 MiB; backward keeps four of them in VMEM, beside keys, values and queries.
BLOCK = 512
HIDDEN = -1e30


def _padded(tokens: int) -> int:
    return max(LANES, -(-tokens // LANES) * LANES)


def _block(tokens: int) -> int:
    return next(block for block in (BLOCK, 256, LANES) if tokens % block == 0)


def _kernel(T: int, S: int, heads: int, causal: bool) -> splash.SplashAttentionKernel:
    """Splash attention for padded numbers of tokens; its tables of blocks leave out those above the diagonal."""
    mask = masks.CausalMask((T, S)) if causal else masks.FullMask((T, S))
    q, k = _block(T), _block(S)
    sizes = splash.BlockSizes(
        block_q=q, block_kv=k, block_kv_compute=k, block_q_dkv=q, block_kv_dkv=k, block_kv_dkv_compute=k, block_q_dq=q,
        block_kv_dq=k,
    )  # fmt: skip
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=sizes, save_residuals=True, head_shards=1, q_seq_shards=1
    )


def _heads_lead(x: Float[Array, "B T N H"], tokens: int, filled: Array | None) -> Float[Array, "B N tokens H"]:
    """Moves heads before tokens, with zeros past a row's length and up to `tokens`."""
    if filled is not None:
        x = jnp.where(filled[:, :, None, None], x, 0)
    return jnp.pad(x, ((0, 0), (0, tokens - x.shape[1]), (0, 0), (0, 0))).transpose(0, 2, 1, 3)


def _tokens_lead(x: Float[Array, "B N tokens H"], tokens: int) -> Float[Array, "B T N H"]:
    return x.transpose(0, 2, 1, 3)[:, :tokens]


def _masks(
    query: Array, key: Array, causal: bool, lengths: Int[Array, " B"] | None, segments: Int[Array, "B T"] | None
) -> tuple[Array | None, Array | None, splash.SegmentIds | None]:
    """Queries that are answered, keys that may be seen, and the segments that say so to splash, padded."""
    (B, T), S = query.shape[:2], key.shape[1]
    padded_T, padded_S = _padded(T), _padded(S)
    queries = keys = None
    if lengths is not None:
        keys = jnp.arange(S) < lengths[:, None]
        queries = keys if T == S else jnp.broadcast_to((lengths > 0)[:, None], (B, T))
    # In causal attention no query that is answered sees a key past its row's length, or the padding, which come last.
    if segments is None and (causal or (lengths is None and padded_S == S)):
        return queries, keys, None
    numbers = jnp.zeros((B, T), jnp.int32) if segments is None else segments.astype(jnp.int32)
    of_keys = jnp.zeros((B, S), jnp.int32) if segments is None else numbers
    # What is hidden has a number of its own, as no caller's segment has: they are counted from the least of them.
    hidden = jnp.min(numbers) - 1
    of_keys = jnp.where(keys, of_keys, hidden) if keys is not None else of_keys
    of_keys = jnp.pad(of_keys - hidden, ((0, 0), (0, padded_S - S)))
    of_queries = jnp.pad(numbers - hidden, ((0, 0), (0, padded_T - T)), constant_values=1)
    return queries, keys, splash.SegmentIds(of_queries, of_keys)


def _rows(function: Callable[..., Any], ids: splash.SegmentIds | None, *arrays: Array) -> Any:
    """Runs `function` on arrays [B, heads, ...] without their rows.

    Without segments a row's heads differ in nothing from another's, so all of them go together. A row with segments goes
    alone. (`vmap` would do for either, but Pallas' interpreter takes no grid that it has extended.)
    """
    if ids is not None:
        return jax.lax.map(lambda row: function(*row), (ids, *arrays))
    B = arrays[0].shape[0]
    results = function(None, *(array.reshape(-1, *array.shape[2:]) for array in arrays))
    return jax.tree.map(lambda array: array.reshape(B, -1, *array.shape[1:]), results)


def _precision(dtype: Any) -> contextlib.AbstractContextManager:
    """Float32 products in full: a TPU's own default would round their factors to bfloat16."""
    return jax.default_matmul_precision("highest") if dtype == jnp.float32 else contextlib.nullcontext()


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
    (B, T, N, _), S = query.shape, key.shape[1]
    queries, keys, ids = _masks(query, key, causal, lengths, segments)
    kernel = _kernel(_padded(T), _padded(S), N if ids is not None else B * N, causal)
    with _precision(query.dtype):
        out, (lse,) = _rows(
            lambda ids, q, k, v: kernel(q, k, v, ids),
            ids,
            _heads_lead(_scaled(query, scale), _padded(T), queries),
            _heads_lead(key, _padded(S), keys),
            _heads_lead(value, _padded(S), keys),
        )
    out, lse = _tokens_lead(out, T), lse.transpose(0, 2, 1)[:, :T]
    if queries is not None:
        out, lse = jnp.where(queries[:, :, None, None], out, 0), jnp.where(queries[:, :, None], lse, HIDDEN)
    return out, lse


def _scaled(query: Float[Array, "B T N H"], scale: float) -> Float[Array, "B T N H"]:
    """Splash takes scaled queries: exact for a scale of a power of two, rounded to the dtype of the queries otherwise."""
    return (query.astype(jnp.float32) * scale).astype(query.dtype)


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
    (B, T, N, _), S = query.shape, key.shape[1]
    queries, keys, ids = _masks(query, key, causal, lengths, segments)
    kernel = _kernel(_padded(T), _padded(S), N if ids is not None else B * N, causal)
    assert kernel.dq_mask_info is not None and kernel.dkv_mask_info is not None
    mask_dq, mask_dkv, sizes = kernel.dq_mask_info, kernel.dkv_mask_info, kernel.kwargs["block_sizes"]
    options = {
        "is_mqa": False, "mask_value": splash.DEFAULT_MASK_VALUE, "attn_logits_soft_cap": None, "q_layout": sizes.q_layout,
        "k_layout": sizes.k_layout, "v_layout": sizes.v_layout, "mask_function": kernel.kwargs["mask_function"],
        "interpret": False,
    }  # fmt: skip

    def row(ids: splash.SegmentIds | None, *arrays: Array) -> tuple[Array, Array, Array]:
        query, key, value, lse, d_out, di = arrays
        saved = (query, key, value, ids, None, lse, d_out, di)
        _, d_key, d_value = splash._splash_attention_bwd_dkv(
            *saved, bq=sizes.block_q_dkv, bkv=sizes.block_kv_dkv, bkv_compute=sizes.block_kv_dkv_compute,
            use_fused_bwd_kernel=False, mask_info=mask_dkv, **options,
        )  # fmt: skip
        d_query = splash._splash_attention_bwd_dq(
            *saved, bq=sizes.block_q_dq, bkv=sizes.block_kv_dq, mask_info=mask_dq, **options
        )
        return d_query, d_key, d_value

    # A query that sees nothing, or is padding, has no weights: exp(logit - 1e30) is zero.
    lse = jnp.where(lse <= HIDDEN, -HIDDEN, lse)
    lse = jnp.pad(lse, ((0, 0), (0, _padded(T) - T), (0, 0)), constant_values=-HIDDEN).transpose(0, 2, 1)
    if queries is not None:
        d_out, d_lse = jnp.where(queries[:, :, None, None], d_out, 0), jnp.where(queries[:, :, None], d_lse, 0)
    di = jnp.einsum("BTNV,BTNV->BTN", out, d_out, preferred_element_type=jnp.float32) - d_lse
    di = jnp.pad(di, ((0, 0), (0, _padded(T) - T), (0, 0))).transpose(0, 2, 1)
    with _precision(query.dtype):
        d_query, d_key, d_value = _rows(
            row,
            ids,
            _heads_lead(_scaled(query, scale), _padded(T), queries),
            _heads_lead(key, _padded(S), keys),
            _heads_lead(value, _padded(S), keys),
            lse,
            _heads_lead(d_out, _padded(T), queries),
            di,
        )
    return (
        _scaled(_tokens_lead(d_query, T), scale),
        _tokens_lead(d_key, S),
        _tokens_lead(d_value, S),
    )
