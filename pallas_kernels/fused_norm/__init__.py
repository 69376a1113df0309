"""RMSNorm and what stands beside it in a model, each reading and writing device memory once."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.fused_norm import reference, vjp
from pallas_kernels.fused_norm.quantized import LARGEST

__all__ = [
    "ADD_RMS_NORM",
    "RMS_NORM",
    "RMS_NORM_GELU",
    "RMS_NORM_QUANTIZE",
    "add_rms_norm",
    "rms_norm",
    "rms_norm_gelu",
    "rms_norm_quantize",
]

# The widest row of which a TPU program holds a tile of rows, forward and backward, in its vector memory.
TPU_WIDTH = 16384


def _unfit_for_tpu(x: Any, *args: Any, **options: Any) -> str | None:
    if x.size == 0:
        return "there are no rows."
    if x.shape[-1] > TPU_WIDTH:
        return f"a row of {x.shape[-1]} numbers exceeds {TPU_WIDTH}, which a TPU program holds in vector memory."
    return None


def _implementations(function: str) -> tuple[Implementation, ...]:
    package = "pallas_kernels.fused_norm"
    return (
        Implementation(
            name="gpu_triton", platform="gpu", module=f"{package}.gpu_triton", function=function, package="jax_triton"
        ),
        Implementation(
            name="tpu", platform="tpu", module=f"{package}.tpu", function=function, refuses=_unfit_for_tpu
        ),
        Implementation(name=REFERENCE, module=f"{package}.reference", function=function),
    )  # fmt: skip


RMS_NORM = _implementations("rms_norm")
ADD_RMS_NORM = _implementations("add_rms_norm")
RMS_NORM_GELU = _implementations("rms_norm_gelu")
RMS_NORM_QUANTIZE = _implementations("rms_norm_quantize")


def _validate(op: str, x: Any, weight_D: Any, eps: float) -> None:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{op} takes floating-point rows, got x of dtype {x.dtype}: cast it first.")
    if x.ndim == 0 or x.shape[-1] == 0 or weight_D.shape != x.shape[-1:]:
        raise ValueError(
            f"{op} takes x [..., D] with D >= 1 and a weight [D], got {x.shape} and {weight_D.shape}: "
            "give one gain for each number of a row."
        )
    if not eps >= 0:
        raise ValueError(f"{op} takes eps >= 0, got {eps}: 1e-6 is usual.")


def rms_norm(
    x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float = 1e-6, impl: str | None = None
) -> Float[Array, "... D"]:
    """x / rms(x) * weight over the last dimension (arXiv 1910.07467), float32 inside, dtype of x outside.

    Args:
        x: any leading dimensions.
        weight_D: the gain.
        eps: added to the mean square.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Raises:
        ValueError: shapes, dtype or eps do not suit, or `impl` cannot serve them.
    """
    _validate("rms_norm", x, weight_D, eps)
    chosen = choose("rms_norm", RMS_NORM, impl, x, weight_D, eps=eps)
    if chosen.name == REFERENCE:
        return reference.rms_norm(x, weight_D, eps=eps)
    return vjp.rms_norm(chosen.module, eps, x, weight_D)


def add_rms_norm(
    x: Float[Array, "... D"],
    residual: Float[Array, "... D"],
    weight_D: Float[Array, " D"],
    *,
    eps: float = 1e-6,
    impl: str | None = None,
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    """Adds a block's output to the residual stream and norms the sum: (rms_norm(x + residual), x + residual).

    The sum is rounded to x's dtype, and what is normed is the rounded sum, so that both results tell of the same numbers.
    Differentiable in all three arrays, with cotangents of both results.

    Args:
        x: any leading dimensions.
        residual: shape and dtype of x.
        weight_D: the gain.
        eps: added to the mean square.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Raises:
        ValueError: shapes, dtypes or eps do not suit, or `impl` cannot serve them.
    """
    _validate("add_rms_norm", x, weight_D, eps)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"add_rms_norm takes x and residual of one shape and dtype, got {x.dtype}{list(x.shape)} and "
            f"{residual.dtype}{list(residual.shape)}: cast one of them."
        )
    chosen = choose("add_rms_norm", ADD_RMS_NORM, impl, x, residual, weight_D, eps=eps)
    if chosen.name == REFERENCE:
        return reference.add_rms_norm(x, residual, weight_D, eps=eps)
    return vjp.add_rms_norm(chosen.module, eps, x, residual, weight_D)


def rms_norm_gelu(
    x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float = 1e-6, impl: str | None = None
) -> Float[Array, "... D"]:
    """GELU of rms_norm(x) in its tanh form (arXiv 1606.08415): z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))).

    The normed rows stay float32 until GELU is taken; they are not rounded between.

    Args:
        x: any leading dimensions.
        weight_D: the gain.
        eps: added to the mean square.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Raises:
        ValueError: shapes, dtype or eps do not suit, or `impl` cannot serve them.
    """
    _validate("rms_norm_gelu", x, weight_D, eps)
    chosen = choose("rms_norm_gelu", RMS_NORM_GELU, impl, x, weight_D, eps=eps)
    if chosen.name == REFERENCE:
        return reference.rms_norm_gelu(x, weight_D, eps=eps)
    return vjp.rms_norm_gelu(chosen.module, eps, x, weight_D)


def rms_norm_quantize(
    x: Float[Array, "... D"],
    weight_D: Float[Array, " D"],
    *,
    dtype: jax.typing.DTypeLike,
    eps: float = 1e-6,
    impl: str | None = None,
) -> tuple[Num[Array, "... D"], Float[Array, "..."]]:
    """RMSNorm quantised for the product that follows: (steps, scale) with rms_norm(x) ~ steps * scale[..., None].

    A row's scale is its largest absolute value / 127 (int8) or / 448 (float8_e4m3fn), so the largest uses the whole range.
    Steps are rounded to nearest even. A row of zeros, or one whose scale would be subnormal, gives scale 0 and zeros.

    It has no gradient: differentiating it is an error, never a silent zero. For a straight-through estimate, differentiate
    `rms_norm` and give this one's argument through `jax.lax.stop_gradient`.

    Args:
        x: any leading dimensions; finite.
        weight_D: the gain.
        dtype: int8 or float8_e4m3fn.
        eps: added to the mean square.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Returns:
        Steps in `dtype`, and scales in float32, one for each row.

    Raises:
        ValueError: shapes, dtypes or eps do not suit, or `impl` cannot serve them.
        TypeError: it is being differentiated.
    """
    _validate("rms_norm_quantize", x, weight_D, eps)
    dtype = jnp.dtype(dtype)
    if dtype.name not in LARGEST:
        raise ValueError(f"rms_norm_quantize quantises to {' or '.join(LARGEST)}, got {dtype.name}: choose one of them.")
    chosen = choose("rms_norm_quantize", RMS_NORM_QUANTIZE, impl, x, weight_D, dtype=dtype, eps=eps)
    return vjp.rms_norm_quantize(chosen.module, dtype, eps, x, weight_D)
