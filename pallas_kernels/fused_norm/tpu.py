"""Norms as Pallas TPU kernels: a block of rows at a time in VMEM."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

# A block of rows in VMEM: its float32 copies, and input and output twice for the pipeline, stay well below 16 MiB.
BLOCK_BYTES = 1 << 20


def _rows(D: int) -> int:
    """Rows of a block: a multiple of the 32 sublanes that a tile of the narrowest dtype has."""
    return max(32, min(1024, BLOCK_BYTES // (4 * D) // 32 * 32))


def _rms_norm_kernel(x_ref, weight_ref, out_ref, *, eps: float) -> None:
    x = x_ref[...].astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    out_ref[...] = (x * inverse_rms * weight_ref[...].astype(jnp.float32)).astype(out_ref.dtype)


def rms_norm(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    D = x.shape[-1]
    rows = x.reshape(-1, D)
    block = min(_rows(D), rows.shape[0])
    out = pl.pallas_call(
        functools.partial(_rms_norm_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(rows.shape, x.dtype),
        grid=(pl.cdiv(rows.shape[0], block),),
        in_specs=[pl.BlockSpec((block, D), lambda i: (i, 0)), pl.BlockSpec((1, D), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((block, D), lambda i: (i, 0)),
        name="rms_norm",
    )(rows, weight_D[None])
    return out.reshape(x.shape)
