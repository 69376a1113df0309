"""The shapes that norms are checked on: rows of a training microbatch and of a decode step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import fused_norm
from pallas_kernels.cases import Case


def _expected_rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x, weight = x[:64].astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def _rms_norm(rows: int, D: int, dtype: str) -> Case:
    x = jax.ShapeDtypeStruct((rows, D), jnp.dtype(dtype))
    return Case(
        op="rms_norm", label=f"rows={rows} D={D}", dtype=dtype, table=fused_norm.RMS_NORM,
        arguments=(x, jax.ShapeDtypeStruct((D,), jnp.dtype(dtype))),
        run=functools.partial(fused_norm.rms_norm, eps=1e-6), expected=_expected_rms_norm,
        bytes=2 * x.size * x.dtype.itemsize, flops=0,
    )  # fmt: skip


CASES = (
    _rms_norm(16384, 2048, "bfloat16"),
    _rms_norm(16384, 7168, "bfloat16"),
    _rms_norm(64, 7168, "bfloat16"),
    _rms_norm(16384, 2048, "float32"),
)
