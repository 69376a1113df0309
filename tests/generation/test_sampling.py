"""Draws and filters against a NumPy float64 oracle, and what a draw may depend on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.generation import SamplerConfig, gumbel_noise, position_keys, row_keys, sample_tokens, sampling_logits
from tests.oracles.sampling import distribution

FILTERS = [
    {},
    {"temperature": 0.7, "min_p": 0.1},
    {"top_k": 5},
    {"top_p": 0.4},
    {"top_p": 0.999},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
]


def _logits(rows: int, vocab: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2.0, size=(rows, vocab)).astype(np.float32)


def _probabilities(logits: np.ndarray, **config) -> np.ndarray:
    return np.asarray(_softmax(logits, SamplerConfig(**config)))


@partial(jax.jit, static_argnums=1)
def _softmax(logits, config):
    return jax.nn.softmax(sampling_logits(logits, config), axis=-1)


@partial(jax.jit, static_argnums=(0, 1))
def _keys(rows: int, seed: int = 0):
    return position_keys(row_keys(seed, 0, jnp.arange(rows)), jnp.zeros(rows, jnp.int32))


_sample = jax.jit(sample_tokens, static_argnums=2)
_noise = jax.jit(gumbel_noise, static_argnums=1)


@pytest.mark.parametrize("config", FILTERS, ids=str)
def test_filtered_distribution_matches_float64_oracle(config):
    logits = _logits(32, 300)
    expected = np.stack([distribution(row, **config) for row in logits])
    actual = _probabilities(logits, **config)
    np.testing.assert_array_equal(actual > 0, expected > 0)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("config", [{"top_k": 3}, {"top_k": 5}, {"top_p": 0.3}, {"top_k": 5, "top_p": 0.5}], ids=str)
def test_ties_keep_the_lower_ids(config):
    logits = np.array([[-0.0, 1, 1, 1, 0.0, 1, -2, 0.0], [-3, -3, -3, -3, -3, -3, -3, -3]], np.float32)
    expected = np.stack([distribution(row, **config) for row in logits])
    np.testing.assert_allclose(_probabilities(logits, **config), expected, atol=1e-6)


def test_top_k_keeps_exactly_k_of_equal_logits():
    kept = _probabilities(np.zeros((1, 50), np.float32), top_k=7)[0] > 0
    np.testing.assert_array_equal(np.flatnonzero(kept), np.arange(7))


def test_smallest_top_p_keeps_the_most_probable_token():
    logits = _logits(8, 40)
    probabilities = _probabilities(logits, top_p=1e-6)
    np.testing.assert_array_equal(probabilities.argmax(-1), logits.argmax(-1))
    np.testing.assert_array_equal(probabilities.max(-1), 1.0)


@pytest.mark.parametrize("config", [{"temperature": 0.8}, {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.02}])
def test_draws_follow_the_distribution(config):
    """Chi-square over 40,000 draws; 99.9 % of fixed seeds would pass if the sampler is right, this one does."""
    rows, vocab = 40_000, 12
    logits = _logits(1, vocab, seed=3)
    expected = distribution(logits[0], **config)
    tokens, _ = _sample(np.broadcast_to(logits, (rows, vocab)), _keys(rows, seed=5), SamplerConfig(**config))
    counts = np.bincount(np.asarray(tokens), minlength=vocab)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = (((counts - rows * expected) ** 2)[possible] / (rows * expected[possible])).sum()
    # 99.9 % quantiles of chi-square at 1..11 degrees of freedom.
    quantile = [10.8, 13.8, 16.3, 18.5, 20.5, 22.5, 24.3, 26.1, 27.9, 29.6, 31.3][possible.sum() - 2]
    assert chi_square < quantile


def test_one_row_draws_independently_at_each_position():
    positions, vocab = 20_000, 4
    keys = position_keys(jnp.broadcast_to(row_keys(1, 2, jnp.array([3])), positions), jnp.arange(positions))
    tokens = np.asarray(_sample(jnp.zeros((positions, vocab)), keys, SamplerConfig())[0])
    pairs = np.bincount(tokens[:-1] * vocab + tokens[1:], minlength=vocab**2) / (positions - 1)
    np.testing.assert_allclose(pairs, 1 / vocab**2, atol=0.007)  # four standard deviations


def test_noise_is_gumbel_in_bulk_and_in_the_rare_tail():
    """P(g > x) = 1 - exp(-exp(-x)); the tail is what draws rare tokens, and 23-bit uniforms would miss it."""
    noise = np.asarray(_noise(_keys(64), 1 << 18)).ravel()
    count = noise.size
    for x in (-2.0, -1.0, 0.0, 1.0, 3.0, 6.0, 9.0, 12.0, 14.0):
        expected = count * -np.expm1(-np.exp(-x))
        assert abs((noise > x).sum() - expected) < 4 * np.sqrt(expected) + 1, x
    assert np.isfinite(noise).all()
    assert len(np.unique(noise[noise > 12])) > 0.9 * (noise > 12).sum()


def test_noise_depends_on_seed_step_row_position_and_on_nothing_else():
    @jax.jit
    def keys(seed, step, row, position):
        return position_keys(row_keys(seed, step, row[None]), position[None])

    def noise(*at):
        return np.asarray(_noise(keys(*map(jnp.int32, at)), 33))[0]

    base = noise(1, 2, 3, 4)
    for other in [(0, 2, 3, 4), (1, 1, 3, 4), (1, 2, 2, 4), (1, 2, 3, 3), (2, 1, 3, 4), (1, 2, 4, 3), (1, 3, 2, 4)]:
        assert not np.any(noise(*other) == base), other

    many = position_keys(row_keys(1, 2, jnp.arange(7, -1, -1)), jnp.array([9, 8, 7, 6, 4, 2, 1, 0]))
    np.testing.assert_array_equal(np.asarray(_noise(many, 33))[4], base)
    np.testing.assert_array_equal(np.asarray(_noise(many, 50))[4, :33], base)


def test_step_may_be_traced():
    eager = row_keys(5, 7, jnp.arange(3))
    traced = jax.jit(lambda step: row_keys(5, step, jnp.arange(3)))(jnp.int32(7))
    np.testing.assert_array_equal(jax.random.key_data(eager), jax.random.key_data(traced))


@pytest.mark.parametrize("config", [FILTERS[1], FILTERS[-1]], ids=str)
def test_logprob_is_under_the_distribution_sampled_from(config):
    logits = _logits(64, 37)
    tokens, logprobs = _sample(logits, _keys(64), SamplerConfig(**config))
    assert logprobs.dtype == jnp.float32 and tokens.dtype == jnp.int32
    expected = [np.log(distribution(row, **config)[token]) for row, token in zip(logits, np.asarray(tokens), strict=True)]
    np.testing.assert_allclose(np.asarray(logprobs), expected, atol=2e-6)


def test_greedy_takes_the_argmax_and_reports_the_unfiltered_softmax():
    logits = _logits(32, 37)
    logits[0, 5] = logits[0, 9] = 50.0
    tokens, logprobs = _sample(logits, _keys(32), SamplerConfig(temperature=0))
    np.testing.assert_array_equal(np.asarray(tokens), logits.argmax(-1))
    expected = [np.log(distribution(row).max()) for row in logits]
    np.testing.assert_allclose(np.asarray(logprobs), expected, atol=2e-6)


def test_bfloat16_logits_are_scored_in_float32():
    logits = jnp.asarray(_logits(8, 37), jnp.bfloat16)
    _, logprobs = _sample(logits, _keys(8), SamplerConfig(temperature=0.9))
    _, expected = _sample(logits.astype(jnp.float32), _keys(8), SamplerConfig(temperature=0.9))
    np.testing.assert_array_equal(np.asarray(logprobs), np.asarray(expected))


def test_nan_logits_give_a_nan_logprob_and_a_valid_token():
    logits = jnp.asarray(_logits(2, 37)).at[1, 4].set(jnp.nan)
    tokens, logprobs = _sample(logits, _keys(2), SamplerConfig())
    assert 0 <= int(tokens[1]) < 37
    assert np.isfinite(logprobs[0]) and np.isnan(logprobs[1])


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e-40}, "at least 1e-06"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.0}, "min_p"),
        ({"temperature": 0, "top_k": 5}, "top_k=5"),
        ({"temperature": 0, "top_p": 0.9, "min_p": 0.1}, "top_p=0.9, min_p=0.1"),
    ],
    ids=str,
)
def test_impossible_samplers_are_refused_by_name(config, named):
    with pytest.raises(ValueError, match=named):
        SamplerConfig(**config)


def test_top_k_beyond_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="top_k=41 is larger than the vocabulary, 40"):
        sampling_logits(jnp.zeros((1, 40)), SamplerConfig(top_k=41))
