"""Softmax as Pallas TPU kernels: two passes over blocks of columns, of which a narrow row has one.

The grid is (blocks of rows, passes, blocks of columns). The first pass sums in scratch memory and holds the output on its
first block, which is not written back before the second pass has filled it. Of a row of one block both passes read the same
block, which is fetched once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

# A block as float32. Backward, three arrays come and go through two buffers each, and some four more live between.
BLOCK_BYTES = 1 << 20
BLOCK_V = 8192

LOWEST = float(jnp.finfo(jnp.float32).min)


def _softmax_kernel(x_ref: Any, out_ref: Any, greatest_ref: Any, total_ref: Any, *, V: int) -> None:
    x = x_ref[...].astype(jnp.float32)
    x = jnp.where(_inside(x.shape, V), x, -jnp.inf)  # exp gives zero, whatever is subtracted

    @pl.when((pl.program_id(1) == 0) & (pl.program_id(2) == 0))
    def _start() -> None:
        greatest_ref[...] = jnp.full_like(greatest_ref, LOWEST)
        total_ref[...] = jnp.zeros_like(total_ref)

    @pl.when(pl.program_id(1) == 0)
    def _sum() -> None:
        before = greatest_ref[...]
        greatest = jnp.maximum(before, jnp.max(x, axis=-1, keepdims=True))
        more = jnp.sum(jnp.exp(x - greatest), axis=-1, keepdims=True)
        total_ref[...] = total_ref[...] * jnp.exp(before - greatest) + more
        greatest_ref[...] = greatest

    @pl.when(pl.program_id(1) == 1)
    def _write() -> None:
        total = total_ref[...]
        out = jnp.exp(x - greatest_ref[...]) * (1 / jnp.where(total == 0, 1.0, total))
        out_ref[...] = out.astype(out_ref.dtype)


def _softmax_backward_kernel(out_ref: Any, d_out_ref: Any, dx_ref: Any, mean_ref: Any, *, V: int) -> None:
    inside = _inside(out_ref.shape, V)
    out = jnp.where(inside, out_ref[...].astype(jnp.float32), 0.0)
    d_out = jnp.where(inside, d_out_ref[...].astype(jnp.float32), 0.0)

    @pl.when((pl.program_id(1) == 0) & (pl.program_id(2) == 0))
    def _start() -> None:
        mean_ref[...] = jnp.zeros_like(mean_ref)

    @pl.when(pl.program_id(1) == 0)
    def _sum() -> None:
        mean_ref[...] += jnp.sum(out * d_out, axis=-1, keepdims=True)

    @pl.when(pl.program_id(1) == 1)
    def _write() -> None:
        dx_ref[...] = (out * (d_out - mean_ref[...])).astype(dx_ref.dtype)


def _inside(shape: tuple[int, ...], V: int) -> Array:
    return pl.program_id(2) * shape[1] + jax.lax.broadcasted_iota(jnp.int32, shape, 1) < V


def _call(kernel: Callable[..., None], arrays: Sequence[Array], dtype: Any, *, sums: int, name: str) -> Array:
    M, V = arrays[0].shape
    columns = min(V, BLOCK_V)
    sublanes = max(8 * 4 // jnp.dtype(d).itemsize for d in (*(a.dtype for a in arrays), dtype))
    rows = min(M, max(sublanes, min(1024, BLOCK_BYTES // (4 * columns)) // sublanes * sublanes))
    return pl.pallas_call(
        functools.partial(kernel, V=V),
        out_shape=jax.ShapeDtypeStruct((M, V), dtype),
        grid=(pl.cdiv(M, rows), 2, pl.cdiv(V, columns)),
        in_specs=[pl.BlockSpec((rows, columns), lambda i, second, j: (i, j)) for _ in arrays],
        out_specs=pl.BlockSpec((rows, columns), lambda i, second, j: (i, j * second)),
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)] * sums,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary")),
        name=name,
    )(*arrays)


def softmax(x: Float[Array, "... V"]) -> Float[Array, "... V"]:
    return _call(_softmax_kernel, [x.reshape(-1, x.shape[-1])], x.dtype, sums=2, name="softmax").reshape(x.shape)


def softmax_backward(out: Float[Array, "... V"], d_out: Float[Array, "... V"]) -> Float[Array, "... V"]:
    arrays = [out.reshape(-1, out.shape[-1]), d_out.reshape(-1, out.shape[-1])]
    return _call(_softmax_backward_kernel, arrays, out.dtype, sums=1, name="softmax_backward").reshape(out.shape)
