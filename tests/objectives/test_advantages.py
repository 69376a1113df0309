"""group_advantages: worked numbers, the oracle, and the laws that every estimator keeps."""

import itertools
import re
from typing import NamedTuple, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.objectives import ADVANTAGE_ESTIMATORS, AdvantageConfig, group_advantages
from tests.oracles import advantages as oracle


def choices(field):
    """The words that a field of the configuration may have."""
    members = get_args(get_type_hints(AdvantageConfig)[field])
    return get_args(members[0]) or members


GRPO = AdvantageConfig()
ESTIMATORS, BASELINES, SCALES = choices("estimator"), choices("baseline"), choices("scale")
STDS = ("group_std", "batch_std")

# Every estimator of the table, and every baseline with every scale and, where there is one, every ddof.
CONFIGS = {name: AdvantageConfig(estimator=name) for name in ADVANTAGE_ESTIMATORS} | {
    f"{baseline}-{scale}-{ddof}": AdvantageConfig(baseline=baseline, scale=scale, ddof=ddof)
    for baseline, scale, ddof in itertools.product(BASELINES, SCALES, (None, 1))
    if ddof is None or scale in STDS
}
every_config = pytest.mark.parametrize("config", list(CONFIGS.values()), ids=list(CONFIGS))


def configs(condition):
    """Parametrises over those of CONFIGS whose resolved estimator meets the condition; there must be some."""
    chosen = {name: config for name, config in CONFIGS.items() if condition(config.resolved)}
    assert chosen
    return pytest.mark.parametrize("config", list(chosen.values()), ids=list(chosen))


class Case(NamedTuple):
    """Everything that an estimator may look at."""

    rewards: np.ndarray
    lengths: np.ndarray
    components: dict[str, np.ndarray]

    def map(self, rewards=lambda values: values, rows=lambda values: values):
        """The case with a function over everything in units of reward, and one over the rows of everything."""
        return Case(
            rows(rewards(self.rewards)),
            rows(self.lengths),
            {name: rows(rewards(values)) for name, values in self.components.items()},
        )


WEIGHTS = {"right": 1.0, "form": 0.5}


def case(rewards, lengths=None, **components) -> Case:
    """A case of these rewards; components that are not given are the rewards themselves."""
    rewards = np.asarray(rewards, np.float32)
    lengths = np.arange(1, rewards.size + 1) % 5 + 1 if lengths is None else np.asarray(lengths)
    components = {name: np.asarray(components.get(name, rewards), np.float32) for name in WEIGHTS}
    return Case(rewards, lengths, components)


def varied(seed=0, groups=6, size=4) -> Case:
    """Groups that differ in every way that an estimator may look at."""
    rng = np.random.default_rng(seed)
    right = rng.random((groups, size)) < rng.uniform(0.2, 0.8, (groups, 1))
    right[:, :2] = [True, False]  # no group agrees
    right, form = right.reshape(-1).astype(np.float32), rng.choice([0, 0.5, 1], groups * size).astype(np.float32)
    return case(right + np.float32(0.5) * form, rng.integers(1, 60, groups * size), right=right, form=form)


def run(config, case, group_size=4, array=np.asarray, weights=WEIGHTS):
    return group_advantages(
        array(case.rewards),
        group_size,
        config,
        lengths_B=array(case.lengths),
        components={name: array(values) for name, values in case.components.items()},
        weights=weights,
    )


def expected(config, case, group_size):
    chosen = config.resolved
    options = {"ddof": chosen.ddof, "epsilon": chosen.epsilon}
    if config.estimator == "gdpo":
        return oracle.gdpo(case.rewards, group_size, case.components, WEIGHTS, **options)
    options["lengths"] = case.lengths
    return oracle.advantages(case.rewards, group_size, chosen.baseline, chosen.scale, **options)


# Worked by hand.


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 0, 0, 1], [1, -1, -1, 1]), ([1, 0, 0, 0], [1.732, -0.577, -0.577, -0.577])],
)
@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_worked_numbers_of_grpo(array, rewards, expected):
    result = group_advantages(array(rewards, np.float32), 4, GRPO)
    np.testing.assert_allclose(result.advantages_B, expected, atol=1e-3)
    assert np.all(result.live_B)


