"""The shapes that MLA decoding is checked on: DeepSeek-V2's latents, a decode step and a verification of drafts."""

import functools
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.cases import Arrays, Case
from pallas_kernels.mla_decode import MLA_DECODE, MLA_DECODE_PAGED, mla_decode, mla_decode_paged

C, R, PAGE = 512, 64, 64
SCALE = (128 + 64) ** -0.5
ROWS_EXPECTED, HEADS_EXPECTED = 1, 2


def _lengths(B: int, S: int) -> np.ndarray:
    """From full down to half, so that what depends on lengths is exercised."""
    return np.linspace(S, S // 2, B).astype(np.int32)


def _expected(
    q_latent: np.ndarray, q_rope: np.ndarray, latent: np.ndarray, rope: np.ndarray, lengths: np.ndarray,
    scales: np.ndarray | None = None, *, tree: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Row after row, query after query, in float64."""
    P = q_latent.shape[1]
    outs = np.zeros((ROWS_EXPECTED, P, HEADS_EXPECTED, latent.shape[-1]))
    lses = np.zeros((ROWS_EXPECTED, P, HEADS_EXPECTED))
    for b in range(ROWS_EXPECTED):
        length = int(lengths[b])
        values = latent[b, :length].astype(np.float64)
        if scales is not None:
            values *= np.repeat(scales[b, :length].astype(np.float64), values.shape[-1] // scales.shape[-1], axis=-1)
        keys = np.concatenate([values, rope[b, :length].astype(np.float64)], axis=-1)
        for p in range(P):
            hidden = length - P + np.array([j for j in range(P) if j > p or (tree and not _tree(P)[p, j])], np.int64)
            for n in range(HEADS_EXPECTED):
                query = np.concatenate([q_latent[b, p, n], q_rope[b, p, n]]).astype(np.float64)
                logits = SCALE * keys @ query
                logits[hidden] = -np.inf
                weights = np.exp(logits - logits.max())
                outs[b, p, n] = weights @ values / weights.sum()
                lses[b, p, n] = logits.max() + math.log(weights.sum())
    return outs, lses


def _expected_paged(
    q_latent: np.ndarray, q_rope: np.ndarray, latent: np.ndarray, rope: np.ndarray, table: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    pages = table[:ROWS_EXPECTED]

    def gathered(cache: np.ndarray) -> np.ndarray:
        return cache[pages].reshape(ROWS_EXPECTED, -1, cache.shape[-1])

    return _expected(q_latent, q_rope, gathered(latent), gathered(rope), lengths)


def _tree(P: int) -> np.ndarray:
    """A binary tree of drafted tokens: token i hangs below token (i - 1) // 2."""
    tree = np.eye(P, dtype=bool)
    for i in range(1, P):
        tree[i] |= tree[(i - 1) // 2]
    return tree


def _fill(generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...], *, S: int, paged: bool) -> Arrays:
    """Normals; 8-bit latents with scales that make normals of them; lengths; pages in a random order."""
    arrays = []
    for i, a in enumerate(arguments):
        name = a.dtype.name
        if name == "int32":
            last = i == (5 if paged else 4)
            arrays.append(_lengths(a.shape[0], S) if last else generator.permutation(math.prod(a.shape)).reshape(a.shape))
        elif name == "int8":
            arrays.append(generator.integers(-127, 128, a.shape))
        elif name == "float8_e4m3fn":
            arrays.append(generator.standard_normal(a.shape, np.float32).astype(ml_dtypes.float8_e4m3fn))
        elif i == 5:
            arrays.append(generator.uniform(0.5, 1.0, a.shape) / (73 if arguments[2].dtype.name == "int8" else 1))
        else:
            arrays.append(generator.standard_normal(a.shape, np.float32))
    return tuple(array.astype(a.dtype) for array, a in zip(arrays, arguments, strict=True))


def _case(
    B: int, S: int, N: int, *, P: int = 1, dtype: str = "bfloat16", cache: str | None = None, paged: bool = False,
    tree: bool = False,
) -> Case:  # fmt: skip
    def array(*shape: int, dtype: str = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    queries = (array(B, P, N, C), array(B, P, N, R))
    leading = (B * (S // PAGE), PAGE) if paged else (B, S)
    slots = (array(*leading, C, dtype=cache or dtype), array(*leading, R))
    lengths = (array(B, dtype="int32"),)
    table = (array(B, S // PAGE, dtype="int32"),) if paged else ()
    scales = (array(*leading, C // 128, dtype="float32"),) if cache else ()
    mask = jnp.asarray(_tree(P)) if tree else None

    def run(*arrays: jax.Array, impl: str | None = None) -> tuple[jax.Array, jax.Array]:
        op = mla_decode_paged if paged else mla_decode
        latent_scales = arrays[5] if cache else None
        return op(*arrays[: 6 if paged else 5], scale=SCALE, mask=mask, latent_scales=latent_scales, impl=impl)

    tokens = int(_lengths(B, S).sum())
    of_slot = sum(a.dtype.itemsize * a.shape[-1] for a in (*slots, *scales))
    of_queries = sum(a.size * a.dtype.itemsize for a in (*queries, queries[0])) + 4 * B * P * N
    return Case(
        op="mla_decode_paged" if paged else "mla_decode",
        label=f"B{B} S{S} N{N} P{P}" + (f" {cache}" if cache else "") + (" tree" if tree else ""),
        dtype=dtype,
        table=MLA_DECODE_PAGED if paged else MLA_DECODE,
        arguments=(*queries, *slots, *table, *lengths, *scales),
        run=run,
        expected=_expected_paged if paged else functools.partial(_expected, tree=tree),
        bytes=tokens * of_slot + of_queries,
        flops=2 * (C + R + C) * N * P * tokens,
        fill=functools.partial(_fill, S=S, paged=paged),
    )


CASES = (
    _case(64, 8192, 16),
    _case(64, 8192, 128),
    _case(8, 8192, 16),
    _case(64, 8192, 16, P=4),
    _case(64, 8192, 128, P=4, tree=True),
    _case(64, 8192, 16, paged=True),
    _case(64, 8192, 128, P=4, paged=True),
    _case(64, 8192, 16, cache="float8_e4m3fn"),
    _case(64, 8192, 16, cache="int8"),
    _case(64, 8192, 128, cache="float8_e4m3fn"),
    _case(8, 2048, 16, dtype="float32"),
    _case(8, 2048, 16, P=4, dtype="float32"),
)
