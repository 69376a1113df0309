"""clipped_surrogate: which side of the clip a token is on, and that its gradient agrees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.objectives import LOG_RATIO_LIMIT, clipped_surrogate
from tests.oracles import objectives as oracle


@jax.jit
def evaluate(new, old, advantages, mask, clip_low=0.2, clip_high=0.3):
    """The terms and d Σ loss / d new."""

    def loss(new):
        result = clipped_surrogate(new, old, advantages, mask, clip_low, clip_high)
        return result.loss_BT.sum(), result

    (_, result), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(new))
    return result, gradient


def one_token(log_ratio, advantage):
    old = np.full((1, 1), -1.0, np.float32)
    return evaluate(old + np.float32(log_ratio), old, np.array([advantage], np.float32), np.ones((1, 1), bool))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "low", "high"),
    [
        (1.0, 2.0, -2.0, -2.0, False, False),
        (1.0, -2.0, 2.0, 2.0, False, False),
        (1.25, 2.0, -2.5, -2.5, False, False),  # inside the higher upper clip
        (1.5, 2.0, -2.6, 0.0, False, True),  # risen far enough already
        (1.5, -2.0, 3.0, 3.0, False, False),  # the minimum takes the unclipped side: still pulled back
        (0.5, -2.0, 1.6, 0.0, True, False),  # fallen far enough already
        (0.5, 2.0, -1.0, -1.0, False, False),
        (0.85, -2.0, 1.7, 1.7, False, False),
        (1.5, 0.0, 0.0, 0.0, False, False),
        (0.5, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_worked_cases(ratio, advantage, loss, gradient, low, high):
    terms, found = one_token(np.log(ratio), advantage)
    np.testing.assert_allclose((terms.loss_BT[0, 0], found[0, 0]), (loss, gradient), rtol=1e-5)
    assert (terms.clipped_low_BT[0, 0], terms.clipped_high_BT[0, 0]) == (low, high)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    new=st.lists(st.floats(-8, 0), min_size=6, max_size=6),
    old=st.lists(st.floats(-8, 0), min_size=6, max_size=6),
    advantages=st.lists(st.floats(-3, 3), min_size=2, max_size=2),
    clips=st.tuples(st.floats(0, 1), st.floats(0, 2)),
)
def test_losses_match_the_oracle(new, old, advantages, clips):
    new, old = (np.array(values, np.float32).reshape(2, 3) for values in (new, old))
    advantages = np.array(advantages, np.float32)
    result, _ = evaluate(new, old, advantages, np.ones((2, 3), bool), *clips)
    expected = [[oracle.surrogate(new[b, t], old[b, t], advantages[b], *clips) for t in range(3)] for b in range(2)]
    np.testing.assert_allclose(result.loss_BT, expected, rtol=1e-4, atol=1e-5)


def test_on_policy_the_ratio_is_one_to_the_bit_and_nothing_is_clipped():
    logprobs = -jnp.abs(jax.random.normal(jax.random.key(0), (4, 16))) * 10
    result = clipped_surrogate(logprobs, logprobs, jnp.array([2.0, -2.0, 0.0, 1.0]), jnp.ones((4, 16), bool), 0.0, 0.0)
    np.testing.assert_array_equal(result.ratio_BT, 1.0)
    assert not np.any(result.clipped_low_BT | result.clipped_high_BT | result.clamped_BT)


def test_only_the_policy_gets_a_gradient():
    mask = jnp.ones((1, 2), bool)
    gradients = jax.grad(lambda new, old, a: clipped_surrogate(new, old, a, mask, 0.5, 0.5).loss_BT.sum(), (0, 1, 2))(
        jnp.array([[-1.0, -2.0]]), jnp.array([[-1.1, -1.9]]), jnp.array([1.0])
    )
    assert np.all(np.asarray(gradients[0]) != 0)
    np.testing.assert_array_equal(gradients[1], 0.0)
    np.testing.assert_array_equal(gradients[2], 0.0)


@pytest.mark.parametrize("garbage", [1e4, -1e4, np.nan, np.inf, -np.inf])
def test_masked_places_have_no_loss_and_no_gradient_whatever_they_hold(garbage):
    mask = np.array([[False, True, True, False]])
    new, old = np.array([[[-1.0, -1.0, -2.0, -3.0]], [[-1.5, -1.2, -1.9, -3.5]]], np.float32)
    advantages = np.ones(1, np.float32)
    clean, clean_gradient = evaluate(new, old, advantages, mask)
    plant = functools.partial(np.where, mask)
    for planted in (plant(new, garbage), old), (new, plant(old, garbage)):
        result, gradient = evaluate(*(values.astype(np.float32) for values in planted), advantages, mask)
        jax.tree.map(np.testing.assert_array_equal, result, clean)
        np.testing.assert_array_equal(gradient, clean_gradient)
        np.testing.assert_array_equal(gradient[~mask], 0.0)


@pytest.mark.parametrize("log_ratio", [-1e4, -21.0, 21.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_huge_log_ratio_is_counted_and_stays_finite(log_ratio, advantage):
    result, gradient = one_token(log_ratio, advantage)
    assert result.clamped_BT.all() and abs(log_ratio) > LOG_RATIO_LIMIT
    assert np.isfinite(result.loss_BT).all() and np.isfinite(gradient).all()
    if log_ratio > 0 and advantage < 0:
        assert gradient[0, 0] > 0  # a token that must come down still does