@pytest.mark.parametrize(
    ("options", "group_size", "rewards", "expected"),
    [
        ({"estimator": "dr_grpo"}, 4, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ({"estimator": "rloo"}, 4, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ({"estimator": "max_rl"}, 4, [1, 0, 0, 0], [3, -1, -1, -1]),  # mean 1/4
        ({"estimator": "opo"}, 2, [1, 0], [0.75, -0.25]),  # lengths 1 and 3: the baseline is 1/4
        ({"estimator": "reinforce_pp"}, 2, [1, 1, 0, 0], [1, 1, -1, -1]),  # groups agree, the batch does not
        # The batch's variance is 1/4 · 3/4, whose root is 0.4330.
        ({"estimator": "lite_ppo"}, 2, [1, 0, 0, 0], [1.1547, -1.1547, 0, 0]),
        ({"estimator": "reinforce"}, 2, [1, 0.5, 1, 1], [1, 0.5, 1, 1]),
        ({"estimator": "grpo", "ddof": 1}, 4, [1, 0, 0, 1], [0.866, -0.866, -0.866, 0.866]),  # std √(1/3)
        ({"estimator": "grpo", "epsilon": 0.5}, 4, [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        ({"baseline": "none", "scale": "group_mean"}, 4, [1, 0, 0, 1], [2, 0, 0, 2]),
    ],
)
def test_worked_numbers(options, group_size, rewards, expected):
    result = run(AdvantageConfig(**options), case(rewards, np.resize([1, 3], len(rewards))), group_size)
    np.testing.assert_allclose(result.advantages_B, expected, atol=1e-4)
    np.testing.assert_array_equal(result.live_B, np.array(expected) != 0 if options.get("scale") is None else True)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Normalised in their groups: right [1, −1 | 1, −1], form [0, 0 | 1, −1]. Sums [1, −1 | 2, −2], std √2.5.
        (1.0, [0.63246, -0.63246, 1.26491, -1.26491]),
        # Sums [1, −1 | 1.5, −1.5], std √1.625.
        (0.5, [0.78446, -0.78446, 1.17670, -1.17670]),
    ],
)
def test_worked_numbers_of_gdpo(weight, expected):
    right, form = np.array([1, 0, 1, 0], np.float32), np.array([0, 0, 1, 0], np.float32)
    result = run(
        AdvantageConfig(estimator="gdpo"),
        case(right + weight * form, right=right, form=form),
        2,
        weights={"right": 1.0, "form": weight},
    )
    np.testing.assert_allclose(result.advantages_B, expected, atol=1e-4)
    assert np.all(result.live_B)


def test_gdpo_tells_apart_what_grpo_gives_the_same_advantage():
    """Totals 0 and 1 in one group, 0 and 2 in the other: each is ±1 in GRPO."""
    told = case([1, 0, 2, 0], right=[1, 0, 1, 0], form=[0, 0, 1, 0])
    np.testing.assert_allclose(np.abs(run(GRPO, told, 2).advantages_B), 1, rtol=1e-4)
    first, _, third, _ = run(AdvantageConfig(estimator="gdpo"), told, 2).advantages_B
    assert third > 1.2 * first


def test_a_component_that_does_not_apply_is_left_out_of_its_statistics_and_of_the_sum():
    """Form applies to rows 1 and 2 alone and is ±1 there; right is ±1. Sums [1, −2, 2, −1], std √2.5."""
    missing = case([1, 0, 1, 0], right=[1, 0, 1, 0], form=[np.nan, 0, 7, np.nan])
    result = run(AdvantageConfig(estimator="gdpo"), missing, weights={"right": 1.0, "form": 1.0})
    np.testing.assert_allclose(result.advantages_B, np.array([1, -2, 2, -1]) / 2.5**0.5, rtol=1e-4)
    assert result.stats.components_left_out == 2
    assert result.stats.missing_rewards == 0


# The oracle.


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    rewards=st.lists(st.sampled_from([0.0, 1.0, 0.1, 0.3, -2.5, np.nan, np.inf]), min_size=12, max_size=12),
    lengths=st.lists(st.sampled_from([0, 1, 7, 500]), min_size=12, max_size=12),
    right=st.lists(st.sampled_from([0.0, 1.0]), min_size=12, max_size=12),
    form=st.lists(st.sampled_from([0.0, 0.1, 3.0, np.nan]), min_size=12, max_size=12),
    group_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
)
@every_config
def test_advantages_match_the_oracle(config, rewards, lengths, right, form, group_size):
    drawn = case(rewards, lengths, right=right, form=form)
    advantages, live = expected(config, drawn, group_size)
    result = run(config, drawn, group_size)
    np.testing.assert_array_equal(result.live_B, live)
    np.testing.assert_allclose(result.advantages_B, advantages, rtol=5e-6, atol=5e-6)
    # Exact zeros stay exact: a remainder of 1e-9, divided by an epsilon of 1e-6, is a gradient.
    np.testing.assert_array_equal(result.advantages_B[~live], 0.0)


@pytest.mark.parametrize("name", sorted(oracle.PAPERS))
def test_a_named_estimator_has_the_parts_of_its_paper(name):
    chosen = AdvantageConfig(estimator=name).resolved
    assert (chosen.baseline, chosen.scale, chosen.ddof, chosen.epsilon) == (*oracle.PAPERS[name], 0, 1e-6)


@configs(lambda chosen: chosen.divides_by_std)
@pytest.mark.parametrize("base", [1.0, 100.0, 1e4])
def test_rewards_that_nearly_agree_keep_the_standard_deviation_of_their_distances(config, base):
    """One ulp apart: E[x²] − E[x]² in float32 is zero or negative here, and its root NaN or its quotient huge."""
    low = np.float32(base)
    high = np.nextafter(low, np.float32(np.inf))
    near = case([low, low, low, high])
    advantages, live = expected(config, near, 4)
    result = run(config, near)
    np.testing.assert_allclose(result.advantages_B, advantages, rtol=1e-4, atol=1e-6)
    assert np.all(live) and np.all(result.live_B)


# Degenerate batches, under every estimator.


@every_config
def test_whatever_comes_in_only_finite_numbers_come_out(config):
    nan, inf = np.nan, np.inf
    near = np.nextafter(np.float32(0.1), np.float32(1))
    rewards = (
        [1, nan, 0, inf] + [nan] * 4 + [nan, 1, nan, nan] + [0.1, near, 0.1, 0.1] + [-1, 1, -1, 1] + [1e12, -1e12, 0, 1]
    )
    lengths = [3, 1, 0, 2] + [0] * 8 + [-1, 2, nan, inf] + [1, 2, 3, 4] + [0] * 4
    nasty = case(rewards, lengths, form=np.roll(rewards, 5))
    result = run(config, nasty)
    assert np.all(np.isfinite(result.advantages_B))
    if config.resolved.baseline in ("group_mean", "leave_one_out", None) and config.resolved.scale in STDS:
        assert np.max(np.abs(result.advantages_B)) < 6
    np.testing.assert_array_equal(result.advantages_B[~result.live_B], 0.0)
    np.testing.assert_array_equal(result.advantages_B[~np.isfinite(nasty.rewards)], 0.0)
    assert all(np.isfinite(value) for value in result.stats)


@every_config
def test_a_batch_that_agrees_gives_exactly_zero_wherever_rewards_are_compared(config):
    compares = any(part.over != "nothing" for part in config.resolved.parts) or config.estimator == "gdpo"
    for value, size in itertools.product([0.1, 1 / 3, -7.7, 1e4 + 0.1, 0.0, 1e30], [1, 2, 3, 7]):
        result = run(config, case(np.full(2 * size, value)), size)
        np.testing.assert_array_equal(result.advantages_B, 0.0 if compares else np.float32(value))
        np.testing.assert_array_equal(result.live_B, not compares)
        assert result.stats.frac_zero_std == 1.0
        assert result.stats.group_std_mean == 0.0
        assert result.stats.groups_without_signal == (2 if compares else 0)


@configs(lambda chosen: chosen.compares_group)
def test_a_group_that_agrees_or_has_one_reward_left_gives_exactly_zero_beside_one_that_differs(config):
    rewards = [1, 0, 2, 0.5] + [0.3] * 4 + [np.nan, 0.7, np.nan, np.nan]
    result = run(config, case(rewards))
    np.testing.assert_array_equal(result.live_B, [True] * 4 + [False] * 8)
    np.testing.assert_array_equal(result.advantages_B[4:], 0.0)
    assert np.all(np.abs(result.advantages_B[:4]).sum() > 0.5)
    assert result.stats.groups_without_signal == 2


@configs(lambda chosen: not chosen.compares_group)
def test_a_group_that_agrees_is_live_where_only_the_batch_is_compared(config):
    result = run(config, case([1, 1, 0.25, 0.25]), 2)
    assert np.all(result.live_B)
    assert len(set(result.advantages_B.tolist())) == 2
    assert result.stats.frac_zero_std == 1.0
    assert result.stats.groups_without_signal == 0


@every_config
def test_a_missing_reward_has_no_part_in_the_other_rows(config):
    """It may as well be another NaN, with any length and components."""
    one, other = varied(), varied()
    for batch, reward, component, length in ((one, np.nan, 0.0, 1), (other, np.inf, 1e6, 999)):
        batch.rewards[5], batch.lengths[5] = reward, length
        for values in batch.components.values():
            values[5] = component
    first, second = run(config, one), run(config, other)
    np.testing.assert_array_equal(first.advantages_B, second.advantages_B)
    assert first.stats.missing_rewards == 1
    assert not first.live_B[5]
    advantages, _ = expected(config, one, 4)
    np.testing.assert_allclose(first.advantages_B, advantages, rtol=1e-5, atol=1e-6)


@every_config
def test_the_smallest_group_is_the_least_that_can_be_live(config):
    live = [size for size in (1, 2) if np.any(run(config, case([1.0, 0.0]), size).live_B)]
    assert live[0] == config.smallest_group
    assert config.compares_group == (config.smallest_group == 2)


def test_a_missing_reward_is_left_out_of_its_group_and_counted():
    rewards = np.array([1, 0, np.nan, 0, 1] + [np.nan] * 7, np.float32)
    result = group_advantages(rewards, 4, GRPO)
    np.testing.assert_allclose(result.advantages_B, [2**0.5, -(0.5**0.5), 0, -(0.5**0.5)] + [0] * 8, rtol=1e-4)
    np.testing.assert_array_equal(result.live_B, [True, True, False, True] + [False] * 8)
    assert result.stats.missing_rewards == 8
    assert result.stats.groups_of_one == 1
    assert result.stats.groups_without_signal == 2
    np.testing.assert_allclose(result.stats.frac_zero_std, 2 / 3)
    np.testing.assert_allclose(result.stats.group_std_mean, np.sqrt(2 / 9) / 3, rtol=1e-5)


@pytest.mark.parametrize(
    "rewards",
    [[-1, 0, 0, 0], [-1, -2, -3, -4], [1, -1, 1, -1], [0.1, 0.2, -0.1, -0.2], [0, 0, 0, 0]],
)
def test_max_rl_gives_a_group_without_a_positive_mean_exactly_zero_and_counts_it(rewards):
    """0.1 + 0.2 − 0.1 − 0.2, measured from −0.2 in float32, has a mean of 1e-8: an advantage of 1e7."""
    result = run(AdvantageConfig(estimator="max_rl"), case([*rewards, 1, 0, 0, 0, np.nan, np.nan, np.nan, np.nan]))
    np.testing.assert_allclose(result.advantages_B, [0] * 4 + [3, -1, -1, -1] + [0] * 4, rtol=1e-6)
    assert result.stats.groups_undefined == 1
    assert result.stats.groups_without_signal == 2


def test_opo_gives_a_group_without_a_token_exactly_zero_and_counts_it():
    result = run(AdvantageConfig(estimator="opo"), case([1, 0, 1, 0], [0, 0, 1, 1]), 2)
    np.testing.assert_array_equal(result.advantages_B, [0, 0, 0.5, -0.5])
    np.testing.assert_array_equal(result.live_B, [False, False, True, True])
    assert result.stats.groups_undefined == 1


def test_gdpo_gives_exactly_zero_where_components_cancel():
    """What rounding leaves of z − z is as small as the batch's standard deviation of it."""
    rewards = np.array([0.1, 0.7, 0.3, 0.9, 0.2, 0.35], np.float32)
    cancelling = case(np.ones(6), right=rewards, form=3 - 7 * rewards)
    result = run(AdvantageConfig(estimator="gdpo"), cancelling, 3, weights={"right": 1.0, "form": 1.0})
    np.testing.assert_array_equal(result.advantages_B, 0.0)
    assert not np.any(result.live_B)


def test_gdpo_gives_exactly_zero_to_a_row_that_no_differing_component_applies_to():
    """Rows 2 and 3 have form alone, which agrees; row 4 has nothing. A component of weight 0 is no signal either."""
    rows = case([1, 0, 1, 0, 0], right=[1, 0, np.nan, np.nan, np.nan], form=[2, 2, 2, 2, np.nan])
    result = run(AdvantageConfig(estimator="gdpo"), rows, 5)
    np.testing.assert_array_equal(result.live_B, [True, True, False, False, False])
    np.testing.assert_array_equal(result.advantages_B[2:], 0.0)
    assert result.stats.missing_rewards == 1
    assert result.stats.components_left_out == 2
    apart = case([1, 0, 1, 0], right=[1, 0, np.nan, np.nan], form=[np.nan, np.nan, 1, 0])
    weightless = run(AdvantageConfig(estimator="gdpo"), apart, weights={"right": 0.0, "form": 1.0})
    np.testing.assert_array_equal(weightless.live_B, [False, False, True, True])
    np.testing.assert_array_equal(weightless.advantages_B[:2], 0.0)


# Laws.


@every_config
def test_the_order_of_groups_and_of_rows_in_a_group_does_not_matter(config):
    rng = np.random.default_rng(0)
    order, inner = rng.permutation(6), rng.permutation(4)

    def shuffled(values):
        return values.reshape(6, 4)[order][:, inner].reshape(-1)

    straight = run(config, varied())
    result = run(config, varied().map(rows=shuffled))
    np.testing.assert_allclose(result.advantages_B, shuffled(straight.advantages_B), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.stats, straight.stats, rtol=1e-5)


@configs(lambda chosen: chosen.baseline != "none" and chosen.scale != "group_mean")
@pytest.mark.parametrize("constant", [-3.0, 100.0])
def test_a_constant_added_to_all_rewards_changes_nothing_where_a_baseline_is_subtracted(config, constant):
    moved = run(config, varied().map(rewards=lambda values: values + np.float32(constant)))
    np.testing.assert_allclose(moved.advantages_B, run(config, varied()).advantages_B, atol=1e-4)


@configs(lambda chosen: chosen.scale != "none")
@pytest.mark.parametrize("factor", [0.25, 1000.0])
def test_a_factor_on_all_rewards_changes_nothing_where_a_scale_divides(config, factor):
    scaled = run(config, varied().map(rewards=lambda values: values * np.float32(factor)))
    np.testing.assert_allclose(scaled.advantages_B, run(config, varied()).advantages_B, rtol=1e-4, atol=1e-5)


@configs(lambda chosen: chosen.baseline in ("group_mean", "leave_one_out", None))
def test_the_advantages_of_a_group_add_to_zero(config):
    np.testing.assert_allclose(run(config, varied()).advantages_B.reshape(6, 4).sum(1), 0, atol=1e-5)


@configs(lambda chosen: chosen.baseline == "length_weighted")
def test_the_length_weighted_advantages_of_a_group_add_to_zero(config):
    batch = varied()
    np.testing.assert_allclose((batch.lengths * run(config, batch).advantages_B).reshape(6, 4).sum(1), 0, atol=1e-4)


@configs(lambda chosen: chosen.baseline == "batch_mean" and chosen.scale in ("batch_std", "none"))
def test_the_advantages_of_the_batch_add_to_zero(config):
    np.testing.assert_allclose(run(config, varied()).advantages_B.sum(), 0, atol=1e-5)


@configs(lambda chosen: "batch" not in {part.over for part in chosen.parts} and chosen.parts)
def test_without_a_statistic_of_the_batch_groups_do_not_touch_each_other(config):
    alone = varied().map(rows=lambda values: values[:4])
    np.testing.assert_array_equal(run(config, alone).advantages_B, run(config, varied()).advantages_B[:4])


def test_numpy_stays_on_the_host_and_jax_gives_the_same_under_jit():
    batch = varied(groups=5)
    batch.rewards[:4] = 0.1
    batch.rewards[[5, 12, 13, 14]] = np.nan
    batch.components["form"][7] = np.nan

    def all_configs(rewards, lengths, components, weights):
        given = {"lengths_B": lengths, "components": components, "weights": weights}
        return {name: group_advantages(rewards, 4, config, **given) for name, config in CONFIGS.items()}

    host = all_configs(*batch, WEIGHTS)
    device = jax.jit(all_configs)(*jax.tree.map(jnp.asarray, tuple(batch)), WEIGHTS)
    for name in CONFIGS:
        assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(host[name])), name
        for one, other in zip(jax.tree.leaves(device[name]), jax.tree.leaves(host[name])):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)
            assert isinstance(one, jax.Array) and one.dtype == other.dtype, name
        assert host[name].advantages_B.dtype == np.float32


