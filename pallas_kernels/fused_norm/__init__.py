"""Norms that read and write memory once."""

from typing import Any

from jaxtyping import Array, Float

from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.fused_norm import reference, vjp

__all__ = ["RMS_NORM", "rms_norm"]


def _too_wide(x: Any, weight_D: Any, *, eps: float) -> str | None:
    return (
        f"a row of {x.shape[-1]} numbers exceeds 65536, which one program holds in registers."
        if x.shape[-1] > 65536
        else None
    )


RMS_NORM = (
    Implementation(
        name="gpu_triton", platform="gpu", module="pallas_kernels.fused_norm.gpu_triton", function="rms_norm",
        package="jax_triton", refuses=_too_wide,
    ),
    Implementation(name="tpu", platform="tpu", module="pallas_kernels.fused_norm.tpu", function="rms_norm"),
    Implementation(name=REFERENCE, module="pallas_kernels.fused_norm.reference", function="rms_norm"),
)  # fmt: skip


def rms_norm(
    x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float = 1e-6, impl: str | None = None
) -> Float[Array, "... D"]:
    """x / rms(x) * weight over the last dimension (arXiv 1910.07467), float32 inside, dtype of x outside.

    Args:
        x: any leading dimensions.
        weight_D: the gain.
        eps: added to the mean square.
        impl: forces an implementation: gpu_triton, tpu or reference.
    """
    chosen = choose("rms_norm", RMS_NORM, impl, x, weight_D, eps=eps)
    if chosen.name == REFERENCE:
        return reference.rms_norm(x, weight_D, eps=eps)
    return vjp.rms_norm(chosen.module, eps, x, weight_D)
