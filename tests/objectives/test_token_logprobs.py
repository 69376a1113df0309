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


score = jax.jit(token_logprobs, static_argnames=("temperature", "chunk", "entropy_gradient"))


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


@functools.partial(jax.jit, static_argnames=("chunk", "temperature", "entropy_gradient"))
def both_gradients(hidden, kernel, tokens, cotangents, chunk, temperature=1.0, entropy_gradient=True):
    """Gradients of Σ cotangents[0] · log-prob + cotangents[1] · entropy, where a cotangent of 0 selects nothing."""

    def loss(hidden, kernel):
        stats = token_logprobs(
            hidden, kernel, tokens, temperature=temperature, chunk=chunk, entropy_gradient=entropy_gradient
        )
        return sum(jnp.sum(jnp.where(c != 0, s * c, 0.0)) for s, c in zip(stats, cotangents, strict=True))

    return jax.grad(loss, (0, 1))(hidden, kernel)


def cotangents_of(which, seed=1):
    """Random ones for the log-probs and the entropies; those not in `which` are 0."""
    values = np.random.default_rng(seed).normal(size=(2, B, T)).astype(np.float32)
    return tuple(value * (name in which) for name, value in zip(("logprobs", "entropy"), values, strict=True))


BOTH = ("logprobs", "entropy")


@pytest.mark.parametrize("which", [("entropy",), BOTH])
@pytest.mark.parametrize(("chunk", "temperature"), [(3, 0.6), (T, 1.0)])
def test_the_entropys_gradient_matches_finite_differences_of_the_oracle(chunk, temperature, which):
    hidden, kernel, tokens = inputs()
    cotangents = cotangents_of(which)

    def loss(hidden, kernel):
        stats = oracle.token_stats(hidden, kernel, np.asarray(tokens), temperature)
        return float(sum(np.sum(s * c) for s, c in zip(stats, cotangents, strict=True)))

    found = both_gradients(hidden, kernel, tokens, cotangents, chunk, temperature)
    np.testing.assert_allclose(found[0], oracle.gradient(lambda h: loss(h, kernel), hidden), atol=2e-5)
    np.testing.assert_allclose(found[1], oracle.gradient(lambda k: loss(hidden, k), kernel), atol=2e-5)


@jax.jit
def gradients_of_all_logits(hidden, kernel, tokens, cotangents, temperature):
    """The same by automatic differentiation, with nothing chunked and nothing written out."""

    def loss(hidden, kernel):
        log_p = jax.nn.log_softmax(hidden[:, :-1] @ kernel / temperature)
        logprobs = jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1)[..., 0]
        entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        return jnp.sum(logprobs * cotangents[0][:, 1:]) + jnp.sum(entropy * cotangents[1][:, 1:])

    return jax.grad(loss, (0, 1))(hidden, kernel)


@pytest.mark.parametrize("chunk", [1, 3, 5, T, T + 5])
def test_at_every_chunk_both_gradients_are_those_of_automatic_differentiation(chunk):
    hidden, kernel, tokens = inputs()
    cotangents = cotangents_of(BOTH)
    expected = gradients_of_all_logits(hidden, kernel, tokens, cotangents, 0.7)
    for found, gradient in zip(both_gradients(hidden, kernel, tokens, cotangents, chunk, 0.7), expected, strict=True):
        np.testing.assert_allclose(found, gradient, atol=2e-5)


