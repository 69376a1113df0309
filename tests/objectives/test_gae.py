"""gae: worked numbers, its two limits, and that what is masked or constant stays so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.objectives import GAEResult, gae
from tests.oracles import advantages as oracle


def completions(seed=0, rows=5, width=9):
    """Random rewards and values with rubbish outside the mask; row 0 is full and row 1 empty."""
    rng = np.random.default_rng(seed)
    starts = np.array([0, 4, 2, 3, 8])[:rows]
    stops = np.array([9, 4, 7, 9, 9])[:rows]
    mask = (np.arange(width) >= starts[:, None]) & (np.arange(width) < stops[:, None])
    rewards, values = rng.normal(size=(2, rows, width)).astype(np.float32)
    rewards[~mask] = np.nan
    values[~mask] = np.where(rng.random((~mask).sum()) < 0.5, np.nan, 1e4)
    return rewards, values, mask


def run(rewards, values, mask, **options) -> GAEResult:
    return gae(jnp.asarray(rewards), jnp.asarray(values), jnp.asarray(mask), **options)


def test_worked_numbers():
    # γ = λ = 0.5, r = [0, 0, 1], V = [0.5, 0.6, 0.8] after a prompt of one token.
    # δ_3 = 1 − 0.8 = 0.2; δ_2 = 0.5·0.8 − 0.6 = −0.2; δ_1 = 0.5·0.6 − 0.5 = −0.2.
    # A_3 = 0.2; A_2 = −0.2 + 0.25·0.2 = −0.15; A_1 = −0.2 + 0.25·(−0.15) = −0.2375.
    result = run([[9, 0, 0, 1, 9]], [[9, 0.5, 0.6, 0.8, 9]], [[0, 1, 1, 1, 0]], discount=0.5, decay=0.5)
    np.testing.assert_allclose(result.advantages_BT, [[0, -0.2375, -0.15, 0.2, 0]], atol=1e-6)
    np.testing.assert_allclose(result.returns_BT, [[0, 0.2625, 0.45, 1.0, 0]], atol=1e-6)


@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("decay", [0.0, 0.95, 1.0])
def test_it_matches_the_oracle(discount, decay):
    rewards, values, mask = completions()
    result = run(rewards, values, mask, discount=discount, decay=decay)
    expected = oracle.gae(rewards, values, mask, discount, decay)
    np.testing.assert_allclose(result.advantages_BT, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.returns_BT, np.where(mask, expected + values, 0), rtol=1e-5, atol=1e-5)


def test_the_defaults_are_no_discount_and_a_decay_of_95_hundredths():
    rewards, values, mask = completions()
    given = run(rewards, values, mask, discount=1.0, decay=0.95)
    np.testing.assert_array_equal(run(rewards, values, mask).advantages_BT, given.advantages_BT)


def test_without_decay_it_is_the_residual():
    rewards, values, mask = completions()
    inside = np.where(mask, values, 0)
    following = np.pad(inside[:, 1:], ((0, 0), (0, 1)))
    expected = np.where(mask, rewards + 0.9 * following - inside, 0)
    np.testing.assert_allclose(run(rewards, values, mask, discount=0.9, decay=0.0).advantages_BT, expected, atol=1e-6)


def test_with_full_decay_it_is_the_return_minus_the_value():
    rewards, values, mask = completions()
    inside = np.where(mask, rewards, 0)
    to_come = np.cumsum(inside[:, ::-1], axis=1)[:, ::-1]
    result = run(rewards, values, mask, decay=1.0)
    np.testing.assert_allclose(result.advantages_BT, np.where(mask, to_come - values, 0), atol=1e-5)
    np.testing.assert_allclose(result.returns_BT, np.where(mask, to_come, 0), atol=1e-5)


def test_outside_the_mask_is_exactly_zero_and_reaches_nothing():
    rewards, values, mask = completions()
    result = run(rewards, values, mask)
    for array in result:
        np.testing.assert_array_equal(np.asarray(array)[~mask], 0.0)
        assert np.all(np.isfinite(array))
    clean = run(np.where(mask, rewards, 0), np.where(mask, values, 0), mask)
    jax.tree.map(np.testing.assert_array_equal, result, clean)


def test_rows_do_not_touch_each_other():
    rewards, values, mask = completions()
    order = np.random.default_rng(1).permutation(len(mask))
    together = run(rewards, values, mask).advantages_BT
    np.testing.assert_array_equal(run(rewards[order], values[order], mask[order]).advantages_BT, together[order])


def test_no_gradient_flows_into_values_or_rewards():
    rewards, values, mask = completions()

    def total(rewards, values):
        result = gae(rewards, values, jnp.asarray(mask))
        return jnp.sum(result.advantages_BT**2) + jnp.sum(result.returns_BT**2)

    for gradient in jax.grad(total, argnums=(0, 1))(jnp.asarray(rewards), jnp.asarray(values)):
        np.testing.assert_array_equal(gradient, 0.0)


def test_under_jit_and_in_low_precision_it_is_float32():
    rewards, values, mask = completions()
    plain = run(rewards, values, mask)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), jax.jit(gae)(rewards, values, mask), plain)
    low = run(jnp.asarray(rewards, jnp.bfloat16), jnp.asarray(values, jnp.bfloat16), mask)
    assert low.advantages_BT.dtype == low.returns_BT.dtype == jnp.float32


@pytest.mark.parametrize("name", ["discount", "decay"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_factor_out_of_range_is_named_with_its_value(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        run(*completions(), **{name: value})


def test_arrays_of_different_shapes_are_refused():
    rewards, values, mask = completions()
    with pytest.raises(ValueError, match="values \\(5, 8\\)"):
        run(rewards, values[:, :8], mask)