# Options.


def test_the_table_and_the_field_name_the_same_estimators_and_each_cites_its_paper():
    assert tuple(ADVANTAGE_ESTIMATORS) == ESTIMATORS
    for estimator in ADVANTAGE_ESTIMATORS.values():
        assert re.search(r"\(.*(\d{4}\.\d{5}|\d{4})\)$", estimator.paper)


def test_no_two_estimators_are_the_same():
    found = [tuple(run(AdvantageConfig(estimator=name), varied()).advantages_B.tolist()) for name in ADVANTAGE_ESTIMATORS]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("ddof", 1), ("epsilon", 0.1), *(("baseline", name) for name in BASELINES), *(("scale", name) for name in SCALES)],
)
def test_an_option_changes_the_advantages_or_is_refused(estimator, field, value):
    own = AdvantageConfig(estimator=estimator)
    try:
        config = AdvantageConfig(estimator=estimator, **{field: value})
    except ValueError as refusal:
        assert re.match(
            f"{field} is {value!r}, but the estimator {estimator} .*has no use for it.*; leave it null", str(refusal)
        )
        assert estimator == "gdpo" or not own.resolved.divides_by_std
        return
    same = np.array_equal(run(config, varied()).advantages_B, run(own, varied()).advantages_B)
    assert same == (getattr(own.resolved, field) == value)


