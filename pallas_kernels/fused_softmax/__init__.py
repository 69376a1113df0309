"""Softmax over rows that may be masked, empty, or as wide as a vocabulary."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.fused_softmax import reference, vjp

__all__ = ["SOFTMAX", "softmax"]


def _no_rows(x: Any) -> str | None:
    return "there are no rows." if x.size == 0 else None


SOFTMAX = (
    Implementation(
        name="gpu_triton", platform="gpu", module="pallas_kernels.fused_softmax.gpu_triton", function="softmax",
        package="jax_triton", refuses=_no_rows,
    ),
    Implementation(
        name="tpu", platform="tpu", module="pallas_kernels.fused_softmax.tpu", function="softmax", refuses=_no_rows
    ),
    Implementation(name=REFERENCE, module="pallas_kernels.fused_softmax.reference", function="softmax"),
)  # fmt: skip


def softmax(x: Float[Array, "... V"], *, impl: str | None = None) -> Float[Array, "... V"]:
    """exp(x) / sum exp(x) over the last dimension, float32 inside, dtype of x outside.

    Where x is -inf the result is exactly 0, and so is its gradient. A row of nothing but -inf gives zeros: it has no
    distribution, and zeros weigh nothing where NaN would spoil all that is summed after. NaN or +inf makes its row NaN.

    Args:
        x: any leading dimensions.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Raises:
        ValueError: x is no floating-point array of rows, or `impl` cannot serve it.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"softmax takes floating-point rows [..., V] with V >= 1, got {x.dtype}{list(x.shape)}: cast or reshape them."
        )
    chosen = choose("softmax", SOFTMAX, impl, x)
    if chosen.name == REFERENCE:
        return reference.softmax(x)
    return vjp.softmax(chosen.module, x)
