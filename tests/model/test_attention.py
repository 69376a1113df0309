"""Attention: absorbed and unabsorbed MLA agree, and nothing reads a later token or another row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.model import MLACache, hidden_states, unstack_layers
from grpo_jax.model.mla import MultiHeadLatentAttention
from grpo_jax.model.rope import rotary
from tests.model.cases import CONFIGS, LENGTH, ROWS, full_logits, tokens, weights


@pytest.mark.parametrize("name", ["mla_yarn", "mla_q_rank"])
def test_absorbed_attention_equals_unabsorbed(name):
    config = CONFIGS[name]
    module = MultiHeadLatentAttention(config)

    @jax.jit
    def both(params, x):
        positions = jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))
        turn = rotary(config.rope, config.rotary_dim, positions)
        span, kept = module.apply({"params": params}, x, turn, None)
        empty = MLACache(latent_BSC=jnp.zeros_like(kept.latent_BSC), rope_BSR=jnp.zeros_like(kept.rope_BSR))
        absorbed, joined = module.apply({"params": params}, x, turn, positions, empty, method="extend")
        return span, kept, absorbed, joined

    x = np.random.default_rng(0).normal(size=(ROWS, LENGTH, config.embed_dim)).astype(np.float32)
    span, kept, absorbed, joined = both(unstack_layers(weights(config))[0]["attention"], x)
    np.testing.assert_allclose(absorbed, span, rtol=0, atol=1e-5)
    for got, expected in zip(jax.tree.leaves(joined), jax.tree.leaves(kept), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["mla_q_rank", "mha"])
def test_gradient_of_an_output_by_a_later_input_is_exactly_zero(name):
    # Untied and with no id twice in the row: the gradient by an embedding is that by the one input that uses it.
    config, ids = CONFIGS[name], tokens(1)
    params = weights(config)
    assert not config.tie_embeddings and len(set(ids[0])) == LENGTH
    probe = np.random.default_rng(2).normal(size=config.embed_dim).astype(np.float32)

    @jax.jit
    @jax.jacrev
    def outputs(embedding):
        return hidden_states(config, {**params, "embed": {"embedding": embedding}}, ids)[0] @ probe

    gradient_TVD = np.asarray(outputs(params["embed"]["embedding"]))
    gradient_TS = np.abs(gradient_TVD[:, ids[0]]).max(axis=-1)
    later = np.triu(np.ones((LENGTH, LENGTH), bool), k=1)
    np.testing.assert_array_equal(gradient_TS[later], 0)
    assert gradient_TS[~later].min() > 1e-4


@pytest.mark.parametrize("name", ["mla_q_rank", "mha"])
def test_later_tokens_and_other_rows_change_nothing(name):
    config, ids = CONFIGS[name], tokens()
    changed = ids.copy()
    changed[0, 5:] = (ids[0, 5:] + 1) % config.vocab_size
    changed[1:] = ids[:0:-1]
    before, after = full_logits(config, ids), full_logits(config, changed)
    np.testing.assert_array_equal(after[0, :5], before[0, :5])
    assert (after[0, 5:] != before[0, 5:]).all()
