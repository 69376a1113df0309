"""Prefill and decode: the same numbers as the full forward, from a cache of exactly the advertised size."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.model import Transformer, init_cache, unstack_layers
from tests.model.cases import CONFIGS, LENGTH, PADDINGS, ROWS, fill, full_logits, step, tokens, unembed, weights

CACHED = ("mla_yarn", "mla_q_rank", "gqa_yarn")
PROMPT, STEPS = 5, 4
LENGTHS = np.array([3, 5, 1])
POSITIONS = [LENGTHS + number for number in range(STEPS)]


@cache
def _decode(name, padding=PADDINGS[0], unwritten=0.0):
    """Hidden states of the last prompt token and of each decoded one, and the cache before and after each step."""
    config, params = CONFIGS[name], weights(CONFIGS[name])
    prompts = np.where(np.arange(PROMPT) < LENGTHS[:, None], tokens()[:, :PROMPT], padding)
    empty = init_cache(config, ROWS, LENGTH, "float32")
    hidden, kept = fill(config, params, prompts, LENGTHS, jax.tree.map(lambda array: array + unwritten, empty))
    outputs, caches = [hidden], [kept]
    layers = unstack_layers(params)
    for positions in POSITIONS:
        ids = tokens()[np.arange(ROWS), positions]
        hidden, kept = step(config, params, layers, ids, positions, kept)
        outputs.append(hidden)
        caches.append(kept)
    return jax.device_get(outputs), jax.device_get(caches)


@pytest.mark.parametrize("name", CACHED)
def test_cached_decode_matches_full_forward(name):
    config = CONFIGS[name]
    outputs, _ = _decode(name)
    logits = full_logits(config, tokens())
    for number, hidden in enumerate(outputs):
        expected = logits[np.arange(ROWS), LENGTHS - 1 + number]
        np.testing.assert_allclose(unembed(config, hidden), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CACHED)
def test_ids_in_the_padding_of_prompts_change_nothing(name):
    for got, expected in zip(_decode(name, padding=PADDINGS[1])[0], _decode(name)[0], strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", CACHED)
def test_slots_never_written_are_never_read(name):
    for got, expected in zip(_decode(name, unwritten=1e3)[0], _decode(name)[0], strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", CACHED)
def test_a_step_writes_the_slot_of_its_position_and_no_other(name):
    _, caches = _decode(name)
    for before, after, positions in zip(caches[:-1], caches[1:], POSITIONS, strict=True):
        pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        for old, new in pairs:
            changed = (old != new).any(axis=-1)  # [B, S], or [B, K, S] where heads have their own slots
            written = np.arange(LENGTH) == positions[:, None]
            written = written if changed.ndim == 2 else written[:, None]
            np.testing.assert_array_equal(changed, np.broadcast_to(written, changed.shape))


@pytest.mark.parametrize("name", CACHED)
def test_a_position_past_the_cache_is_dropped(name):
    config, params = CONFIGS[name], weights(CONFIGS[name])
    kept = _decode(name)[1][-1]
    ids, positions = tokens()[:, 0], np.array([LENGTH, LENGTH + 7, 2])
    _, after = step(config, params, unstack_layers(params), ids, positions, kept)
    for old, new in zip(jax.tree.leaves(kept), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new[:2], old[:2])
        assert (new[2] != old[2]).any()


def test_mla_caches_latents_and_one_rotary_key_and_nothing_per_head():
    config = CONFIGS["mla_yarn"]
    for kept in (init_cache(config, ROWS, LENGTH, "bfloat16"), _decode("mla_yarn")[1][-1]):
        assert len(kept) == config.num_layers
        for entry in kept:
            assert entry.latent_BSC.shape == (ROWS, LENGTH, config.mla.kv_rank)
            assert entry.rope_BSR.shape == (ROWS, LENGTH, config.mla.rope_dim)
            assert len(jax.tree.leaves(entry)) == 2
    assert {array.dtype for array in jax.tree.leaves(init_cache(config, 1, 1, "bfloat16"))} == {jnp.dtype("bfloat16")}


def test_gqa_caches_the_heads_of_keys_and_values_only():
    config = CONFIGS["gqa_yarn"]
    shape = (ROWS, config.gqa.num_kv_heads, LENGTH, config.gqa.head_dim)
    for kept in (init_cache(config, ROWS, LENGTH, "float32"), _decode("gqa_yarn")[1][-1]):
        assert [array.shape for array in jax.tree.leaves(kept)] == [shape] * 2 * config.num_layers


@pytest.mark.parametrize("name", ["mla_q_rank", "gqa_yarn"])
def test_spans_that_join_a_cache_match_full_forward(name):
    """The module's own cached call: four tokens at the default positions, then five more at theirs."""
    config = CONFIGS[name]

    @jax.jit
    def spans(params, ids):
        model = Transformer(config)
        kept = init_cache(config, ROWS, LENGTH, "float32")
        first, kept = model.apply({"params": params}, ids[:, :4], None, kept)
        positions = jnp.broadcast_to(jnp.arange(4, LENGTH), (ROWS, LENGTH - 4))
        second, _ = model.apply({"params": params}, ids[:, 4:], positions, kept)
        return jnp.concatenate([first, second], axis=1)

    logits = spans(weights(config), tokens())
    np.testing.assert_allclose(logits, full_logits(config, tokens()), rtol=0, atol=1e-5)
