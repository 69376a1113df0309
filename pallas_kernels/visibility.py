"""Which slots of a cache the new tokens of a row see: the rule of every decoding op."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def seen_slots(
    lengths_B: Int[Array, " B"], P: int, S: int, mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None
) -> Bool[Array, "B P S"]:
    """Which slots each query sees: all below length - P, and those of the P newest that the mask (or causality) allows."""
    first_B11 = (jnp.clip(lengths_B, 0, S) - P)[:, None, None]
    newest_B1S = jnp.arange(S) - first_B11  # which of the P newest a slot holds, negative for those before them
    if mask is None:
        return newest_B1S <= jnp.arange(P)[:, None]
    allowed_BPP = jnp.broadcast_to(mask, (lengths_B.shape[0], P, P))
    index_BPS = jnp.broadcast_to(jnp.clip(newest_B1S, 0, P - 1), (lengths_B.shape[0], P, S))
    return (newest_B1S < 0) | ((newest_B1S < P) & jnp.take_along_axis(allowed_BPP, index_BPS, axis=2))
