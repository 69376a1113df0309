"""The shapes that norms are checked on: rows of a training microbatch and of a decode step, and rows of great width."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import fused_norm
from pallas_kernels.cases import Case
from pallas_kernels.dispatch import Implementation

EPS = 1e-6
CHECKED = 64  # rows and columns of which the expected values are computed


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def _gelu(z: np.ndarray) -> np.ndarray:
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def _gelu_slope(z: np.ndarray) -> np.ndarray:
    # A central difference: its error at this step is about 1e-10.
    return (_gelu(z + 1e-5) - _gelu(z - 1e-5)) / 2e-5


def _expected_rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return _normed(x[:CHECKED], weight)


def _expected_rms_norm_gelu(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return _gelu(_normed(x[:CHECKED], weight))


def _rounded_sum(x: np.ndarray, residual: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) + residual.astype(np.float64)).astype(x.dtype)


def _expected_add_rms_norm(x: np.ndarray, residual: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = _rounded_sum(x[:CHECKED], residual[:CHECKED])
    return _normed(total, weight), total.astype(np.float64)


def _expected_rms_norm_quantize(x: np.ndarray, weight: np.ndarray, *, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Steps before they are rounded: the tolerance is how far rounding may take them."""
    normed = _normed(x[:CHECKED], weight)
    scale = np.abs(normed).max(-1) / largest
    return normed / scale[:, None], scale


