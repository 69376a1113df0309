"""Norms as Pallas TPU kernels: a block of whole rows at a time in VMEM."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Num

from pallas_kernels.fused_norm.quantized import SMALLEST_SCALE, largest

# A block of rows as float32. Backward, four arrays come and go through two buffers each and as many live as float32: with
# this all of it stays below the 16 MiB that a kernel has by default.
BLOCK_BYTES = 1 << 20

GELU_SLOPE = math.sqrt(2 / math.pi)


def _normed(x_ref: Any, weight_ref: Any, eps: float) -> Array:
    x = x_ref[...].astype(jnp.float32)
    return x * _inverse_rms(x, eps) * weight_ref[...].astype(jnp.float32)


def _inverse_rms(x: Array, eps: float) -> Array:
    return jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def _rms_norm_kernel(x_ref: Any, weight_ref: Any, out_ref: Any, *, eps: float) -> None:
    out_ref[...] = _normed(x_ref, weight_ref, eps).astype(out_ref.dtype)


def _rms_norm_gelu_kernel(x_ref: Any, weight_ref: Any, out_ref: Any, *, eps: float) -> None:
    out_ref[...] = jax.nn.gelu(_normed(x_ref, weight_ref, eps), approximate=True).astype(out_ref.dtype)


def _add_rms_norm_kernel(x_ref: Any, residual_ref: Any, weight_ref: Any, out_ref: Any, sum_ref: Any, *, eps: float) -> None:
    total = x_ref[...].astype(jnp.float32) + residual_ref[...].astype(jnp.float32)
    sum_ref[...] = total.astype(sum_ref.dtype)
    out_ref[...] = _normed(sum_ref, weight_ref, eps).astype(out_ref.dtype)  # of the sum as it is stored


def _rms_norm_quantize_kernel(x_ref: Any, weight_ref: Any, out_ref: Any, scale_ref: Any, *, eps: float) -> None:
    normed = _normed(x_ref, weight_ref, eps)
    scale = jnp.max(jnp.abs(normed), axis=-1, keepdims=True) / largest(out_ref.dtype)
    scale = jnp.where(scale >= SMALLEST_SCALE, scale, 0.0)
    steps = normed * jnp.where(scale > 0, 1 / jnp.where(scale > 0, scale, 1.0), 0.0)
    if jnp.issubdtype(out_ref.dtype, jnp.integer):
        steps = jnp.round(steps).astype(jnp.int32)
    out_ref[...] = steps.astype(out_ref.dtype)
    scale_ref[...] = scale


def _rms_norm_backward_kernel(*refs: Any, eps: float, gelu: bool, rows: int) -> None:
    """dx = r w g - x r^3 mean(w g x), dw = sum over rows of g x r; r the inverse rms, g the cotangent of the normed row."""
    x_ref, d_out_ref, *d_sum_ref, weight_ref, dx_ref, d_weight_ref = refs
    x, weight = x_ref[...].astype(jnp.float32), weight_ref[...].astype(jnp.float32)
    g = d_out_ref[...].astype(jnp.float32)
    inverse_rms = _inverse_rms(x, eps)
    if gelu:
        z = x * inverse_rms * weight
        half = 0.5 * (1 + jnp.tanh(GELU_SLOPE * (z + 0.044715 * z * z * z)))
        g = g * (half + z * half * (1 - half) * (2 * GELU_SLOPE * (1 + 3 * 0.044715 * z * z)))
    pull = inverse_rms * inverse_rms * inverse_rms * jnp.mean(g * weight * x, axis=-1, keepdims=True)
    dx = g * weight * inverse_rms - x * pull
    for ref in d_sum_ref:
        dx += ref[...].astype(jnp.float32)
    dx_ref[...] = dx.astype(dx_ref.dtype)
    # What the last block holds past the last row is anything.
    row = pl.program_id(0) * x.shape[0] + jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], 1), 0)
    d_weight_ref[0] = jnp.sum(jnp.where(row < rows, g * x * inverse_rms, 0.0), axis=0, keepdims=True)


def _call(
    kernel: Callable[..., None],
    rows: Sequence[Array],
    weight_D: Array,
    out_dtypes: Sequence[Any],
    *,
    name: str,
    scales: bool = False,
    weight_sums: bool = False,
) -> list[Array]:
    """`kernel` on blocks of [M, D] arrays: rows and weight in, rows out; then scales [M, 1], or sums [blocks, 1, D]."""
    M, D = rows[0].shape
    # A tile of the narrowest dtype here has so many rows.
    sublanes = max(8 * 4 // jnp.dtype(dtype).itemsize for dtype in (*(r.dtype for r in rows), *out_dtypes))
    block = min(M, max(sublanes, min(1024, BLOCK_BYTES // (4 * D)) // sublanes * sublanes))
    blocks = pl.cdiv(M, block)
    by_row = pl.BlockSpec((block, D), lambda i: (i, 0))
    out_shapes = [jax.ShapeDtypeStruct((M, D), dtype) for dtype in out_dtypes]
    out_specs = [by_row for _ in out_dtypes]
    if scales:
        out_shapes.append(jax.ShapeDtypeStruct((M, 1), jnp.float32))
        out_specs.append(pl.BlockSpec((block, 1), lambda i: (i, 0)))
    if weight_sums:
        out_shapes.append(jax.ShapeDtypeStruct((blocks, 1, D), jnp.float32))
        out_specs.append(pl.BlockSpec((1, 1, D), lambda i: (i, 0, 0)))
    return pl.pallas_call(
        kernel,
        out_shape=out_shapes,
        grid=(blocks,),
        in_specs=[*(by_row for _ in rows), pl.BlockSpec((1, D), lambda i: (0, 0))],
        out_specs=out_specs,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        name=name,
    )(*rows, weight_D[None])


def rms_norm(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    x_MD = x.reshape(-1, x.shape[-1])
    (out,) = _call(functools.partial(_rms_norm_kernel, eps=eps), [x_MD], weight_D, [x.dtype], name="rms_norm")
    return out.reshape(x.shape)


def rms_norm_gelu(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    x_MD = x.reshape(-1, x.shape[-1])
    (out,) = _call(functools.partial(_rms_norm_gelu_kernel, eps=eps), [x_MD], weight_D, [x.dtype], name="rms_norm_gelu")
    return out.reshape(x.shape)


def add_rms_norm(
    x: Float[Array, "... D"], residual: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    x_MD = x.reshape(-1, x.shape[-1])
    out, total = _call(
        functools.partial(_add_rms_norm_kernel, eps=eps), [x_MD, residual.reshape(x_MD.shape)], weight_D,
        [x.dtype, x.dtype], name="add_rms_norm",
    )  # fmt: skip
    return out.reshape(x.shape), total.reshape(x.shape)


def rms_norm_quantize(
    x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, dtype: jnp.dtype, eps: float
) -> tuple[Num[Array, "... D"], Float[Array, "..."]]:
    x_MD = x.reshape(-1, x.shape[-1])
    kernel = functools.partial(_rms_norm_quantize_kernel, eps=eps)
    steps, scale = _call(kernel, [x_MD], weight_D, [dtype], scales=True, name="rms_norm_quantize")
    return steps.reshape(x.shape), scale.reshape(x.shape[:-1])


def _backward(x: Array, weight_D: Array, *d_results: Array, eps: float, gelu: bool, name: str) -> tuple[Array, Array]:
    x_MD = x.reshape(-1, x.shape[-1])
    dx, sums = _call(
        functools.partial(_rms_norm_backward_kernel, eps=eps, gelu=gelu, rows=x_MD.shape[0]),
        [x_MD, *(d.reshape(x_MD.shape) for d in d_results)], weight_D, [x.dtype], weight_sums=True, name=name,
    )  # fmt: skip
    return dx.reshape(x.shape), sums.sum((0, 1)).astype(weight_D.dtype)


def rms_norm_backward(x: Array, weight_D: Array, d_out: Array, *, eps: float) -> tuple[Array, Array]:
    return _backward(x, weight_D, d_out, eps=eps, gelu=False, name="rms_norm_backward")


def rms_norm_gelu_backward(x: Array, weight_D: Array, d_out: Array, *, eps: float) -> tuple[Array, Array]:
    return _backward(x, weight_D, d_out, eps=eps, gelu=True, name="rms_norm_gelu_backward")


def add_rms_norm_backward(
    total: Array, weight_D: Array, d_normed: Array, d_sum: Array, *, eps: float
) -> tuple[Array, Array]:
    return _backward(total, weight_D, d_normed, d_sum, eps=eps, gelu=False, name="add_rms_norm_backward")
