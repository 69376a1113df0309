"""The shapes that grouped-query decode is checked and timed on: steps of generation with long caches."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.cases import Arrays, Case
from pallas_kernels.dispatch import Implementation
from pallas_kernels.gqa_decode import (
    GQA_DECODE,
    GQA_DECODE_PAGED,
    gqa_decode,
    gqa_decode_paged,
    gqa_decode_shared_prefix,
)

QUANTIZED = ("int8", "float8_e4m3fn")


def _attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """One row with causal queries: query [P, N, H], key [K, S, H], value [K, S, Hv] in float64."""
    P, N, H = query.shape
    out, lse = np.zeros((P, N, value.shape[-1])), np.full((P, N), -1e30)
    for p in range(P):
        end = length - P + p + 1
        for n in range(N) if end > 0 else ():
            k = n // (N // key.shape[0])
            logits = key[k, :end] @ query[p, n] * H**-0.5
            weights = np.exp(logits - logits.max())
            out[p, n] = weights @ value[k, :end] / weights.sum()
            lse[p, n] = logits.max() + np.log(weights.sum())
    return out, lse


def _wide(array: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    return array.astype(np.float64) * (1 if scales is None else scales[..., None].astype(np.float64))


def _expected(query, key, value, lengths, key_scales=None, value_scales=None) -> tuple[np.ndarray, np.ndarray]:
    """The first row."""
    key, value = (
        _wide(array[0], scales if scales is None else scales[0])
        for array, scales in ((key, key_scales), (value, value_scales))
    )
    out, lse = _attention(query[0].astype(np.float64), key, value, int(lengths[0]))
    return out[None], lse[None]


def _expected_paged(query, key, value, table, lengths, key_scales=None, value_scales=None) -> tuple[np.ndarray, np.ndarray]:
    key, value = (
        np.concatenate(list(_wide(array[table[0]], scales if scales is None else scales[table[0]])), axis=1)
        for array, scales in ((key, key_scales), (value, value_scales))
    )
    out, lse = _attention(query[0].astype(np.float64), key, value, int(lengths[0]))
    return out[None], lse[None]


def _expected_shared(query, prefix_key, prefix_value, prefix_lengths, key, value, lengths) -> tuple[np.ndarray, np.ndarray]:
    prefix, own = int(prefix_lengths[0]), int(lengths[0])
    keys = np.concatenate([prefix_key[0, :, :prefix], key[0, :, :own]], axis=1).astype(np.float64)
    values = np.concatenate([prefix_value[0, :, :prefix], value[0, :, :own]], axis=1).astype(np.float64)
    out, lse = _attention(query[0].astype(np.float64), keys, values, prefix + own)
    return out[None], lse[None]


def _run(*arrays: jax.Array, op: Any, impl: str | None, scale: float, plain: int) -> Any:
    """The scales, where there are any, come after the first `plain` arrays."""
    scales = dict(zip(("key_scales", "value_scales"), arrays[plain:], strict=False))
    return op(*arrays[:plain], scale=scale, impl=impl, **scales)


def _fill(generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...], *, slots: int, pages: int) -> Arrays:
    """Normals; full lengths; a permutation of the pages; scales that make a quantized cache about a normal one."""
    arrays = []
    for a in arguments:
        if a.dtype == jnp.int32:
            table = generator.permutation(pages).reshape(a.shape).astype(np.int32) if len(a.shape) == 2 else None
            arrays.append(np.full(a.shape, slots, np.int32) if table is None else table)
        elif a.dtype == jnp.int8:
            arrays.append(generator.integers(-127, 128, a.shape, np.int8))
        elif len(a.shape) == 3:
            arrays.append(generator.uniform(0.01, 0.02, a.shape).astype(np.float32))
        else:
            arrays.append(generator.standard_normal(a.shape, np.float32).astype(a.dtype))
    return tuple(arrays)


def _case(
    B: int, S: int, N: int, K: int, H: int, dtype: str, *, P: int = 1, page: int = 0, compute: str = "bfloat16"
) -> Case:
    """A step over contiguous rows, or over pages of the given size."""
    quantized = dtype in QUANTIZED
    query = jax.ShapeDtypeStruct((B, P, N, H), jnp.dtype(compute if quantized else dtype))
    rows = (B * S // page, K, page) if page else (B, K, S)
    cache = jax.ShapeDtypeStruct((*rows, H), jnp.dtype(dtype))
    lengths = jax.ShapeDtypeStruct((B,), jnp.int32)
    table = (jax.ShapeDtypeStruct((B, S // page), jnp.int32),) if page else ()
    scales = (jax.ShapeDtypeStruct(rows, jnp.float32),) * 2 if quantized else ()
    op: Any = gqa_decode_paged if page else gqa_decode
    implementations: tuple[Implementation, ...] = GQA_DECODE_PAGED if page else GQA_DECODE
    return Case(
        op=op.__name__, label=f"B={B} S={S} N={N} K={K} H={H} P={P}" + (f" page={page}" if page else ""), dtype=dtype,
        table=implementations, arguments=(query, cache, cache, *table, lengths, *scales),
        run=functools.partial(_run, op=op, scale=H**-0.5, plain=4 + len(table)),
        expected=_expected_paged if page else _expected,
        bytes=2 * (cache.size * cache.dtype.itemsize + query.size * query.dtype.itemsize) + sum(s.size * 4 for s in scales),
        flops=4 * B * P * N * S * H,
        fill=functools.partial(_fill, slots=S, pages=B * S // page if page else 0),
        tolerance=1e-5 if query.dtype == jnp.float32 else 1e-2,
    )  # fmt: skip


def _shared(A: int, G: int, S0: int, S: int, N: int, K: int, H: int, dtype: str) -> Case:
    """G samples of each of A prompts of S0 tokens, each with S tokens of its own."""
    query = jax.ShapeDtypeStruct((A * G, 1, N, H), jnp.dtype(dtype))
    prefix = jax.ShapeDtypeStruct((A, K, S0, H), jnp.dtype(dtype))
    own = jax.ShapeDtypeStruct((A * G, K, S, H), jnp.dtype(dtype))
    prompts, rows = jax.ShapeDtypeStruct((A,), jnp.int32), jax.ShapeDtypeStruct((A * G,), jnp.int32)

    def fill(generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...]) -> Arrays:
        arrays = list(_fill(generator, arguments, slots=S, pages=0))
        arrays[3] = np.full((A,), S0, np.int32)
        return tuple(arrays)

    return Case(
        op="gqa_decode_shared_prefix", label=f"A={A} G={G} S0={S0} S={S} N={N} K={K} H={H}", dtype=dtype,
        table=GQA_DECODE, arguments=(query, prefix, prefix, prompts, own, own, rows),
        run=functools.partial(_run, op=gqa_decode_shared_prefix, scale=H**-0.5, plain=7),
        expected=_expected_shared,
        bytes=2 * (prefix.size + own.size + query.size) * query.dtype.itemsize,
        flops=4 * A * G * N * (S0 + S) * H, fill=fill,
    )  # fmt: skip


CASES = (
    _case(64, 8192, 32, 8, 128, "bfloat16"),
    _case(4, 8192, 32, 8, 128, "bfloat16"),
    _case(4, 8192, 32, 8, 128, "bfloat16", P=8),
    _case(64, 8192, 32, 8, 64, "bfloat16"),
    _case(64, 8192, 32, 1, 128, "bfloat16"),
    _case(16, 4096, 32, 32, 128, "bfloat16"),
    _case(64, 2048, 9, 3, 64, "bfloat16"),
    _case(16, 2048, 9, 3, 64, "float32"),
    _case(64, 8192, 32, 8, 128, "int8"),
    _case(64, 8192, 32, 8, 128, "float8_e4m3fn"),
    _case(64, 8192, 32, 8, 128, "bfloat16", page=64),
    _case(64, 8192, 32, 8, 128, "bfloat16", page=16),
    _case(64, 8192, 32, 8, 128, "int8", page=64),
    _shared(8, 64, 2048, 1024, 32, 8, 128, "bfloat16"),
)
