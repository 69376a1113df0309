"""Grouped-query attention (arXiv 2305.13245), with multi-head and multi-query attention as its ends."""

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from grpo_jax.model import attention
from grpo_jax.model.cache import GQACache, write_slots
from grpo_jax.model.config import ModelConfig
from grpo_jax.model.linear import project, residual_std, weight
from grpo_jax.model.rope import Rotary, rotate
from grpo_jax.parallel import constrain
from grpo_jax.types import Array


class GroupedQueryAttention(nn.Module):
    """Keys and values of K heads serve N query heads; query head n reads key/value head n // (N / K)."""

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config, gqa = self.config, self.config.gqa
        assert gqa is not None
        D, N, K, H = config.embed_dim, gqa.num_heads, gqa.num_kv_heads, gqa.head_dim
        std = config.initializer_range
        kv_axes = ("embed", "kv_heads", "head_dim")
        self.query = weight(self, config, "query", (D, N, H), ("embed", "heads", "head_dim"), std)
        self.key = weight(self, config, "key", (D, K, H), kv_axes, std)
        self.value = weight(self, config, "value", (D, K, H), kv_axes, std)
        self.out = weight(self, config, "out", (N, H, D), ("heads", "head_dim", "embed"), residual_std(config))
        self.scale = gqa.scale

    def __call__(self, x_BTD: Float[Array, "B T D"], turn: Rotary) -> tuple[Float[Array, "B T D"], GQACache]:
        """Causal attention within the span; also returns the keys and values a cache would keep."""
        query, new = self._project(x_BTD, turn)
        mask_TS = attention.causal_mask(x_BTD.shape[1])
        return self._attend(query, new, mask_TS[None]), new

    def extend(
        self, x_BTD: Float[Array, "B T D"], turn: Rotary, positions_BT: Int[Array, "B T"], cache: GQACache
    ) -> tuple[Float[Array, "B T D"], GQACache]:
        """Writes the new tokens to the slots of their positions, then attends to slots up to each position."""
        query, new = self._project(x_BTD, turn)
        cache = write_slots(cache, new, positions_BT)
        mask_BTS = attention.slot_mask(positions_BT, cache.key_BSKH.shape[1])
        return self._attend(query, cache, mask_BTS), cache

    def _project(self, x_BTD: Array, turn: Rotary) -> tuple[Array, GQACache]:
        heads, kv_heads = ("rows", None, "heads", None), ("rows", None, "kv_heads", None)
        query = constrain(project(x_BTD, self.query), self.mesh, heads)
        key = constrain(project(x_BTD, self.key), self.mesh, kv_heads)
        value = constrain(project(x_BTD, self.value), self.mesh, kv_heads)
        return rotate(query, turn), GQACache(key_BSKH=rotate(key, turn), value_BSKH=value)

    def _attend(self, query_BTNH: Array, kv: GQACache, mask_BTS: Array) -> Array:
        B, T, N, H = query_BTNH.shape
        K = kv.key_BSKH.shape[2]
        dtype = query_BTNH.dtype
        # g counts the query heads of one group, so keys and values are never repeated.
        query_BTKgH = query_BTNH.reshape(B, T, K, N // K, H)
        scores = jnp.einsum("BTKgH,BSKH->BKgTS", query_BTKgH * self.scale, kv.key_BSKH.astype(dtype))
        weights = attention.softmax(scores, mask_BTS[:, None, None], dtype)
        read = jnp.einsum("BKgTS,BSKH->BTKgH", weights, kv.value_BSKH.astype(dtype)).reshape(B, T, N, H)
        read = constrain(read, self.mesh, ("rows", None, "heads", None))
        return constrain(project(read, self.out, contracted=2), self.mesh, ("rows", None, None))
