"""A decode step keeps to the memory of the cache: it writes in place and rebuilds nothing per head."""

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.model import (
    GQAConfig,
    MLAConfig,
    ModelConfig,
    abstract_params,
    decode_step,
    init_cache,
    unstack_layers,
)

ROWS, SLOTS = 4, 512
SIZES = {"vocab_size": 8, "num_layers": 2, "embed_dim": 8, "mlp_dim": 8}
CONFIGS = {
    # Keys of all heads would be as wide as the latent, so rebuilding them would cost as much as a layer's cache.
    "mla": ModelConfig(**SIZES, mla=MLAConfig(num_heads=2, kv_rank=64, nope_dim=32, rope_dim=8, value_dim=32)),
    # Keys repeated for each query head would be twice a layer's cache.
    "gqa": ModelConfig(**SIZES, gqa=GQAConfig(num_heads=4, num_kv_heads=2, head_dim=32)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_step_updates_a_donated_cache_in_place_without_copies_or_expansion(name):
    config = CONFIGS[name]
    params = abstract_params(config)
    cache = jax.eval_shape(lambda: init_cache(config, ROWS, SLOTS, "float32"))
    ids = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    step = jax.jit(decode_step, static_argnums=0, donate_argnums=5)
    compiled = step.lower(config, params, jax.eval_shape(unstack_layers, params), ids, ids, cache).compile()

    memory = compiled.memory_analysis()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / config.num_layers / 2, (memory.temp_size_in_bytes, size)
