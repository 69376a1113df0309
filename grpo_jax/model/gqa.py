"""Grouped-query attention (arXiv 2305.13245), with multi-head and multi-query attention as its ends."""

import flax.linen as nn
from jax.sharding import Mesh
from jaxtyping import Float, Int

from grpo_jax.model.attention import attend_cache, attend_within
from grpo_jax.model.cache import GQACache, write_slots
from grpo_jax.model.config import ModelConfig
from grpo_jax.model.linear import project, residual_weight, weight
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
        self.query = weight(self, config, "query", (D, N, H), ("embed", "heads", "head_dim"))
        self.key = weight(self, config, "key", (D, K, H), ("embed", "kv_heads", "head_dim"))
        self.value = weight(self, config, "value", (D, K, H), ("embed", "kv_heads", "head_dim"))
        self.out = residual_weight(self, config, "out", (N, H, D), ("heads", "head_dim", "embed"))
        self.scale = gqa.scale

    def __call__(
        self, x_BTD: Float[Array, "B T D"], turn: Rotary, segments_BT: Int[Array, "B T"] | None
    ) -> tuple[Float[Array, "B T D"], GQACache]:
        """Attention within the span; also returns the keys and values a cache would keep."""
        query_BTNH, key_BTKH, value_BTKH = self._project(x_BTD, turn)
        read_BTNH = attend_within(self.config, self.mesh, self.scale, query_BTNH, key_BTKH, value_BTKH, segments_BT)
        return self._project_out(read_BTNH), _entry(key_BTKH, value_BTKH)

    def extend(
        self, x_BTD: Float[Array, "B T D"], turn: Rotary, positions_BT: Int[Array, "B T"], cache: GQACache
    ) -> tuple[Float[Array, "B T D"], GQACache]:
        """Writes the new tokens to the slots of their positions, then attends to slots up to each position."""
        query_BTNH, key_BTKH, value_BTKH = self._project(x_BTD, turn)
        cache = write_slots(cache, _entry(key_BTKH, value_BTKH), positions_BT)
        return self._project_out(attend_cache(self.config, self.mesh, self.scale, query_BTNH, cache, positions_BT)), cache

    def _project(self, x_BTD: Array, turn: Rotary) -> tuple[Array, Array, Array]:
        """Queries, keys and values, the first two rotated."""
        kv_heads = ("rows", None, "kv_heads", None)
        query_BTNH = constrain(project(x_BTD, self.query), self.mesh, ("rows", None, "heads", None))
        key_BTKH = constrain(project(x_BTD, self.key), self.mesh, kv_heads)
        value_BTKH = constrain(project(x_BTD, self.value), self.mesh, kv_heads)
        return rotate(query_BTNH, turn), rotate(key_BTKH, turn), value_BTKH

    def _project_out(self, read_BTNH: Array) -> Array:
        read_BTNH = constrain(read_BTNH, self.mesh, ("rows", None, "heads", None))
        return constrain(project(read_BTNH, self.out, contracted=2), self.mesh, ("rows", None, None))


def _entry(key_BTKH: Array, value_BTKH: Array) -> GQACache:
    """What the cache keeps of a span: heads before tokens."""
    return GQACache(key_BKSH=key_BTKH.transpose(0, 2, 1, 3), value_BKSH=value_BTKH.transpose(0, 2, 1, 3))
