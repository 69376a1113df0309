"""token_logprobs: values, gradients and what must not reach them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.objectives import token_logprobs
from tests.oracles import objectives as oracle

B, T, D, V = 3, 7, 4, 11


def inputs(seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    hidden, kernel = rng.normal(size=(B, T, D)), rng.normal(size=(D, V))
    return hidden.astype(dtype), kernel.astype(dtype), rng.integers(0, V, (B, T), dtype=np.int32)


score = jax.jit(token_logprobs, static_argnames=("temperature", "chunk"))


@functools.partial(jax.jit, static_argnames=("chunk", "temperature"))
def gradients(hidden, kernel, tokens, cotangent, chunk, temperature=1.0):
    """Gradients of Σ cotangent · log-prob for hidden and kernel. The cotangent selects: masked places have 0."""

    def loss(hidden, kernel):
        logprobs = token_logprobs(hidden, kernel, tokens, temperature=temperature, chunk=chunk).logprobs_BT
        return jnp.sum(jnp.where(cotangent != 0, logprobs * cotangent, 0.0))

    return jax.grad(loss, (0, 1))(hidden, kernel)


@pytest.mark.parametrize(("chunk", "temperature"), [(1, 1.0), (3, 0.6), (5, 1.0), (T, 0.6), (T + 5, 1.0)])
def test_values_match_the_oracle_at_every_chunk(chunk, temperature):
    hidden, kernel, tokens = inputs()
    stats = score(hidden, kernel, tokens, temperature=temperature, chunk=chunk)
    logprobs, entropy = oracle.token_stats(hidden, kernel, np.asarray(tokens), temperature)
    np.testing.assert_allclose(stats.logprobs_BT, logprobs, atol=2e-6)
    np.testing.assert_allclose(stats.entropy_BT, entropy, atol=2e-6)
    assert stats.logprobs_BT.dtype == stats.entropy_BT.dtype == jnp.float32


@pytest.mark.parametrize(("chunk", "temperature"), [(3, 0.6), (T, 1.0)])
def test_gradients_match_finite_differences_of_the_oracle(chunk, temperature):
    hidden, kernel, tokens = inputs()
    cotangent = np.random.default_rng(1).normal(size=(B, T))

    def loss(hidden, kernel):
        return float(np.sum(oracle.token_stats(hidden, kernel, np.asarray(tokens), temperature)[0] * cotangent))

    found = gradients(hidden, kernel, tokens, jnp.asarray(cotangent, jnp.float32), chunk, temperature)
    np.testing.assert_allclose(found[0], oracle.gradient(lambda h: loss(h, kernel), hidden), atol=2e-5)
    np.testing.assert_allclose(found[1], oracle.gradient(lambda k: loss(hidden, k), kernel), atol=2e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]))
def test_logits_of_any_size_stay_finite(seed, scale):
    hidden, kernel, tokens = inputs(seed)
    stats = score(hidden * scale, kernel, tokens, chunk=T)
    logprobs, entropy = oracle.token_stats(hidden * scale, kernel, np.asarray(tokens))
    np.testing.assert_allclose(stats.logprobs_BT, logprobs, rtol=1e-5, atol=1e-5 + 1e-6 * scale)
    np.testing.assert_allclose(stats.entropy_BT, entropy, rtol=1e-3, atol=1e-4)
    cotangent = jnp.ones((B, T))
    assert all(np.all(np.isfinite(g)) for g in gradients(hidden * scale, kernel, tokens, cotangent, T))


def test_index_zero_is_zero_and_index_t_is_scored_from_the_hidden_state_before_it():
    hidden, kernel, tokens = inputs()
    stats = score(hidden, kernel, tokens, chunk=3)
    np.testing.assert_array_equal(stats.logprobs_BT[:, 0], 0.0)
    np.testing.assert_array_equal(stats.entropy_BT[:, 0], 0.0)
    for index in range(1, T):
        cotangent = np.zeros((B, T), np.float32)
        cotangent[:, index] = 1.0
        d_hidden, _ = gradients(hidden, kernel, tokens, cotangent, 3)
        np.testing.assert_array_equal(np.any(np.asarray(d_hidden) != 0, axis=(0, 2)), np.arange(T) == index - 1)


def test_entropy_has_no_gradient():
    hidden, kernel, tokens = inputs()
    found = jax.grad(lambda h, k: score(h, k, tokens, chunk=3).entropy_BT.sum(), (0, 1))(hidden, kernel)
    assert all(not np.any(gradient) for gradient in found)


@pytest.mark.parametrize("garbage", [1e4, -1e4, np.nan, np.inf])
@pytest.mark.parametrize("chunk", [3, T])
def test_hidden_states_of_masked_places_reach_no_gradient_whatever_they_hold(garbage, chunk):
    hidden, kernel, tokens = inputs()
    live = jnp.array([[False, False, True, True, True, False, False]] * B)  # tokens with a cotangent
    scored_from = np.roll(np.asarray(live), -1, axis=1)
    cotangent = jnp.where(live, 1.5, 0.0)
    planted = jnp.where(scored_from[..., None], hidden, garbage)
    clean, dirty = (gradients(h, kernel, tokens, cotangent, chunk) for h in (hidden, planted))
    np.testing.assert_array_equal(dirty[0], clean[0])
    np.testing.assert_array_equal(dirty[1], clean[1])
    np.testing.assert_array_equal(np.asarray(dirty[0])[~scored_from], 0.0)
    dirty_logprobs = score(planted, kernel, tokens, chunk=chunk).logprobs_BT
    np.testing.assert_array_equal(dirty_logprobs[live], score(hidden, kernel, tokens, chunk=chunk).logprobs_BT[live])


def test_tokens_of_masked_places_change_nothing_and_an_unknown_token_is_never_a_number():
    hidden, kernel, tokens = inputs()
    live = np.arange(T) < 4
    planted = jnp.where(live, tokens, jnp.array([10_000, -10_000, -1])[:, None])
    cotangent = jnp.where(live & (np.arange(T) > 0), 1.0, 0.0) * jnp.ones((B, 1))
    for found, expected in zip(
        gradients(hidden, kernel, planted, cotangent, 3), gradients(hidden, kernel, tokens, cotangent, 3), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    logprobs = score(hidden, kernel, planted, chunk=3).logprobs_BT
    assert np.all(np.isnan(logprobs[:, 4:])) and np.all(np.isfinite(logprobs[:, :4]))


def test_row_order_does_not_matter():
    hidden, kernel, tokens = inputs()
    order = np.array([2, 0, 1])
    cotangent = jnp.asarray(np.random.default_rng(2).normal(size=(B, T)), jnp.float32)
    straight = gradients(hidden, kernel, tokens, cotangent, 3)
    shuffled = gradients(hidden[order], kernel, tokens[order], cotangent[order], 3)
    np.testing.assert_allclose(shuffled[0], straight[0][order], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(shuffled[1], straight[1], rtol=1e-5, atol=1e-6)


def test_bfloat16_inputs_are_scored_in_float32():
    hidden, kernel, tokens = inputs(dtype=jnp.bfloat16)
    stats = score(hidden, kernel, tokens, chunk=3)
    logprobs, entropy = oracle.token_stats(hidden, kernel, np.asarray(tokens))
    assert stats.logprobs_BT.dtype == stats.entropy_BT.dtype == jnp.float32
    # bfloat16 has 8 bits: an error of 1e-5 means that nothing after the inputs was rounded to it.
    np.testing.assert_allclose(stats.logprobs_BT, logprobs, atol=1e-5)
    np.testing.assert_allclose(stats.entropy_BT, entropy, atol=1e-5)


@pytest.mark.parametrize("kernel_dtype", [jnp.bfloat16, jnp.float32])
def test_the_kernels_gradient_is_added_up_over_chunks_in_float32(kernel_dtype):
    """256 equal contributions: a bfloat16 sum stands still once it is 256 times its addend."""
    hidden = jnp.ones((1, 1025, 1), jnp.bfloat16)
    kernel, tokens = jnp.zeros((1, 2), kernel_dtype), jnp.zeros((1, 1025), jnp.int32)
    d_hidden, d_kernel = gradients(hidden, kernel, tokens, jnp.ones((1, 1025)).at[:, 0].set(0), 1)
    assert d_hidden.dtype == jnp.bfloat16 and d_kernel.dtype == kernel_dtype
    np.testing.assert_allclose(d_kernel.astype(jnp.float32), [[512.0, -512.0]])


def test_sharded_rows_and_vocabulary_agree_with_one_device():
    rng = np.random.default_rng(3)
    hidden, kernel = jnp.asarray(rng.normal(size=(4, 8, 6)), jnp.float32), jnp.asarray(rng.normal(size=(6, 16)), jnp.float32)
    tokens, cotangent = jnp.asarray(rng.integers(0, 16, (4, 8))), jnp.asarray(rng.normal(size=(4, 8)), jnp.float32)
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rows, both = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), ("fsdp", "tensor")))
    placed = [jax.device_put(x, s) for x, s in ((hidden, rows), (kernel, both), (tokens, rows), (cotangent, rows))]
    for found, expected in zip(gradients(*placed, 4), gradients(hidden, kernel, tokens, cotangent, 4), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk is 0"),
        ({"chunk": 4, "temperature": 0.0}, "temperature is 0.0"),
        ({"chunk": 4, "temperature": float("nan")}, "temperature is nan"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        token_logprobs(*inputs(), **options)
