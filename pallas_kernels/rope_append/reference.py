"""Appending to an MLA cache in plain jnp, as the other implementations must do it."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def rope_append(
    latent_new: Float[Array, "B P C"],
    rope_new: Float[Array, "B P R"],
    latent: Float[Array, "B S C"],
    rope: Float[Array, "B S R"],
    positions: Int[Array, " B"],
    cos: Float[Array, "B P half"],
    sin: Float[Array, "B P half"],
) -> tuple[Float[Array, "B S C"], Float[Array, "B S R"]]:
    first, second = jnp.split(rope_new.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    rows = jnp.arange(latent.shape[0])[:, None]
    slots = positions.astype(jnp.int32)[:, None] + jnp.arange(latent_new.shape[1], dtype=jnp.int32)
    # A negative index would count from the end. Without a sign it is a large one, and dropped.
    at = rows, slots.astype(jnp.uint32)
    return (
        latent.at[at].set(latent_new.astype(latent.dtype), mode="drop", unique_indices=True),
        rope.at[at].set(turned.astype(rope.dtype), mode="drop", unique_indices=True),
    )
