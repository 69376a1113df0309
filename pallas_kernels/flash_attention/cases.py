"""The shapes that attention is checked on: training microbatches, with and without gradients, packed and ragged."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.cases import Arrays, Case, normals
from pallas_kernels.flash_attention import FLASH_ATTENTION, flash_attention

# What `expected` covers of the first row and the first key head's first query head: queries, and keys' gradients.
QUERIES, KEYS = 1024, 64
CHUNK = 512


def _attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, d_out: np.ndarray, seen: Any, scale: float, backward: bool
) -> tuple[np.ndarray, ...]:
    """One head in float64, a chunk of queries at a time: out, lse, and gradients of sum(out * d_out).

    The gradient of the first KEYS keys needs all queries; everything else is for the first QUERIES queries.
    """
    T = len(query) if backward else min(len(query), QUERIES)
    d_key, d_value = np.zeros((min(T, KEYS), key.shape[1])), np.zeros((min(T, KEYS), value.shape[1]))
    out, lse, d_query = np.zeros((T, value.shape[1])), np.full(T, -1e30), np.zeros_like(query)
    for start in range(0, T, CHUNK):
        rows = slice(start, min(start + CHUNK, T))
        columns = slice(0, rows.stop)
        visible = seen(np.arange(T)[rows, None], np.arange(T)[None, columns])
        answered = visible.any(1)
        logits = np.where(visible, scale * query[rows] @ key[columns].T, -np.inf)
        largest = np.where(answered, logits.max(1), 0.0)
        weights = np.exp(logits - largest[:, None])
        total = np.where(answered, weights.sum(1), 1.0)
        weights /= total[:, None]
        out[rows] = weights @ value[columns]
        lse[rows] = np.where(answered, largest + np.log(total), -1e30)
        if backward:
            kept = columns if rows.stop <= QUERIES else slice(0, KEYS)
            d_weights = d_out[rows] @ value[kept].T
            d_logits = scale * weights[:, kept] * (d_weights - (out[rows] * d_out[rows]).sum(1)[:, None])
            if rows.stop <= QUERIES:
                d_query[rows] = d_logits @ key[kept]
            d_key += d_logits[:, :KEYS].T @ query[rows]
            d_value += weights[:, :KEYS].T @ d_out[rows]
    return out[:QUERIES], lse[:QUERIES], d_query[:QUERIES], d_key, d_value


def _expected(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *rest: np.ndarray, scale: float, names: tuple[str, ...]
) -> tuple[np.ndarray, ...]:
    more = dict(zip(names, rest, strict=True))

    def seen(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        visible = columns <= rows
        if "lengths" in more:
            visible = visible & (columns < more["lengths"][0]) & (rows < more["lengths"][0])
        if "segments" in more:
            visible = visible & (more["segments"][0][rows] == more["segments"][0][columns])
        return visible

    def head(array: np.ndarray, n: int) -> np.ndarray:
        return array[0, :, n].astype(np.float64)

    backward = "d_out" in more
    d_out = more.get("d_out", np.zeros((*query.shape[:3], value.shape[3]), np.float32))
    members = range(query.shape[2] // key.shape[2] if backward else 1)
    results = [
        _attention(head(query, n), head(key, 0), head(value, 0), head(d_out, n), seen, scale, backward) for n in members
    ]
    out, lse, d_query, _, _ = (array[None, :, None] for array in results[0])
    if not backward:
        return out, lse
    d_key, d_value = (np.sum([result[i] for result in results], axis=0)[None, :, None] for i in (3, 4))
    return out, d_query, d_key, d_value


def _run(query: Any, key: Any, value: Any, *rest: Any, scale: float, names: tuple[str, ...], impl: str | None) -> Any:
    options = dict(zip(names, rest, strict=True))
    d_out = options.pop("d_out", None)

    def attend(query: Any, key: Any, value: Any) -> Any:
        return flash_attention(query, key, value, scale=scale, impl=impl, **options)

    if d_out is None:
        return attend(query, key, value)
    out, pull = jax.vjp(lambda *arrays: attend(*arrays)[0], query, key, value)
    return (out, *pull(d_out))


def _fill(
    generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...], names: tuple[str, ...], packed: int
) -> Arrays:
    """Normals; segments of random lengths, `packed` to a row; lengths from half of T to all of it."""
    B, T = arguments[0].shape[:2]
    made = {
        "segments": lambda: np.sort(generator.integers(0, packed, (B, T)).astype(np.int32), axis=1),
        "lengths": lambda: generator.integers(T // 2, T + 1, (B,)).astype(np.int32),
    }
    named = (None, None, None, *names)
    return tuple(
        made[name]() if name in made else normals(generator, (argument,))[0]
        for name, argument in zip(named, arguments, strict=True)
    )


def _case(
    label: str, B: int, T: int, N: int, K: int, H: int, HV: int, *, dtype: str = "bfloat16", names: tuple[str, ...] = (),
    packed: int = 8,
) -> Case:  # fmt: skip
    """A causal case. FLOPs are those below the diagonal: two products forward, and five backward, as few as there can be."""
    backward = "d_out" in names
    float_, integer = jnp.dtype(dtype), jnp.dtype("int32")
    shapes = {
        "d_out": jax.ShapeDtypeStruct((B, T, N, HV), float_),
        "segments": jax.ShapeDtypeStruct((B, T), integer),
        "lengths": jax.ShapeDtypeStruct((B,), integer),
    }
    query, key, value = (jax.ShapeDtypeStruct((B, T, *rest), float_) for rest in ((N, H), (K, H), (K, HV)))
    inputs = query.size + key.size + value.size
    numbers = inputs + B * T * N * HV
    lse = 0 if backward else 4 * B * T * N
    seen = B * N * T * (T + 1) // 2
    if "segments" in names:
        seen //= packed
    return Case(
        op="flash_attention", label=f"{label} B{B} T{T} N{N} K{K} H{H}/{HV}" + (" fwd+bwd" if backward else ""), dtype=dtype,
        table=FLASH_ATTENTION, arguments=(query, key, value, *(shapes[name] for name in names)),
        run=functools.partial(_run, scale=H**-0.5, names=names),
        expected=functools.partial(_expected, scale=H**-0.5, names=names),
        bytes=(numbers + (inputs + B * T * N * HV if backward else 0)) * float_.itemsize + lse,
        flops=2 * seen * (H + HV) + (2 * seen * (3 * H + 2 * HV) if backward else 0),
        fill=functools.partial(_fill, names=names, packed=packed), backward=backward,
    )  # fmt: skip


CASES = (
    _case("MLA", 2, 4096, 16, 16, 192, 128),
    _case("MLA", 2, 4096, 16, 16, 192, 128, names=("d_out",)),
    _case("GQA", 2, 4096, 32, 8, 128, 128),
    _case("GQA", 4, 2048, 32, 8, 128, 128, names=("d_out",)),
    _case("MLA packed", 2, 4096, 16, 16, 192, 128, names=("segments", "d_out")),
    _case("GQA ragged", 4, 2048, 32, 8, 128, 128, names=("lengths", "d_out")),
    _case("GQA", 2, 512, 4, 2, 64, 64, dtype="float32"),
    _case("GQA", 2, 512, 4, 2, 64, 64, dtype="float32", names=("d_out",)),
)
