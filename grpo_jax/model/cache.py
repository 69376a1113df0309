"""What decoding remembers of earlier tokens: per layer, one array of slots per kind; slot = position."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float, Int

from grpo_jax.model.config import ModelConfig
from grpo_jax.types import Array


class MLACache(struct.PyTreeNode):
    """MLA's memory of one layer: C + R numbers per token, whatever the number of heads."""

    latent_BSC: Float[Array, "B S C"]  # normed: what key_up and value_up read
    rope_BSR: Float[Array, "B S R"]  # the shared key, already rotated


class GQACache(struct.PyTreeNode):
    """GQA's memory of one layer: 2 K H numbers per token."""

    # Heads lead, so that a decode step multiplies the cache as it lies instead of transposing it.
    key_BKSH: Float[Array, "B K S H"]  # already rotated
    value_BKSH: Float[Array, "B K S H"]


LayerCache = MLACache | GQACache

# One entry per layer rather than one stacked array, so that a layer's update is in place and copies no other layer.
Cache = tuple[LayerCache, ...]


def init_cache(config: ModelConfig, batch: int, slots: int, dtype: str | jnp.dtype) -> Cache:
    """An empty cache of `slots` positions for `batch` rows. Slots never written are never attended to."""

    def layer() -> LayerCache:
        if config.mla is not None:
            return MLACache(
                latent_BSC=jnp.zeros((batch, slots, config.mla.kv_rank), dtype),
                rope_BSR=jnp.zeros((batch, slots, config.mla.rope_dim), dtype),
            )
        assert config.gqa is not None
        shape = (batch, config.gqa.num_kv_heads, slots, config.gqa.head_dim)
        return GQACache(key_BKSH=jnp.zeros(shape, dtype), value_BKSH=jnp.zeros(shape, dtype))

    return tuple(layer() for _ in range(config.num_layers))


def write_prompt[C: (MLACache, GQACache)](cache: C, new: C) -> C:
    """Writes a whole span of T tokens into slots 0..T-1 of every row."""
    return jax.tree.map(lambda old, span: old.at[..., : span.shape[-2], :].set(span.astype(old.dtype)), cache, new)


def write_slots(cache: GQACache, new: GQACache, positions_BT: Int[Array, "B T"]) -> GQACache:
    """Writes each row's T new tokens into the slots of their positions, in place where the cache is donated.

    A position outside the cache is dropped, not clamped onto the last slot.
    """

    def write(old: Array, tokens: Array) -> Array:
        index = jnp.arange(old.shape[0])[:, None, None], jnp.arange(old.shape[1])[:, None], positions_BT[:, None]
        return old.at[index].set(tokens.astype(old.dtype), mode="drop", unique_indices=True)

    return jax.tree.map(write, cache, new)