@pytest.mark.parametrize("scale", STDS)
@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "gdpo"])
def test_ddof_and_epsilon_are_taken_with_a_scale_that_uses_them(estimator, scale):
    config = AdvantageConfig(estimator=estimator, scale=scale, ddof=1, epsilon=0.01)
    assert (config.resolved.ddof, config.resolved.epsilon) == (1, 0.01)
    advantages, _ = expected(config, varied(), 4)
    np.testing.assert_allclose(run(config, varied()).advantages_B, advantages, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("estimator", "ppo"),
        ("baseline", "mean"),
        ("scale", "std"),
        ("ddof", 2),
        ("ddof", True),
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", float("nan")),
    ],
)
def test_an_impossible_field_is_named_with_its_value(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value!r}"):
        AdvantageConfig(**{field: value})


@pytest.mark.parametrize(("shape", "group_size"), [((6,), 4), ((2, 4), 4), ((4,), 0), ((0,), 4)])
def test_rewards_that_are_not_whole_groups_are_refused(shape, group_size):
    with pytest.raises(ValueError, match=f"group_size is {group_size}"):
        group_advantages(np.zeros(shape, np.float32), group_size, GRPO)


@every_config
def test_what_an_estimator_needs_is_asked_for_and_what_it_does_not_need_is_not_read(config):
    batch = varied()
    needs = {"lengths_B"} if config.needs_lengths else set()
    needs |= {"components", "weights"} if config.needs_components else set()
    given = {"lengths_B": batch.lengths, "components": batch.components, "weights": WEIGHTS}
    least = group_advantages(batch.rewards, 4, config, **{name: given[name] for name in needs})
    np.testing.assert_array_equal(least.advantages_B, run(config, batch).advantages_B)
    for name in needs:
        with pytest.raises(ValueError, match=f"{name} is None, but the (baseline|estimator) "):
            group_advantages(batch.rewards, 4, config, **{other: given[other] for other in needs - {name}})


def test_lengths_and_components_of_another_shape_are_refused():
    batch = varied()
    with pytest.raises(ValueError, match="lengths_B has shape"):
        run(AdvantageConfig(estimator="opo"), batch._replace(lengths=batch.lengths[:4]))
    with pytest.raises(ValueError, match="components\\['form'\\] has shape"):
        run(AdvantageConfig(estimator="gdpo"), batch._replace(components=batch.components | {"form": np.zeros(3)}))


@pytest.mark.parametrize("weights", [{"right": 1.0}, {"right": 1.0, "form": 1.0, "other": 1.0}])
def test_weights_that_are_not_those_of_the_components_are_refused(weights):
    with pytest.raises(ValueError, match="weights is for"):
        run(AdvantageConfig(estimator="gdpo"), varied(), weights=weights)