def _expected_backward(x: np.ndarray, weight: np.ndarray, d_out: np.ndarray, *, gelu: bool) -> tuple[np.ndarray, np.ndarray]:
    squares = np.concatenate(
        [np.square(x[i : i + 256].astype(np.float32)).mean(-1, dtype=np.float64) for i in range(0, len(x), 256)]
    )
    r = 1 / np.sqrt(squares + EPS)[:, None]
    w = weight.astype(np.float64)

    def pulled(part: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        some, g = x[part].astype(np.float64), d_out[part].astype(np.float64)
        if gelu:
            g = g * _gelu_slope(some * r[part[0]] * w[part[1]])
        return some, g, r[part[0]]

    columns, g, inverse_rms = pulled(np.s_[:, :CHECKED])
    d_weight = (g * columns * inverse_rms).sum(0)
    rows, g, inverse_rms = pulled(np.s_[:CHECKED, :])
    dx = g * w * inverse_rms - rows * inverse_rms**3 * (g * w * rows).mean(-1, keepdims=True)
    return dx, d_weight


def _expected_add_backward(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray, d_normed: np.ndarray, d_sum: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d_total, d_weight = _expected_backward(_rounded_sum(x, residual), weight, d_normed, gelu=False)
    d_total += d_sum[:CHECKED].astype(np.float64)
    return d_total, d_total, d_weight


def _gradients(function: Callable[..., Any], results: int, *arrays: jax.Array, impl: str) -> Any:
    """Of the first arrays, given the cotangents of the results after them."""
    inputs, cotangents = arrays[:-results], arrays[-results:]
    _, pull = jax.vjp(functools.partial(function, eps=EPS, impl=impl), *inputs)
    return pull(cotangents if results > 1 else cotangents[0])


def _case(
    op: str,
    table: tuple[Implementation, ...],
    expected: Callable[..., Any],
    rows: int,
    D: int,
    dtype: str,
    *,
    inputs: int = 1,
    results: int = 1,
    backward: bool = False,
    tolerance: float | None = None,
) -> Case:
    x = jax.ShapeDtypeStruct((rows, D), jnp.dtype(dtype))
    weight = jax.ShapeDtypeStruct((D,), jnp.dtype(dtype))
    function = getattr(fused_norm, op)
    # Backward: the inputs and the cotangents come, and one gradient goes, that of a sum's terms being one array.
    moved = inputs + results + (1 if backward else 0)
    return Case(
        op=op, label=f"rows={rows} D={D}", dtype=dtype, table=table,
        arguments=(*[x] * inputs, weight, *([x] * results if backward else [])),
        run=functools.partial(_gradients, function, results) if backward else functools.partial(function, eps=EPS),
        expected=expected, bytes=moved * x.size * x.dtype.itemsize, flops=0, backward=backward,
        tolerance=tolerance or (1e-4 if backward and dtype == "float32" else None),
    )  # fmt: skip


def _rms_norm(rows: int, D: int, dtype: str, *, backward: bool = False) -> Case:
    expected = functools.partial(_expected_backward, gelu=False) if backward else _expected_rms_norm
    return _case("rms_norm", fused_norm.RMS_NORM, expected, rows, D, dtype, backward=backward)


def _rms_norm_gelu(rows: int, D: int, dtype: str, *, backward: bool = False) -> Case:
    expected = functools.partial(_expected_backward, gelu=True) if backward else _expected_rms_norm_gelu
    return _case("rms_norm_gelu", fused_norm.RMS_NORM_GELU, expected, rows, D, dtype, backward=backward)


def _add_rms_norm(rows: int, D: int, dtype: str, *, backward: bool = False) -> Case:
    expected = _expected_add_backward if backward else _expected_add_rms_norm
    table = fused_norm.ADD_RMS_NORM
    return _case("add_rms_norm", table, expected, rows, D, dtype, inputs=2, results=2, backward=backward)


def _rms_norm_quantize(rows: int, D: int, dtype: str, to: str) -> Case:
    # int8 rounds by half a step at most, which is greatest against 1 + steps at the half itself: 0.5 / 1.5. float8 keeps
    # three bits of mantissa: 2^-4 of the value.
    largest, tolerance = {"int8": (127.0, 0.34), "float8_e4m3fn": (448.0, 0.0626)}[to]
    x = jax.ShapeDtypeStruct((rows, D), jnp.dtype(dtype))
    return Case(
        op="rms_norm_quantize", label=f"rows={rows} D={D} to {to}", dtype=dtype, table=fused_norm.RMS_NORM_QUANTIZE,
        arguments=(x, jax.ShapeDtypeStruct((D,), jnp.dtype(dtype))),
        run=functools.partial(fused_norm.rms_norm_quantize, dtype=to, eps=EPS),
        expected=functools.partial(_expected_rms_norm_quantize, largest=largest),
        bytes=x.size * (x.dtype.itemsize + 1) + 4 * rows, flops=0, tolerance=tolerance,
    )  # fmt: skip


CASES = (
    _rms_norm(16384, 2048, "bfloat16"),
    _rms_norm(16384, 7168, "bfloat16"),
    _rms_norm(64, 7168, "bfloat16"),
    _rms_norm(16384, 2048, "float32"),
    _rms_norm(16384, 7168, "float32"),
    _rms_norm(4096, 16384, "bfloat16"),
    _rms_norm(16384, 2048, "bfloat16", backward=True),
    _rms_norm(16384, 7168, "bfloat16", backward=True),
    _rms_norm(16384, 2048, "float32", backward=True),
    _rms_norm(16384, 7168, "float32", backward=True),
    _rms_norm(4096, 16384, "bfloat16", backward=True),
    _add_rms_norm(16384, 7168, "bfloat16"),
    _add_rms_norm(64, 7168, "bfloat16"),
    _add_rms_norm(16384, 7168, "float32"),
    _add_rms_norm(16384, 7168, "bfloat16", backward=True),
    _add_rms_norm(16384, 7168, "float32", backward=True),
    _rms_norm_gelu(16384, 2048, "bfloat16"),
    _rms_norm_gelu(16384, 7168, "bfloat16"),
    _rms_norm_gelu(16384, 7168, "bfloat16", backward=True),
    _rms_norm_gelu(16384, 7168, "float32", backward=True),
    _rms_norm_quantize(16384, 7168, "bfloat16", "int8"),
    _rms_norm_quantize(16384, 7168, "bfloat16", "float8_e4m3fn"),
    _rms_norm_quantize(64, 7168, "bfloat16", "int8"),
    _rms_norm_quantize(16384, 7168, "float32", "float8_e4m3fn"),
)
