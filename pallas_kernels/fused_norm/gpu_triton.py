"""Norms as Triton kernels: a program per row, the row in registers."""

import jax
import triton
import triton.language as tl
from jaxtyping import Array, Float

from pallas_kernels.triton_launch import launch


@triton.jit
def _rms_norm(x_ptr, weight_ptr, out_ptr, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_D)
    inside = columns < D
    x = tl.load(x_ptr + row * D + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    inverse_rms = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / D + eps)
    tl.store(out_ptr + row * D + columns, (x * inverse_rms * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    D = x.shape[-1]
    (out,) = launch(
        _rms_norm,
        x.reshape(-1, D),
        weight_D,
        outputs=[jax.ShapeDtypeStruct((x.size // D, D), x.dtype)],
        grid=(x.size // D,),
        scalars={"D": D, "eps": eps},
        constants={"BLOCK_D": triton.next_power_of_2(D)},
    )
    return out.reshape(x.shape)
