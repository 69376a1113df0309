"""What every variant of the GRPO objective keeps, whatever it computes. The variants are in tests/objectives/variants.py."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from grpo_jax.objectives import (
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    POLICY_TERMS,
    GRPOConfig,
    KLConfig,
    add_sums,
    finalize_metrics,
    grpo_denominator,
)
from tests.objectives.variants import (
    COMBINED,
    FLOAT_INPUTS,
    TOKEN_INPUTS,
    VARIANTS,
    B,
    Evaluated,
    T,
    assert_same,
    batch,
    clean,
    coefficients_of,
    differentiate,
    evaluate,
    evaluate_once,
    rows,
    traces,
    trained,
    with_selection,
)
from tests.oracles import policy_terms as oracle

every_variant = pytest.mark.parametrize("name", VARIANTS)


@every_variant
def test_masked_places_change_nothing_whatever_they_hold_and_have_exactly_zero_gradient(name):
    config, data = VARIANTS[name], batch()
    expected = clean(name)
    for token_input in TOKEN_INPUTS:
        np.testing.assert_array_equal(expected.gradients[token_input][~trained(data)], 0.0)
    kinds = (1e4, -1e4, np.nan, np.inf, -np.inf)
    for garbage in kinds:
        planted = {one: np.where(data["mask"], data[one], np.float32(garbage)) for one in TOKEN_INPUTS}
        assert_same(evaluate(config, data | planted), expected)
    mixed = np.resize(np.array(kinds, np.float32), (B, T))
    for one in TOKEN_INPUTS:
        assert_same(evaluate(config, data | {one: np.where(data["mask"], data[one], mixed)}), expected)


@every_variant
def test_masked_places_of_advantages_and_selection_change_nothing(name):
    """And advantages of tokens that agree within each row are as one advantage a row."""
    config = VARIANTS[name]
    data = with_selection(config, batch())
    planted = data | {"advantages": np.where(data["mask"], data["advantages"][:, None], np.float32(np.nan))}
    if data["selected"] is not None:
        planted["selected"] = data["selected"] | ~data["mask"]
    found = evaluate_once(config, planted)
    np.testing.assert_array_equal(found.gradients["advantages"], 0.0)
    found.gradients["advantages"] = clean(name).gradients["advantages"]
    assert_same(found, clean(name), rtol=1e-6)


@every_variant
def test_a_dropped_row_is_as_a_row_without_a_completion_whatever_it_holds(name):
    config, data = VARIANTS[name], batch()
    dropped = data["row_weight"] == 0
    planted = {one: np.where(dropped[:, None], np.float32(np.nan), data[one]) for one in TOKEN_INPUTS}
    planted["advantages"] = np.where(dropped, np.float32(np.nan), data["advantages"])
    assert_same(evaluate(config, data | planted), clean(name))
    absent = data | {"mask": data["mask"] & ~dropped[:, None], "row_weight": np.ones(B, np.float32)}
    assert_same(evaluate(config, absent), clean(name))
    # It is not as if it were there: the row has tokens that would count.
    assert evaluate(config, data | {"row_weight": np.ones(B, np.float32)}).loss != clean(name).loss


@every_variant
def test_more_padding_and_more_rows_without_a_completion_change_nothing(name):
    config, data = VARIANTS[name], batch()
    larger = {one: np.pad(v, ((0, 2), (0, 4)) if v.ndim == 2 else (0, 2)) for one, v in data.items()}
    larger["row_weight"][B:] = 1.0
    found = evaluate_once(config, larger)
    cut = {one: g[:B, :T] if g.ndim == 2 else g[:B] for one, g in found.gradients.items()}
    assert_same(found._replace(gradients=cut), clean(name), rtol=1e-5)
    assert all(np.count_nonzero(g) == np.count_nonzero(cut[one]) for one, g in found.gradients.items())


@every_variant
def test_row_order_does_not_matter(name):
    order = np.random.default_rng(1).permutation(B)
    found = evaluate(VARIANTS[name], rows(batch(), order))
    assert_same(found, clean(name)._replace(gradients=rows(clean(name).gradients, order)), rtol=1e-5)


@every_variant
@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (2, 5, 1), (1,) * B], ids=str)
def test_micro_batches_of_any_size_in_any_order_add_up_to_the_whole_batch(name, sizes):
    """Means of micro-batch means would weigh the lone row of (1, 7) like the seven others together.

    Parts are filled up with rows without a completion, as a step fills the last one.
    """
    config = VARIANTS[name]
    data = with_selection(config, batch())
    denominator = grpo_denominator(config, data["mask"], data["row_weight"])
    order = np.random.default_rng(2).permutation(B)
    parts, gradients = [], {one: np.zeros_like(gradient) for one, gradient in clean(name).gradients.items()}
    for chosen in np.split(order, np.cumsum(sizes)[:-1]):
        part = rows(data, np.concatenate([chosen, np.full(B - len(chosen), chosen[0])]))
        part["mask"] = part["mask"] & (np.arange(B) < len(chosen))[:, None]
        parts.append(evaluate(config, part, denominator))
        for one, gradient in parts[-1].gradients.items():
            np.testing.assert_array_equal(gradient[len(chosen) :], 0.0)
            gradients[one][chosen] = gradient[: len(chosen)]
    for ordered in (parts, parts[::-1]):
        metrics = finalize_metrics(add_sums(*(part.sums for part in ordered)))
        loss = functools.reduce(np.add, [part.loss for part in ordered])
        assert_same(Evaluated(loss, metrics, gradients, metrics), clean(name), rtol=1e-5)


@every_variant
def test_the_number_of_devices_does_not_matter(name):
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    data = jax.device_put(with_selection(VARIANTS[name], batch()), sharding)
    # One program over all devices costs a compilation: for a variant that has a bit of everything.
    for run in (differentiate, jax.jit(differentiate, static_argnums=0))[: 2 if name == next(iter(COMBINED)) else 1]:
        found = run(VARIANTS[name], data)
        assert len(found.gradients["logprobs"].sharding.device_set) == 8
        assert_same(jax.tree.map(np.asarray, found), clean(name), rtol=1e-6)


def without_kl_and_entropy(config: GRPOConfig) -> GRPOConfig:
    return dataclasses.replace(config, kl_coef=0.0, kl=KLConfig(), entropy_coef=None)


def policy_gradient(config: GRPOConfig, data: dict) -> np.ndarray:
    """−A of each token times its weight in the aggregation, its correction and OPSM, all as the oracle has them."""
    mask, policy, off_policy = trained(data), config.policy, config.off_policy
    wide = {one: data[one].astype(np.float64) for one in ("old", "sampler", "logprobs", "advantages")}
    options = {f"correction_{option}": value for option, value in off_policy.options.items()}
    gradient = -wide["advantages"][:, None] * oracle.CORRECTIONS[off_policy.correction](
        wide["old"], wide["sampler"], mask, options
    )
    if off_policy.opsm_threshold is not None:
        keep = oracle.opsm(wide["logprobs"], wide["sampler"], wide["advantages"], mask, off_policy.opsm_threshold)
        gradient = gradient * keep[:, None]
    for place in np.argwhere(mask):
        one = np.zeros(mask.shape)
        one[tuple(place)] = 1.0
        gradient[tuple(place)] *= oracle.AGGREGATIONS[policy.summed_by](one, mask, data["row_weight"], policy.length)
    return gradient


@every_variant
def test_on_policy_the_ratio_is_exactly_one_nothing_is_clipped_and_the_gradient_is_the_policy_gradient(name):
    data = batch()
    data |= {"old": data["logprobs"]}
    given = evaluate(VARIANTS[name], data)
    unmoved = evaluate_once(VARIANTS[name], data | {"old": None})
    for found in (given, unmoved):
        for metric in ("ratio_mean", "ratio_min", "ratio_max"):
            assert found.metrics[metric] == 1.0, metric
        for metric in ("clip_fraction_low", "clip_fraction_high", "ratio_clamped"):
            assert found.metrics[metric] == 0.0, metric
    no_old = {one: g for one, g in given.gradients.items() if one != "old"}
    assert_same(unmoved, given._replace(gradients=no_old), rtol=1e-6)

    config = without_kl_and_entropy(VARIANTS[name])
    bare = with_selection(config, data)
    gradient = evaluate_once(config, bare | {"old": None}).gradients["logprobs"]
    plain = np.ones((B, T), bool) if bare["selected"] is None else ~bare["selected"]
    np.testing.assert_allclose(gradient[plain], policy_gradient(config, data)[plain], rtol=1e-5, atol=1e-8)
    assert np.count_nonzero(gradient) > 3


@every_variant
@pytest.mark.parametrize(
    "nothing", [{"row_weight": np.zeros(B, np.float32)}, {"mask": np.zeros((B, T), bool)}], ids=["no row", "no token"]
)
def test_with_nothing_to_train_on_loss_and_gradient_are_zero_and_nothing_is_measured(name, nothing):
    found = evaluate(VARIANTS[name], batch() | nothing)
    assert found.loss == 0.0
    for gradient in found.gradients.values():
        np.testing.assert_array_equal(gradient, 0.0)
    zero = {*found.sums.losses, *found.sums.counts}
    assert {"loss", "policy_loss", "tokens", "ratio_clamped"} <= zero
    for metric, value in found.metrics.items():
        assert value == 0.0 if metric in zero else np.isnan(value), metric


@every_variant
def test_only_the_policys_logprobs_and_a_bonus_entropy_get_a_gradient(name):
    config = VARIANTS[name]
    found = evaluate(config, batch(drift=1.0)).gradients
    moved = {"logprobs"} | ({"entropy"} if config.has_entropy_bonus else set())
    assert found.keys() == set(FLOAT_INPUTS)
    assert {one for one, gradient in found.items() if np.any(gradient != 0.0)} == moved


@every_variant
@pytest.mark.parametrize("distance", [21.0, 500.0, 1e4])
def test_far_off_tokens_are_counted_and_everything_stays_finite(name, distance):
    """In row 0, of either sign of advantage and in either direction; row 3 and 5 have one token each."""
    for sign in (1.0, -1.0):
        for moved in (("old",), ("ref",), ("sampler",), ("old", "ref", "sampler")):
            data = batch()
            data["advantages"][[0, 3, 5]] = sign, sign, -sign
            for one in moved:
                for (row, column), direction in {(0, 1): 1, (0, 2): -1, (3, 2): 1, (5, 8): -1}.items():
                    data[one][row, column] = data["logprobs"][row, column] + direction * np.float32(distance)
            found = evaluate(VARIANTS[name], data)
            assert np.isfinite(found.loss)
            for metric, value in found.metrics.items():
                assert np.isfinite(value), metric
            assert np.all(np.isfinite(found.gradients["logprobs"]))
            assert found.metrics["ratio_clamped"] == (4 if "old" in moved else 0)
            assert found.metrics["kl_clamped"] == (4 if "ref" in moved else 0)


@every_variant
def test_coefficients_given_by_step_are_as_the_configs_own_and_do_not_trace_again(name):
    config, data = VARIANTS[name], batch()
    entropy_coef = None if config.entropy_coef is None else 3 * config.entropy_coef
    own = dataclasses.replace(config, kl_coef=3 * config.kl_coef, entropy_coef=entropy_coef)
    before = clean(name), traces[config]
    found = evaluate(config, data, coefficients=coefficients_of(own))
    assert_same(found, evaluate_once(own, data), rtol=1e-6)
    assert traces[config] == before[1]
    if config.kl_in_loss or config.has_entropy_bonus:
        assert found.loss != before[0].loss


def test_every_table_of_the_objective_is_among_the_variants():
    configs = VARIANTS.values()
    assert {config.policy.term for config in configs} == set(POLICY_TERMS)
    assert {config.policy.summed_by for config in configs} == set(AGGREGATIONS)
    assert {config.off_policy.correction for config in configs} == {"none", *CORRECTIONS}
    assert {config.kl.estimator for config in configs if config.kl_in_loss} == set(KL_ESTIMATORS)
