"""Gradients of the kernels. (The references are left to JAX's own differentiation, which on a CPU is faster.)

What is kept for the backward pass is what came in: the normed rows are computed again, which costs no memory traffic, since
the backward pass reads the rows anyway.
"""

import functools
import importlib
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def rms_norm(module: str, eps: float, x: Float[Array, "... D"], weight_D: Float[Array, " D"]) -> Float[Array, "... D"]:
    """RMSNorm by the kernels of `module`."""
    return importlib.import_module(module).rms_norm(x, weight_D, eps=eps)


def _rms_norm_forward(module: str, eps: float, x: Array, weight_D: Array) -> tuple[Array, tuple[Array, Array]]:
    return rms_norm(module, eps, x, weight_D), (x, weight_D)


def _rms_norm_backward(module: str, eps: float, saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    return importlib.import_module(module).rms_norm_backward(*saved, d_out, eps=eps)


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def rms_norm_gelu(module: str, eps: float, x: Float[Array, "... D"], weight_D: Float[Array, " D"]) -> Float[Array, "... D"]:
    """GELU of RMSNorm by the kernels of `module`."""
    return importlib.import_module(module).rms_norm_gelu(x, weight_D, eps=eps)


def _rms_norm_gelu_forward(module: str, eps: float, x: Array, weight_D: Array) -> tuple[Array, tuple[Array, Array]]:
    return rms_norm_gelu(module, eps, x, weight_D), (x, weight_D)


def _rms_norm_gelu_backward(module: str, eps: float, saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    return importlib.import_module(module).rms_norm_gelu_backward(*saved, d_out, eps=eps)


rms_norm_gelu.defvjp(_rms_norm_gelu_forward, _rms_norm_gelu_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def add_rms_norm(
    module: str, eps: float, x: Float[Array, "... D"], residual: Float[Array, "... D"], weight_D: Float[Array, " D"]
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    """RMSNorm of a sum, and the sum, by the kernels of `module`."""
    return importlib.import_module(module).add_rms_norm(x, residual, weight_D, eps=eps)


def _add_rms_norm_forward(
    module: str, eps: float, x: Array, residual: Array, weight_D: Array
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    normed, total = add_rms_norm(module, eps, x, residual, weight_D)
    return (normed, total), (total, weight_D)


def _add_rms_norm_backward(
    module: str, eps: float, saved: tuple[Array, Array], d_results: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    d_total, d_weight = importlib.import_module(module).add_rms_norm_backward(*saved, *d_results, eps=eps)
    return d_total, d_total, d_weight


add_rms_norm.defvjp(_add_rms_norm_forward, _add_rms_norm_backward)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def rms_norm_quantize(
    module: str, dtype: jnp.dtype, eps: float, x: Float[Array, "... D"], weight_D: Float[Array, " D"]
) -> tuple[Num[Array, "... D"], Float[Array, "..."]]:
    """Quantised RMSNorm by `module`; differentiating it, in either mode, is an error."""
    return importlib.import_module(module).rms_norm_quantize(x, weight_D, dtype=dtype, eps=eps)


@rms_norm_quantize.defjvp
def _no_gradient(*args: Any) -> NoReturn:
    raise TypeError(
        "rms_norm_quantize has no gradient: rounding is flat almost everywhere. Give its x and weight through "
        "jax.lax.stop_gradient, and for a straight-through estimate differentiate rms_norm of the same rows."
    )
