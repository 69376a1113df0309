"""Gradients of the kernels. (The reference is left to JAX's own differentiation, which on a CPU is faster.)"""

import functools
import importlib
from typing import Any

import jax
from jaxtyping import Array, Float, Int

Outputs = tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def flash_attention(
    module: str,
    scale: float,
    causal: bool,
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K Hv"],
    lengths: Int[Array, " B"] | None,
    segments: Int[Array, "B T"] | None,
) -> Outputs:
    """Attention by the kernels of `module`."""
    kernels = importlib.import_module(module)
    return kernels.flash_attention(
        query, key, value, scale=scale, causal=causal, lengths=lengths, segments=segments
    )  # fmt: skip


def _forward(module: str, scale: float, causal: bool, *arguments: Any) -> tuple[Outputs, tuple[Any, ...]]:
    out, lse = flash_attention(module, scale, causal, *arguments)
    return (out, lse), (*arguments, out, lse)


def _backward(
    module: str, scale: float, causal: bool, saved: tuple[Any, ...], cotangents: Outputs
) -> tuple[Array, Array, Array, None, None]:
    query, key, value, lengths, segments, out, lse = saved
    gradients = importlib.import_module(module).flash_attention_backward(
        query, key, value, out, lse, *cotangents, scale=scale, causal=causal, lengths=lengths, segments=segments
    )  # fmt: skip
    return (*gradients, None, None)


flash_attention.defvjp(_forward, _backward)
