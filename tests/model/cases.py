"""Tiny decoders, their weights and their tokens, and the jitted functions that the tests of the model share."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.model import (
    GQAConfig,
    MLAConfig,
    ModelConfig,
    RopeConfig,
    Transformer,
    YarnConfig,
    abstract_params,
    decode_step,
    hidden_states,
    prefill,
    unembedding,
)
from grpo_jax.types import Array, Params

ROWS, LENGTH, VOCAB = 3, 9, 24
PADDINGS = (0, 1)

# Every size differs from the others that it could be mistaken for.
SIZES = {"vocab_size": VOCAB, "num_layers": 2, "embed_dim": 16, "mlp_dim": 32}
MLA = {"num_heads": 4, "kv_rank": 6, "nope_dim": 10, "rope_dim": 8, "value_dim": 5}
GQA = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}

# Of the four pairs of dimensions that it rotates, YaRN keeps the first, interpolates the last, and mixes the others.
PLAIN = RopeConfig(theta=100.0)
YARN = RopeConfig(theta=100.0, yarn=YarnConfig(factor=8.0, original_max_length=64, beta_fast=4.0))
YARN_FACTOR = RopeConfig(
    theta=100.0, yarn=YarnConfig(factor=8.0, original_max_length=64, beta_fast=4.0, attention_factor=1.3)
)

CONFIGS = {
    "mla": ModelConfig(**SIZES, mla=MLAConfig(**MLA, rope=PLAIN)),
    "mla_q_rank": ModelConfig(**SIZES, mla=MLAConfig(**MLA, q_rank=7), tie_embeddings=False),
    "mla_yarn": ModelConfig(**SIZES, mla=MLAConfig(**MLA, rope=YARN)),
    "gqa": ModelConfig(**SIZES, gqa=GQAConfig(**GQA, rope=PLAIN)),
    "mha": ModelConfig(**SIZES, gqa=GQAConfig(**GQA | {"num_kv_heads": 4}), tie_embeddings=False),
    "mqa": ModelConfig(**SIZES, gqa=GQAConfig(**GQA | {"num_kv_heads": 1})),
    "gqa_yarn": ModelConfig(**SIZES, gqa=GQAConfig(**GQA, rope=YARN_FACTOR)),
}


@cache
def weights(config: ModelConfig) -> Params:
    """Kernels that keep the variance of what they multiply, so that attention is far from uniform, and uneven norms."""
    random = np.random.default_rng(0)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> Array:
        name = path[-1].key
        normal = random.normal(size=leaf.shape)
        if name == "scale":
            normal = 1 + 0.3 * normal
        elif name == "out":
            normal /= np.sqrt(np.prod(leaf.shape[1:3]))
        elif name != "embedding":
            normal /= np.sqrt(leaf.shape[0 if name == "kernel" else 1])
        return jnp.asarray(normal, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, abstract_params(config))


def tokens(rows: int = ROWS) -> np.ndarray:
    """Ids [rows, LENGTH], no id twice in a row, and none of PADDINGS."""
    random = np.random.default_rng(1)
    ids = np.arange(len(PADDINGS), VOCAB)
    return np.stack([random.permutation(ids)[:LENGTH] for _ in range(rows)]).astype(np.int32)


def _full(config: ModelConfig, params: Params, ids: Array) -> tuple[Array, Array]:
    logits, _ = Transformer(config).apply({"params": params}, ids)
    return logits, hidden_states(config, params, ids)


# Logits [B, T, V] of the module and hidden states [B, T, D] of the pure function.
full = jax.jit(_full, static_argnums=0)
fill = jax.jit(prefill, static_argnums=0)
step = jax.jit(decode_step, static_argnums=0)


def full_logits(config: ModelConfig, ids: np.ndarray) -> np.ndarray:
    return np.asarray(full(config, weights(config), ids)[0])


def unembed(config: ModelConfig, hidden: Array) -> np.ndarray:
    """Logits in float64, so that the projection adds no error of its own."""
    return np.asarray(hidden, np.float64) @ np.asarray(unembedding(config, weights(config)), np.float64)
