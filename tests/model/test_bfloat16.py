"""bfloat16 compute: it runs everywhere, really is bfloat16, and stays close to float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.model import abstract_params, init_cache, unstack_layers
from tests.model.cases import CONFIGS, LENGTH, ROWS, fill, full, full_logits, step, tokens, unembed, weights

# Logits have a standard deviation of 4; bfloat16 keeps 8 bits, and errors of some twenty products add up.
TOLERANCE = 0.3


@pytest.mark.parametrize("name", ["mla_q_rank", "gqa"])
def test_bfloat16_logits_are_close_to_float32(name):
    config = CONFIGS[name]
    logits, hidden = full(dataclasses.replace(config, compute_dtype="bfloat16"), weights(config), tokens())
    assert logits.dtype == jnp.float32 and hidden.dtype == jnp.bfloat16
    error = np.abs(logits - full_logits(config, tokens()))
    assert 1e-3 < error.max() < TOLERANCE, error.max()


def test_bfloat16_cached_decode_is_close_to_float32():
    config = CONFIGS["mla_q_rank"]
    narrow, params = dataclasses.replace(config, compute_dtype="bfloat16"), weights(config)
    ids, lengths = tokens(), np.array([3, 5, 1])
    kept = init_cache(narrow, ROWS, LENGTH, "bfloat16")
    last, kept = fill(narrow, params, ids[:, :5], lengths, kept)
    following, kept = step(narrow, params, unstack_layers(params), ids[np.arange(ROWS), lengths], lengths, kept)
    assert {array.dtype for array in jax.tree.leaves((last, following, kept))} == {jnp.dtype("bfloat16")}
    expected = full_logits(config, ids)
    for hidden, positions in ((last, lengths - 1), (following, lengths)):
        assert np.abs(unembed(config, hidden) - expected[np.arange(ROWS), positions]).max() < TOLERANCE


def test_param_dtype_is_that_of_every_parameter():
    config = dataclasses.replace(CONFIGS["mla_q_rank"], param_dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(abstract_params(config))} == {jnp.dtype("bfloat16")}
