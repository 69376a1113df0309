"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from grpo_jax.model.attention import append_latents, attend_latents, attend_within
from grpo_jax.model.cache import MLACache
from grpo_jax.model.config import ModelConfig
from grpo_jax.model.linear import project, residual_weight, weight
from grpo_jax.model.norm import RMSNorm
from grpo_jax.model.rope import Rotary, rotate
from grpo_jax.parallel import constrain
from grpo_jax.types import Array


class MultiHeadLatentAttention(nn.Module):
    """A token's keys and values are one latent of width C, plus one rotary key that all heads share.

    Spans (training, prefill) rebuild each head's keys and values from the latents. Decoding never does: `key_up` is
    folded into the query and `value_up` into the output ("absorbed"), so that attention runs on the latents as they
    lie in the cache, like multi-query attention with one key/value head of width C.
    """

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config, mla = self.config, self.config.mla
        assert mla is not None
        D, N, C, R, H, Hv = (
            config.embed_dim, mla.num_heads, mla.kv_rank, mla.rope_dim, mla.nope_dim, mla.value_dim,
        )  # fmt: skip
        if mla.q_rank is None:
            self.query = weight(self, config, "query", (D, N, H + R), ("embed", "heads", "head_dim"))
        else:
            self.query_down = weight(self, config, "query_down", (D, mla.q_rank), ("embed", "q_rank"))
            self.query_norm = RMSNorm(config)
            self.query_up = weight(self, config, "query_up", (mla.q_rank, N, H + R), ("q_rank", "heads", "head_dim"))
        self.kv_down = weight(self, config, "kv_down", (D, C + R), ("embed", "kv_rank"))
        self.kv_norm = RMSNorm(config)
        self.key_up = weight(self, config, "key_up", (C, N, H), ("kv_rank", "heads", "head_dim"))
        self.value_up = weight(self, config, "value_up", (C, N, Hv), ("kv_rank", "heads", "head_dim"))
        self.out = residual_weight(self, config, "out", (N, Hv, D), ("heads", "head_dim", "embed"))
        self.nope_dim, self.kv_rank, self.q_rank, self.scale = H, C, mla.q_rank, mla.scale

    def __call__(
        self, x_BTD: Float[Array, "B T D"], turn: Rotary, segments_BT: Int[Array, "B T"] | None
    ) -> tuple[Float[Array, "B T D"], MLACache]:
        """Attention within the span, unabsorbed; also returns the latents and rotary keys a cache would keep."""
        query_BTNH = jnp.concatenate(self._queries(x_BTD, turn), axis=-1)
        latent_BTC, rope_BTR = self._latents(x_BTD)
        new = MLACache(latent_BSC=latent_BTC, rope_BSR=rotate(rope_BTR[:, :, None], turn)[:, :, 0])
        heads = ("rows", None, "heads", None)
        key_BSNH = constrain(project(new.latent_BSC, self.key_up), self.mesh, heads)
        value_BSNV = constrain(project(new.latent_BSC, self.value_up), self.mesh, heads)
        shared_BSNR = jnp.broadcast_to(new.rope_BSR[:, :, None], (*key_BSNH.shape[:-1], new.rope_BSR.shape[-1]))
        key_BSNH = jnp.concatenate([key_BSNH, shared_BSNR], axis=-1)
        read_BTNV = attend_within(self.config, self.mesh, self.scale, query_BTNH, key_BSNH, value_BSNV, segments_BT)
        return self._project_out(constrain(read_BTNV, self.mesh, heads)), new

    def extend(
        self, x_BTD: Float[Array, "B T D"], turn: Rotary, positions_BT: Int[Array, "B T"], cache: MLACache
    ) -> tuple[Float[Array, "B T D"], MLACache]:
        """Writes the new tokens to the slots of their positions, then attends to slots up to each position, absorbed.

        scores = (q_nope W_key^T) . latent + q_rope . rope_key;  read = (weights . latent) W_value
        """
        nope_BTNH, rope_BTNR = self._queries(x_BTD, turn)
        latent_BTC, rope_BTR = self._latents(x_BTD)
        cache = append_latents(self.config, self.mesh, latent_BTC, rope_BTR, turn, cache, positions_BT)
        heads = ("rows", None, "heads", None)
        query_BTNC = constrain(jnp.einsum("BTNH,CNH->BTNC", nope_BTNH, self.key_up), self.mesh, heads)
        read_BTNC = attend_latents(self.config, self.mesh, self.scale, query_BTNC, rope_BTNR, cache, positions_BT)
        read_BTNC = constrain(read_BTNC, self.mesh, heads)
        return self._project_out(jnp.einsum("BTNC,CNV->BTNV", read_BTNC, self.value_up)), cache

    def _queries(self, x_BTD: Array, turn: Rotary) -> tuple[Array, Array]:
        """The part without position [B,T,N,H] and the rotated part [B,T,N,R]."""
        if self.q_rank is None:
            query = project(x_BTD, self.query)
        else:
            latent_BTQ = self.query_norm(project(x_BTD, self.query_down))
            query = project(latent_BTQ, self.query_up)
        query = constrain(query, self.mesh, ("rows", None, "heads", None))
        return query[..., : self.nope_dim], rotate(query[..., self.nope_dim :], turn)

    def _latents(self, x_BTD: Array) -> tuple[Array, Array]:
        """Normed latents [B,T,C], and the key that all heads share [B,T,R], not rotated yet."""
        down = project(x_BTD, self.kv_down)
        return self.kv_norm(down[..., : self.kv_rank]), down[..., self.kv_rank :]

    def _project_out(self, read_BTNV: Array) -> Array:
        return constrain(project(read_BTNV, self.out, contracted=2), self.mesh, ("rows", None, None))
