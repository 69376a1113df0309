"""k3_kl: what it estimates and which gradient it has, proved by enumerating every outcome of a small softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.objectives import LOG_RATIO_LIMIT, k3_kl
from tests.oracles import objectives as oracle

LOGITS = np.array([0.3, -1.2, 0.8, 0.0, -0.4])
REF_LOG_P = oracle.log_softmax(np.array([-0.5, 0.6, 0.1, 0.9, -1.0]))


def expected_k3(logits):
    """E over tokens drawn from π of k3, the drawing itself held fixed: what a loss over sampled tokens tends to."""
    log_p = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32))
    probability = jax.lax.stop_gradient(jnp.exp(log_p))
    return jnp.sum(probability * k3_kl(log_p, jnp.asarray(REF_LOG_P, jnp.float32)).kl)


def test_the_value_is_an_unbiased_estimate_of_the_reverse_kl():
    reverse = oracle.kl_divergence(oracle.log_softmax(LOGITS), REF_LOG_P)
    np.testing.assert_allclose(expected_k3(LOGITS), reverse, rtol=1e-5)


def test_the_gradient_as_a_loss_is_that_of_the_forward_kl():
    found = jax.grad(expected_k3)(jnp.asarray(LOGITS, jnp.float32))
    forward = oracle.gradient(lambda x: oracle.kl_divergence(REF_LOG_P, oracle.log_softmax(x)), LOGITS)
    reverse = oracle.gradient(lambda x: oracle.kl_divergence(oracle.log_softmax(x), REF_LOG_P), LOGITS)
    np.testing.assert_allclose(found, forward, atol=1e-6)
    assert np.max(np.abs(forward - reverse)) > 0.05  # so that the line above tells the two apart


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(-60, 0), st.floats(-60, 0)), min_size=4, max_size=4))
def test_values_match_the_oracle_and_are_never_negative(pairs):
    logprobs, ref = np.array(pairs, np.float32).T
    terms = k3_kl(jnp.asarray(logprobs), jnp.asarray(ref))
    np.testing.assert_allclose(terms.kl, [oracle.k3(a, b) for a, b in zip(logprobs, ref)], rtol=1e-5, atol=1e-6)
    assert np.all(np.asarray(terms.kl) >= -1e-6)
    np.testing.assert_array_equal(terms.clamped, np.abs(logprobs - ref) > LOG_RATIO_LIMIT)


def test_equal_policies_have_no_kl_and_no_gradient():
    logprobs = jnp.array([-0.1, -3.0, -20.0])
    value, gradient = jax.vjp(lambda x: k3_kl(x, logprobs).kl, logprobs)
    np.testing.assert_array_equal(value, 0.0)
    np.testing.assert_array_equal(gradient(jnp.ones(3))[0], 0.0)


def test_the_reference_gets_no_gradient():
    gradient = jax.grad(lambda ref: k3_kl(jnp.array([-1.0, -2.0]), ref).kl.sum())(jnp.array([-2.0, -0.5]))
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("beyond", [0.5, 100.0, 1e4])
def test_beyond_the_limit_a_token_is_counted_and_keeps_the_finite_gradient_of_the_limit(beyond):
    def at(difference):
        terms, gradient = jax.vjp(lambda x: k3_kl(x, jnp.float32(0.0)), jnp.float32(difference))
        return terms, gradient(type(terms)(jnp.float32(1.0), np.zeros((), jax.dtypes.float0)))[0]

    for sign in (-1, 1):
        terms, gradient = at(sign * (LOG_RATIO_LIMIT + beyond))
        edge, edge_gradient = at(sign * LOG_RATIO_LIMIT)
        assert terms.clamped and not edge.clamped
        assert np.isfinite(gradient) and gradient == edge_gradient and np.sign(gradient) == sign
        assert terms.kl == edge.kl
