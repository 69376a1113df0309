"""Parameters: how a module declares one, and how activations are multiplied by it."""

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float

from grpo_jax.model.config import ModelConfig
from grpo_jax.types import Array


class Declared(nn.LogicallyPartitioned):
    """What a module says of a parameter besides shape and dtype: logical axes, and the normal it is drawn from.

    Modules hold no random numbers: `init_params` draws a whole layer at once and cuts the draw into its arrays, because
    XLA's CPU backend spends half a second on compiling each call of the generator.
    """

    mean: float = struct.field(pytree_node=False, default=0.0)
    std: float = struct.field(pytree_node=False, default=0.0)


def declare(
    module: nn.Module,
    config: ModelConfig,
    name: str,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    *,
    mean: float = 0.0,
    std: float = 0.0,
) -> Array:
    """Declares a parameter of `module` and returns it as it is stored."""

    def initializer(key: Any) -> Declared:
        del key
        return Declared(jnp.full(shape, mean, config.param_dtype), names=axes, mean=mean, std=std)

    value: Any = module.param(name, initializer)  # linen unboxes what the initializer returns
    return value


def weight(module: nn.Module, config: ModelConfig, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> Array:
    """Declares a weight and returns it in the compute dtype."""
    return declare(module, config, name, shape, axes, std=config.initializer_range).astype(config.compute_dtype)


def residual_weight(
    module: nn.Module, config: ModelConfig, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...]
) -> Array:
    """A weight that writes to the residual stream: drawn smaller, since 2 of them per layer add up there."""
    std = config.initializer_range / math.sqrt(2 * config.num_layers)
    return declare(module, config, name, shape, axes, std=std).astype(config.compute_dtype)


def project(x: Float[Array, "..."], kernel: Float[Array, "..."], contracted: int = 1) -> Float[Array, "..."]:
    """Contracts the last `contracted` dimensions of x with as many leading ones of the kernel.

    The product is one of two plain matrices, rows x inputs by inputs x outputs. XLA's CPU backend differentiates that
    about twice as fast as the same contraction of arrays with more dimensions, whose gradients it transposes in memory.
    """
    inputs = math.prod(kernel.shape[:contracted])
    product = x.reshape(-1, inputs) @ kernel.reshape(inputs, -1)
    return product.reshape(*x.shape[: x.ndim - contracted], *kernel.shape[contracted:])
