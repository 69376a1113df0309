"""Rotary position embedding (arXiv 2104.09864), half-split, with YaRN's frequencies (arXiv 2309.00071)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Float, Int

from grpo_jax.model.config import RopeConfig, YarnConfig
from grpo_jax.types import Array


class Rotary(struct.PyTreeNode):
    """Cosines and sines of every position and frequency, float32; computed once and shared by all layers.

    The leading dimensions are those of the positions: [T] where all rows count alike, [B, T] where each has its own.
    """

    cos: Float[Array, "... T half"]
    sin: Float[Array, "... T half"]


def frequencies(config: RopeConfig, dim: int) -> np.ndarray:
    """Radians per position of each of the dim/2 rotated pairs, float64 [dim/2]."""
    plain = config.theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if config.yarn is None:
        return plain
    kept = _yarn_kept(config.yarn, config.theta, dim)
    return plain * kept + plain / config.yarn.factor * (1.0 - kept)


def _yarn_kept(yarn: YarnConfig, theta: float, dim: int) -> np.ndarray:
    """How much of its own frequency each pair keeps: 1 for fast pairs, 0 for slow ones, a ramp between.

    The ramp is linear in the pair's index, between whole indices, as in the code that the paper's authors and
    every later model released. The paper's text has it linear in the number of turns, but checkpoints were trained with
    the code.
    """

    def pair_that_turns(turns: float) -> float:
        # From wavelength 2 pi theta^(2i/dim) = original_max_length / turns.
        return dim * math.log(yarn.original_max_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair_that_turns(yarn.beta_fast)), 0)
    last = min(math.ceil(pair_that_turns(yarn.beta_slow)), dim - 1)
    width = max(last - first, 0.001)  # the released code's guard against a ramp of no width
    return 1.0 - np.clip((np.arange(dim // 2) - first) / width, 0.0, 1.0)


def rotary(config: RopeConfig, dim: int, positions: Int[Array, "... T"]) -> Rotary:
    """The rotation of each position. YaRN's attention factor is not in it: it belongs to the softmax scale."""
    angles = positions[..., None].astype(jnp.float32) * jnp.asarray(frequencies(config, dim), jnp.float32)
    # Without the barrier XLA fuses cosines and sines into every use and computes them again for each row and head.
    return jax.lax.optimization_barrier(Rotary(jnp.cos(angles), jnp.sin(angles)))


def rotate(x: Float[Array, "... T heads dim"], turn: Rotary) -> Float[Array, "... T heads dim"]:
    """Turns the pair (i, i + dim/2) of every head by its position's angle; float32 inside, dtype of x outside."""
    cos, sin = turn.cos[..., None, :], turn.sin[..., None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
