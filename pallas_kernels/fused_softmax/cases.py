"""The shapes that softmax is checked on: rows of a vocabulary, and rows of attention scores."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import fused_softmax
from pallas_kernels.cases import Case

CHECKED = 16  # rows of which the expected values are computed


def _expected_softmax(x: np.ndarray) -> np.ndarray:
    x = x[:CHECKED].astype(np.float64)
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _expected_gradient(x: np.ndarray, d_out: np.ndarray) -> np.ndarray:
    out, d_out = _expected_softmax(x), d_out[:CHECKED].astype(np.float64)
    return out * (d_out - (out * d_out).sum(-1, keepdims=True))


def _gradient(x: jax.Array, d_out: jax.Array, *, impl: str) -> Any:
    return jax.vjp(functools.partial(fused_softmax.softmax, impl=impl), x)[1](d_out)[0]


def _fill(generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[np.ndarray, ...]:
    """Logits so far apart that a few carry a row: all weights would be near 0 otherwise."""
    x, *d_out = (generator.standard_normal(a.shape, np.float32) for a in arguments)
    return tuple(array.astype(a.dtype) for array, a in zip((6 * x, *d_out), arguments))


def _softmax(rows: int, V: int, dtype: str, *, backward: bool = False) -> Case:
    x = jax.ShapeDtypeStruct((rows, V), jnp.dtype(dtype))
    return Case(
        op="softmax", label=f"rows={rows} V={V}", dtype=dtype, table=fused_softmax.SOFTMAX,
        arguments=(x, x) if backward else (x,), run=_gradient if backward else fused_softmax.softmax,
        expected=_expected_gradient if backward else _expected_softmax,
        bytes=(3 if backward else 2) * x.size * x.dtype.itemsize, flops=0, fill=_fill, backward=backward,
    )  # fmt: skip


CASES = (
    _softmax(16384, 4096, "bfloat16"),
    _softmax(16384, 4096, "float32"),
    _softmax(1024, 131072, "bfloat16"),
    _softmax(1024, 131072, "float32"),
    _softmax(16384, 4096, "bfloat16", backward=True),
    _softmax(16384, 4096, "float32", backward=True),
    _softmax(1024, 131072, "bfloat16", backward=True),
    _softmax(1024, 131072, "float32", backward=True),
)
