"""How a model attends: within a span, and from new tokens to a cache; by kernels, each device on its own rows and heads."""

from functools import partial

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from grpo_jax.model.cache import GQACache, MLACache
from grpo_jax.model.config import ModelConfig
from grpo_jax.model.rope import Rotary
from grpo_jax.parallel import on_shards
from grpo_jax.parallel.sharding import LogicalAxes
from grpo_jax.types import Array
from pallas_kernels import flash_attention, gqa_decode, mla_decode, rope_append

_HEADS = ("rows", None, "heads", None)
_KV_HEADS = ("rows", None, "kv_heads", None)


def attend_within(
    config: ModelConfig,
    mesh: Mesh | None,
    scale: float,
    query_BTNH: Float[Array, "B T N H"],
    key_BTKH: Float[Array, "B T K H"],
    value_BTKV: Float[Array, "B T K V"],
    segments_BT: Int[Array, "B T"] | None,
) -> Float[Array, "B T N V"]:
    """Causal attention of a span to itself, and where segments are given, of each token to its own segment."""
    axes: list[LogicalAxes] = [_HEADS, _KV_HEADS, _KV_HEADS]
    arrays = [query_BTNH, key_BTKH, value_BTKV]
    if segments_BT is not None:
        axes.append(("rows", None))
        arrays.append(segments_BT)

    def kernel(query: Array, key: Array, value: Array, segments: Array | None = None) -> Array:
        return flash_attention(query, key, value, scale=scale, segments=segments, impl=config.implementation)[0]

    return on_shards(kernel, mesh, tuple(axes), _HEADS)(*arrays)


def attend_latents(
    config: ModelConfig,
    mesh: Mesh | None,
    scale: float,
    query_BTNC: Float[Array, "B T N C"],
    query_BTNR: Float[Array, "B T N R"],
    cache: MLACache,
    positions_BT: Int[Array, "B T"],
) -> Float[Array, "B T N C"]:
    """MLA's absorbed attention of new tokens, already in the cache, to every slot up to their own."""
    kernel = partial(mla_decode, scale=scale, impl=config.implementation)
    rows = ("rows", None, None)
    read = on_shards(lambda *arrays: kernel(*arrays)[0], mesh, (_HEADS, _HEADS, rows, rows, ("rows",)), _HEADS)
    return read(query_BTNC, query_BTNR, cache.latent_BSC, cache.rope_BSR, _lengths(positions_BT))


def append_latents(
    config: ModelConfig,
    mesh: Mesh | None,
    latent_BTC: Float[Array, "B T C"],
    rope_BTR: Float[Array, "B T R"],
    turn: Rotary,
    cache: MLACache,
    positions_BT: Int[Array, "B T"],
) -> MLACache:
    """Rotates the new tokens' shared keys and writes them with their latents into the slots of their positions."""
    rows = ("rows", None, None)
    append = on_shards(
        partial(rope_append, impl=config.implementation), mesh, (rows,) * 4 + (("rows",), rows, rows), (rows, rows)
    )
    return MLACache(*append(latent_BTC, rope_BTR, cache.latent_BSC, cache.rope_BSR, positions_BT[:, 0], turn.cos, turn.sin))


def attend_cache(
    config: ModelConfig,
    mesh: Mesh | None,
    scale: float,
    query_BTNH: Float[Array, "B T N H"],
    cache: GQACache,
    positions_BT: Int[Array, "B T"],
) -> Float[Array, "B T N H"]:
    """GQA's attention of new tokens, already in the cache, to every slot up to their own."""
    kernel = partial(gqa_decode, scale=scale, impl=config.implementation)
    kv = ("rows", "kv_heads", None, None)
    read = on_shards(lambda *arrays: kernel(*arrays)[0], mesh, (_HEADS, kv, kv, ("rows",)), _HEADS)
    dtype = query_BTNH.dtype
    return read(query_BTNH, cache.key_BKSH.astype(dtype), cache.value_BKSH.astype(dtype), _lengths(positions_BT))


def _lengths(positions_BT: Int[Array, "B T"]) -> Int[Array, " B"]:
    """Tokens in the cache, the new ones included: a row's positions are consecutive and its slots are its positions."""
    return jnp.asarray(positions_BT[:, -1] + 1, jnp.int32)
