"""group_advantages: worked numbers, degenerate groups, and agreement with the oracle."""

import itertools
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.objectives import AdvantageConfig, group_advantages
from tests.oracles import objectives as oracle

GRPO = AdvantageConfig()
BASELINES = get_args(get_type_hints(AdvantageConfig)["baseline"])
SCALES = get_args(get_type_hints(AdvantageConfig)["scale"])


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 0, 0, 1], [1, -1, -1, 1]), ([1, 0, 0, 0], [1.732, -0.577, -0.577, -0.577])],
)
@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_worked_numbers(array, rewards, expected):
    result = group_advantages(array(rewards, np.float32), 4, GRPO)
    np.testing.assert_allclose(result.advantages_B, expected, atol=1e-3)
    assert np.all(result.live_B)


def test_without_a_scale_the_advantage_is_the_distance_from_the_mean():
    config = AdvantageConfig(scale="none")
    np.testing.assert_array_equal(group_advantages(np.array([1.0, 0, 0, 0]), 4, config).advantages_B, [0.75] + [-0.25] * 3)


def test_without_baseline_and_scale_the_advantage_is_the_reward_even_in_a_group_that_agrees():
    config = AdvantageConfig(baseline="none", scale="none")
    result = group_advantages(np.array([1, 1, np.nan, 0.5]), 2, config)
    np.testing.assert_array_equal(result.advantages_B, [1, 1, 0, 0.5])
    np.testing.assert_array_equal(result.live_B, [True, True, False, True])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rewards=st.lists(st.sampled_from([0.0, 1.0, 0.1, 0.3, -2.5, float("nan")]), min_size=12, max_size=12),
    group_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
)
@pytest.mark.parametrize(("baseline", "scale"), list(itertools.product(BASELINES, SCALES)))
def test_advantages_match_the_oracle(baseline, scale, rewards, group_size):
    config = AdvantageConfig(baseline=baseline, scale=scale)
    rewards = np.array(rewards, np.float32)
    expected, live = oracle.group_advantages(rewards, group_size, baseline, scale, config.epsilon)
    result = group_advantages(rewards, group_size, config)
    np.testing.assert_allclose(result.advantages_B, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(result.live_B, live)
    # Exact zeros stay exact: a remainder of 1e-9, divided by an epsilon of 1e-6, is a gradient.
    np.testing.assert_array_equal(result.advantages_B[~live], 0.0)


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7.7, 1e4 + 0.1, 0.0, 1e30])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
@pytest.mark.parametrize("scale", SCALES)
def test_identical_rewards_give_exactly_zero(value, size, scale):
    result = group_advantages(np.full(size, value, np.float32), size, AdvantageConfig(scale=scale))
    np.testing.assert_array_equal(result.advantages_B, 0.0)
    assert not np.any(result.live_B)
    assert result.stats.frac_zero_std == 1.0
    assert result.stats.group_std_mean == 0.0


@pytest.mark.parametrize("base", [1.0, 100.0, 1e4])
def test_rewards_that_nearly_agree_keep_the_standard_deviation_of_their_distances(base):
    """One ulp apart: E[x²] − E[x]² in float32 is zero or negative here, and its root NaN or its quotient huge."""
    low = np.float32(base)
    high = np.nextafter(low, np.float32(np.inf))
    rewards = np.array([low, low, low, high], np.float32)
    result = group_advantages(rewards, 4, GRPO)
    expected, _ = oracle.group_advantages(rewards, 4, "group_mean", "group_std", GRPO.epsilon)
    np.testing.assert_allclose(result.advantages_B, expected, rtol=1e-4)
    assert np.max(np.abs(result.advantages_B)) < 1.74


def test_a_missing_reward_is_left_out_of_its_group_and_counted():
    rewards = np.array([1, 0, np.nan, 0, 1, np.nan, np.nan, np.nan], np.float32)
    result = group_advantages(rewards, 4, GRPO)
    np.testing.assert_allclose(result.advantages_B, [2**0.5, -(0.5**0.5), 0, -(0.5**0.5), 0, 0, 0, 0], rtol=1e-4)
    np.testing.assert_array_equal(result.live_B, [True, True, False, True] + [False] * 4)
    assert result.stats.missing_rewards == 4
    assert result.stats.frac_zero_std == 0.5


def test_an_infinite_reward_is_a_missing_one():
    result = group_advantages(np.array([1, 0, np.inf, -np.inf], np.float32), 4, GRPO)
    np.testing.assert_allclose(result.advantages_B, [1, -1, 0, 0], rtol=1e-4)


def test_the_order_of_groups_and_of_rows_in_a_group_does_not_matter():
    rng = np.random.default_rng(0)
    rewards = rng.choice([0, 0.2, 1.2], 24).astype(np.float32).reshape(6, 4)
    straight = group_advantages(rewards.reshape(-1), 4, GRPO).advantages_B.reshape(6, 4)
    order, inner = rng.permutation(6), rng.permutation(4)
    shuffled = group_advantages(rewards[order][:, inner].reshape(-1), 4, GRPO).advantages_B.reshape(6, 4)
    np.testing.assert_allclose(shuffled, straight[order][:, inner], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("baseline", "scale"), list(itertools.product(BASELINES, SCALES)))
def test_numpy_stays_on_the_host_and_jax_gives_the_same_under_jit(baseline, scale):
    config = AdvantageConfig(baseline=baseline, scale=scale)
    rewards = np.array([1, 0, 0, 1, 0.1, 0.1, 0.1, 0.1, 0.3, np.nan, 0.1, 1], np.float32)
    host = group_advantages(rewards, 4, config)
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(host))
    traced = jax.jit(group_advantages, static_argnums=(1, 2))(jnp.asarray(rewards), 4, config)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), traced, host)


@pytest.mark.parametrize(("shape", "group_size"), [((6,), 4), ((2, 4), 4), ((4,), 0)])
def test_rewards_that_are_not_whole_groups_are_refused(shape, group_size):
    with pytest.raises(ValueError, match=f"group_size is {group_size}"):
        group_advantages(np.zeros(shape, np.float32), group_size, GRPO)


@pytest.mark.parametrize(("baseline", "scale"), list(itertools.product(BASELINES, SCALES)))
def test_the_smallest_group_is_the_least_that_can_be_live(baseline, scale):
    config = AdvantageConfig(baseline=baseline, scale=scale)
    rewards = np.array([1.0, 0.0], np.float32)
    live = [size for size in (1, 2) if np.any(group_advantages(rewards, size, config).live_B)]
    assert live[0] == config.smallest_group


@pytest.mark.parametrize(
    ("field", "value"),
    [("baseline", "mean"), ("scale", "std"), ("epsilon", 0.0), ("epsilon", -1.0), ("epsilon", float("nan"))],
)
def test_an_impossible_field_is_named_with_its_value(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value!r}"):
        AdvantageConfig(**{field: value})