def test_a_gradient_asked_for_changes_no_value():
    hidden, kernel, tokens = inputs()
    plain = score(hidden, kernel, tokens, chunk=3)
    for found, expected in zip(score(hidden, kernel, tokens, chunk=3, entropy_gradient=True), plain, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("chunk", [3, T])
def test_entropy_has_no_gradient_unless_asked_for(chunk):
    hidden, kernel, tokens = inputs()
    assert all(np.any(g) for g in both_gradients(hidden, kernel, tokens, cotangents_of(("entropy",)), chunk))
    found = both_gradients(hidden, kernel, tokens, cotangents_of(("entropy",)), chunk, entropy_gradient=False)
    assert all(not np.any(gradient) for gradient in found)
    # To the bit: neither does it reach the gradient of the log-probs.
    found, expected = (
        both_gradients(hidden, kernel, tokens, cotangents_of(which), chunk, entropy_gradient=False)
        for which in (BOTH, ("logprobs",))
    )
    for gradient, alone in zip(found, expected, strict=True):
        np.testing.assert_array_equal(gradient, alone)


@pytest.mark.parametrize("scale", [0.0, 30.0, 1e4])
def test_the_entropys_gradient_is_finite_for_logits_of_any_size(scale):
    hidden, kernel, tokens = inputs()
    found = both_gradients(hidden * np.float32(scale), kernel, tokens, cotangents_of(BOTH), T)
    assert all(np.all(np.isfinite(gradient)) for gradient in found)


@pytest.mark.parametrize("garbage", [1e4, -1e4, np.nan, np.inf])
@pytest.mark.parametrize("chunk", [3, T])
def test_a_place_whose_both_cotangents_are_zero_adds_exactly_nothing_whatever_it_holds(garbage, chunk):
    hidden, kernel, tokens = inputs()
    logprobs, entropy = (c.copy() for c in cotangents_of(BOTH))
    # By place of the row: log-prob alone, both, entropy alone, and none in places 4 to 6.
    logprobs[:, 3:], entropy[:, :2], entropy[:, 4:] = 0.0, 0.0, 0.0
    unused = np.roll((logprobs == 0) & (entropy == 0), -1, axis=1)
    unused[:, -1] = True  # no token is scored from the last
    planted = np.where(unused[..., None], np.float32(garbage), hidden)
    clean, dirty = (both_gradients(h, kernel, tokens, (logprobs, entropy), chunk) for h in (hidden, planted))
    for found, expected in zip(dirty, clean, strict=True):
        np.testing.assert_array_equal(found, expected)
    d_hidden = np.asarray(dirty[0])
    np.testing.assert_array_equal(d_hidden[unused], 0.0)
    assert np.all(np.any(d_hidden[:, :3] != 0, axis=2))  # one cotangent is enough to count


def test_an_unknown_token_takes_nothing_from_the_gradient_of_its_places_entropy():
    hidden, kernel, tokens = inputs()
    planted = tokens.copy()
    planted[:, 2] = 10_000
    logprobs, entropy = (c.copy() for c in cotangents_of(BOTH))
    logprobs[:, 2] = 0.0
    found, expected = (both_gradients(hidden, kernel, t, (logprobs, entropy), 3) for t in (planted, tokens))
    for gradient, clean in zip(found, expected, strict=True):
        np.testing.assert_array_equal(gradient, clean)


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


def test_the_entropys_gradient_in_bfloat16_is_that_of_its_inputs_but_for_rounding():
    hidden, kernel, tokens = inputs(dtype=jnp.bfloat16)
    cotangents = cotangents_of(BOTH)
    found = both_gradients(hidden, kernel, tokens, cotangents, 3)
    assert all(gradient.dtype == jnp.bfloat16 for gradient in found)
    expected = gradients_of_all_logits(hidden.astype(np.float32), kernel.astype(np.float32), tokens, cotangents, 1.0)
    for gradient, exact in zip(found, expected, strict=True):
        # 8 bits: the gradient of a logit and the result are rounded, each by 2^-9 of its size, and summed over 11 logits.
        np.testing.assert_allclose(gradient.astype(np.float32), exact, atol=2**-7 * np.max(np.abs(exact)))


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
    tokens = jnp.asarray(rng.integers(0, 16, (4, 8)))
    cotangents = tuple(jnp.asarray(rng.normal(size=(2, 4, 8)), jnp.float32))
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rows, both = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), ("fsdp", "tensor")))
    placed = [jax.device_put(x, s) for x, s in ((hidden, rows), (kernel, both), (tokens, rows), (cotangents, rows))]
    for entropy_gradient in (False, True):
        found, expected = (
            both_gradients(*where, 4, entropy_gradient=entropy_gradient)
            for where in (placed, (hidden, kernel, tokens, cotangents))
        )
        for gradient, alone in zip(found, expected, strict=True):
            np.testing.assert_allclose(gradient, alone, atol=1e-5)


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
