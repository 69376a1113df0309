"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from grpo_jax.model import attention
from grpo_jax.model.cache import MLACache, write_slots
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
        self, x_BTD: Float[Array, "B T D"], turn: Rotary, bias_BTS: Float[Array, "#B T T"]
    ) -> tuple[Float[Array, "B T D"], MLACache]:
        """Attention within the span, unabsorbed; also returns the latents and rotary keys a cache would keep."""
        query_BTNH = jnp.concatenate(self._queries(x_BTD, turn), axis=-1)
        new = self._latents(x_BTD, turn)
        heads = ("rows", None, "heads", None)
        key_BSNH = constrain(project(new.latent_BSC, self.key_up), self.mesh, heads)
        value_BSNV = constrain(project(new.latent_BSC, self.value_up), self.mesh, heads)
        shared_BSNR = jnp.broadcast_to(new.rope_BSR[:, :, None], (*key_BSNH.shape[:-1], new.rope_BSR.shape[-1]))
        key_BNSH = attention.heads_lead(jnp.concatenate([key_BSNH, shared_BSNR], axis=-1))
        read_BTNV = attention.attend(query_BTNH, key_BNSH, attention.heads_lead(value_BSNV), bias_BTS)
        return self._project_out(constrain(read_BTNV, self.mesh, heads)), new

    def extend(
        self, x_BTD: Float[Array, "B T D"], turn: Rotary, positions_BT: Int[Array, "B T"], cache: MLACache
    ) -> tuple[Float[Array, "B T D"], MLACache]:
        """Writes the new tokens to the slots of their positions, then attends to slots up to each position, absorbed.

        scores = (q_nope W_key^T) . latent + q_rope . rope_key;  read = (weights . latent) W_value
        """
        dtype = x_BTD.dtype
        nope_BTNH, rope_BTNR = self._queries(x_BTD, turn)
        cache = write_slots(cache, self._latents(x_BTD, turn), positions_BT)
        latent_BSC, rope_BSR = cache.latent_BSC.astype(dtype), cache.rope_BSR.astype(dtype)
        heads = ("rows", None, "heads", None)
        query_BTNC = constrain(jnp.einsum("BTNH,CNH->BTNC", nope_BTNH, self.key_up), self.mesh, heads)
        logits_BTNS = jnp.einsum("BTNC,BSC->BTNS", query_BTNC, latent_BSC, preferred_element_type=jnp.float32)
        logits_BTNS += jnp.einsum("BTNR,BSR->BTNS", rope_BTNR, rope_BSR, preferred_element_type=jnp.float32)
        logits_BTNS += attention.slot_bias(positions_BT, latent_BSC.shape[1])[:, :, None]
        weights_BTNS, inverse_sum = attention.exponentials(logits_BTNS)
        read_BTNC = jnp.einsum("BTNS,BSC->BTNC", weights_BTNS.astype(dtype), latent_BSC, preferred_element_type=jnp.float32)
        read_BTNC = constrain((read_BTNC * inverse_sum).astype(dtype), self.mesh, heads)
        return self._project_out(jnp.einsum("BTNC,CNV->BTNV", read_BTNC, self.value_up)), cache

    def _queries(self, x_BTD: Array, turn: Rotary) -> tuple[Array, Array]:
        """The part without position [B,T,N,H] and the rotated part [B,T,N,R], both times the softmax scale."""
        if self.q_rank is None:
            query = project(x_BTD, self.query)
        else:
            latent_BTQ = self.query_norm(project(x_BTD, self.query_down))
            query = project(latent_BTQ, self.query_up)
        query = constrain(query, self.mesh, ("rows", None, "heads", None)) * self.scale
        return query[..., : self.nope_dim], rotate(query[..., self.nope_dim :], turn)

    def _latents(self, x_BTD: Array, turn: Rotary) -> MLACache:
        down = project(x_BTD, self.kv_down)
        rope_BTR = rotate(down[:, :, None, self.kv_rank :], turn)[:, :, 0]
        return MLACache(latent_BSC=self.kv_norm(down[..., : self.kv_rank]), rope_BSR=rope_BTR)

    def _project_out(self, read_BTNV: Array) -> Array:
        return constrain(project(read_BTNV, self.out, contracted=2), self.mesh, ("rows", None, None))
