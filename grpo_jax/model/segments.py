"""Packed rows: several sequences side by side in one row, each blind to the others and counted from its own start."""

import jax
import jax.numpy as jnp
from jaxtyping import Int

from grpo_jax.types import Array


def segment_positions(segments_BT: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Each token's distance from the first token of its segment, a run of equal numbers."""
    columns_T = jnp.arange(segments_BT.shape[1])
    starts_BT = jnp.pad(segments_BT[:, 1:] != segments_BT[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return columns_T - jax.lax.cummax(jnp.where(starts_BT, columns_T, 0), axis=1)
