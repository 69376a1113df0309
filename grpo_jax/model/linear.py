"""Weights: how they are declared, and how activations are multiplied by them."""

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from grpo_jax.model.config import ModelConfig
from grpo_jax.types import Array


def weight(
    module: nn.Module, config: ModelConfig, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float
) -> Array:
    """Declares a parameter of `module` with its logical axis names and returns it in the compute dtype."""
    initializer = nn.with_logical_partitioning(nn.initializers.normal(std), axes)
    value: Any = module.param(name, initializer, shape, jnp.dtype(config.param_dtype))
    return value.astype(jnp.dtype(config.compute_dtype))


def residual_std(config: ModelConfig) -> float:
    """Initial standard deviation of projections that add to the residual stream: 2 per layer add up."""
    return config.initializer_range / (2 * config.num_layers) ** 0.5


def project(x: Float[Array, "..."], kernel: Float[Array, "..."], contracted: int = 1) -> Float[Array, "..."]:
    """Contracts the last `contracted` dimensions of x with as many leading ones of the kernel.

    The product is one of two plain matrices, rows x inputs by inputs x outputs. XLA's CPU backend differentiates that
    about twice as fast as the same contraction of arrays with more dimensions, whose gradients it transposes in memory.
    """
    inputs = math.prod(kernel.shape[:contracted])
    product = x.reshape(-1, inputs) @ kernel.reshape(inputs, -1)
    return product.reshape(*x.shape[: x.ndim - contracted], *kernel.shape[contracted:])
