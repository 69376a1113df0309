"""grpo_loss: value, gradient and metrics against the oracle, and the invariants that a loss over rollouts must keep."""

import functools
import itertools
from pathlib import Path
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.objectives import (
    GRPOConfig,
    add_sums,
    finalize_metrics,
    grpo_denominator,
    grpo_loss,
    reduce_sums,
    row_weights,
)
from tests.oracles import objectives as oracle

B, T = 6, 9
AGGREGATIONS = get_args(get_type_hints(GRPOConfig)["aggregation"])
# Shared by the tests that are about no option in particular, so that each shape compiles once.
CONFIGS = {name: GRPOConfig(aggregation=name, clip_high=0.28, kl_coef=0.1) for name in AGGREGATIONS}
CONFIG = CONFIGS["sequence_mean"]
TOKEN_INPUTS = ("logprobs", "old", "ref", "sampler", "entropy")


def batch(seed=0, drift=0.4):
    """A rollout of 6 rows whose policy has moved by `drift` nats a token since; the fifth row has no completion."""
    rng = np.random.default_rng(seed)
    logprobs = -rng.exponential(1.5, (B, T))
    mask = oracle.completion_mask([1, 3, 0, 2, 5, 8], [9, 5, 6, 3, 5, 9], T)
    arrays = {
        "logprobs": logprobs,
        "old": logprobs + drift * rng.normal(size=(B, T)),
        "ref": logprobs + 0.8 * rng.normal(size=(B, T)),
        "sampler": logprobs + drift * rng.normal(size=(B, T)),
        "entropy": rng.exponential(1.0, (B, T)),
        "advantages": rng.normal(size=B),
        "row_weight": np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0]),
    }
    return {name: values.astype(np.float32) for name, values in arrays.items()} | {"mask": mask}


def rows(data, chosen):
    return {name: values if values is None else values[chosen] for name, values in data.items()}


def sums(config, data):
    return grpo_loss(
        config,
        data["logprobs"],
        data["old"],
        data["ref"],
        data["sampler"],
        data["advantages"],
        data["row_weight"],
        data["mask"],
        data["entropy"],
    )


@functools.partial(jax.jit, static_argnums=0)
def evaluate(config, data):
    """(loss, metrics, d loss / d log-probs) of a whole batch."""
    denominator = grpo_denominator(config, data["mask"], data["row_weight"])

    def loss(logprobs):
        loss_sum, parts = sums(config, data | {"logprobs": logprobs})
        return loss_sum / denominator, parts

    (value, parts), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(data["logprobs"]))
    return value, finalize_metrics(parts), gradient


@functools.partial(jax.jit, static_argnums=0)
def part_of_loss(config, data):
    """(loss sum, metric sums, gradient of the loss sum) of a part of a batch."""
    (value, parts), gradient = jax.value_and_grad(lambda x: sums(config, data | {"logprobs": x}), has_aux=True)(
        jnp.asarray(data["logprobs"])
    )
    return value, parts, gradient


def expected(config, data):
    return oracle.grpo(
        *(data[name] for name in ("logprobs", "old", "ref", "sampler", "advantages", "row_weight", "mask", "entropy")),
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl_coef=config.kl_coef,
        aggregation=config.aggregation,
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), drift=st.sampled_from([0.0, 0.1, 1.0, 15.0]))
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_loss_and_metrics_match_the_oracle(aggregation, seed, drift):
    config = CONFIGS[aggregation]
    data = batch(seed, drift)
    loss, metrics, _ = evaluate(config, data)
    found = expected(config, data)
    assert metrics.keys() == found.keys()
    for name, value in found.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(loss, metrics["loss"])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_gradient_matches_finite_differences_of_the_oracle(aggregation, seed):
    config = CONFIGS[aggregation]
    data = batch(seed)
    _, _, gradient = evaluate(config, data)
    numeric = oracle.gradient(lambda x: expected(config, data | {"logprobs": x})["loss"], data["logprobs"], step=1e-6)
    np.testing.assert_allclose(gradient, numeric, atol=1e-5)
    assert np.count_nonzero(numeric) > 10


@pytest.mark.parametrize("garbage", [1e4, -1e4, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_padding_changes_nothing_whatever_it_holds_and_has_exactly_zero_gradient(aggregation, garbage):
    config = CONFIGS[aggregation]
    data = batch()
    clean_loss, clean_metrics, clean_gradient = evaluate(config, data)
    for names in (*((name,) for name in TOKEN_INPUTS), TOKEN_INPUTS):
        planted = data | {name: np.where(data["mask"], data[name], np.float32(garbage)) for name in names}
        loss, metrics, gradient = evaluate(config, planted)
        np.testing.assert_array_equal(loss, clean_loss)
        np.testing.assert_array_equal(gradient, clean_gradient)
        np.testing.assert_array_equal(np.asarray(gradient)[~data["mask"]], 0.0)
        for name, value in metrics.items():
            np.testing.assert_array_equal(value, clean_metrics[name], err_msg=name)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_more_padding_changes_nothing(aggregation):
    config = CONFIGS[aggregation]
    data = batch()
    larger = {n: np.pad(v, ((0, 2), (0, 4)) if v.ndim == 2 else (0, 2)) for n, v in data.items()}
    larger["row_weight"][B:] = 1.0  # what counts is that the added rows have no completion
    loss, metrics, gradient = evaluate(config, data)
    padded_loss, padded_metrics, padded_gradient = evaluate(config, larger)
    np.testing.assert_allclose(padded_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(padded_gradient[:B, :T], gradient, rtol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(padded_metrics[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_row_order_does_not_matter(aggregation):
    config = CONFIGS[aggregation]
    data = batch()
    order = np.random.default_rng(1).permutation(B)
    loss, metrics, gradient = evaluate(config, data)
    shuffled_loss, shuffled_metrics, shuffled_gradient = evaluate(config, rows(data, order))
    np.testing.assert_allclose(shuffled_loss, loss, rtol=1e-5)
    np.testing.assert_allclose(shuffled_gradient, np.asarray(gradient)[order], rtol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(shuffled_metrics[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("cuts", [(1,), (5,), (1, 2, 3, 4, 5)])
def test_micro_batches_of_any_size_add_up_to_the_whole_batch(aggregation, cuts):
    """Uneven cuts: means of micro-batch means would weigh the lone row of (1,) like the five others together."""
    config = CONFIGS[aggregation]
    data = batch()
    loss, metrics, gradient = evaluate(config, data)
    denominator = grpo_denominator(config, data["mask"], data["row_weight"])
    total, parts, gradients = 0.0, [], []
    for chosen in np.split(np.arange(B), cuts):
        value, part_sums, part_gradient = part_of_loss(config, rows(data, chosen))
        total += value / denominator
        parts.append(part_sums)
        gradients.append(part_gradient / denominator)
    np.testing.assert_allclose(total, loss, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(gradients), gradient, rtol=1e-5, atol=1e-8)
    merged = finalize_metrics(add_sums(*parts))
    assert merged.keys() == metrics.keys()
    for name, value in metrics.items():
        np.testing.assert_allclose(merged[name], value, rtol=1e-5, err_msg=name)


def test_sums_stacked_by_scan_reduce_to_the_whole_batch():
    config = CONFIG
    data = {name: jnp.asarray(values) for name, values in batch().items()}
    stacked = jax.lax.map(lambda part: sums(config, part)[1], {n: v.reshape(3, 2, *v.shape[1:]) for n, v in data.items()})
    for name, value in finalize_metrics(reduce_sums(stacked)).items():
        np.testing.assert_allclose(value, evaluate(config, data)[1][name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_without_old_logprobs_the_ratio_is_exactly_one_and_the_gradient_is_the_policy_gradient(aggregation):
    config = GRPOConfig(aggregation=aggregation, clip_low=0.0, clip_high=0.0, kl_coef=0.0)
    data = batch() | {"old": None}
    _, metrics, gradient = evaluate(config, data)
    for name in ("ratio_mean", "ratio_min", "ratio_max"):
        assert metrics[name] == 1.0
    for name in ("clip_fraction_low", "clip_fraction_high", "ratio_clamped"):
        assert metrics[name] == 0.0
    tokens = data["mask"].sum(1)
    counts = data["row_weight"] * (tokens > 0)
    weights = {"sequence_mean": counts / np.maximum(tokens, 1) / counts.sum(), "token_mean": counts / (counts @ tokens)}
    expected_gradient = data["mask"] * (-data["advantages"] * weights[aggregation])[:, None]
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_dropped_row_is_outside_the_loss_its_denominator_and_every_metric(aggregation):
    config = CONFIGS[aggregation]
    data = batch()
    kept = np.flatnonzero(data["row_weight"])
    loss, metrics, gradient = evaluate(config, data)
    alone_loss, alone_metrics, alone_gradient = evaluate(config, rows(data, kept))
    np.testing.assert_allclose(loss, alone_loss, rtol=1e-6)
    for name, value in alone_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(np.asarray(gradient)[kept], alone_gradient, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(gradient)[2], 0.0)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("nothing", [{"row_weight": np.zeros(B, np.float32)}, {"mask": np.zeros((B, T), bool)}], ids=str)
def test_a_batch_with_nothing_to_train_on_has_zero_loss_and_gradient_and_measures_nothing(aggregation, nothing):
    loss, metrics, gradient = evaluate(CONFIGS[aggregation], batch() | nothing)
    assert loss == 0.0
    np.testing.assert_array_equal(gradient, 0.0)
    zero = {"loss", "policy_loss", "kl_loss", "ratio_clamped", "kl_clamped", "tokens"}
    assert {name for name, value in metrics.items() if value == 0.0} == zero
    assert all(np.isnan(value) for name, value in metrics.items() if name not in zero)


def test_far_off_tokens_are_counted_and_their_gradient_is_finite():
    data = batch()
    for name, places in (("old", (1,)), ("ref", (1, 2))):
        for place in places:
            data[name][0, place] = data["logprobs"][0, place] + 500
    _, metrics, gradient = evaluate(CONFIG, data)
    assert metrics["ratio_clamped"] == 1 and metrics["kl_clamped"] == 2
    assert np.all(np.isfinite(gradient))
    assert gradient[0, 2] < -1e5  # far below the reference: pulled up as hard as at the limit, not let go


def test_only_the_policys_logprobs_get_a_gradient():
    data = {name: jnp.asarray(values) for name, values in batch().items()}
    others = ("old", "ref", "sampler", "entropy", "advantages")
    gradients = jax.jit(jax.grad(lambda chosen: sums(CONFIG, data | chosen)[0]))({name: data[name] for name in others})
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, 0.0, err_msg=name)


def test_the_kl_needs_a_reference_and_zero_kl_does_not():
    with pytest.raises(ValueError, match=r"ref_logprobs is None, but kl_coef is 0\.1"):
        sums(CONFIG, batch() | {"ref": None})
    _, metrics, _ = evaluate(GRPOConfig(kl_coef=0.0), batch() | {"ref": None, "sampler": None})
    assert metrics.keys().isdisjoint({"kl", "kl_loss", "kl_clamped", "mismatch_kl", "mismatch_max", "ess"})


def test_zero_kl_with_a_reference_measures_it_and_adds_nothing():
    data = batch()
    loss, metrics, gradient = evaluate(GRPOConfig(kl_coef=0.0), data)
    bare_loss, _, bare_gradient = evaluate(GRPOConfig(kl_coef=0.0), data | {"ref": None})
    assert metrics["kl"] > 0
    np.testing.assert_array_equal(loss, bare_loss)
    np.testing.assert_array_equal(gradient, bare_gradient)


def test_the_mismatch_is_nothing_where_sampler_and_policy_agree():
    data = batch()
    metrics = evaluate(CONFIG, data | {"sampler": data["old"]})[1]
    assert metrics["mismatch_kl"] == 0.0 and metrics["mismatch_max"] == 0.0
    np.testing.assert_allclose(metrics["ess"], 1.0, rtol=1e-6)


def test_dead_groups_are_kept_or_dropped():
    live = np.array([True, False, True])
    np.testing.assert_array_equal(row_weights(GRPOConfig(dead_groups="keep"), live), [1, 1, 1])
    np.testing.assert_array_equal(row_weights(GRPOConfig(dead_groups="drop"), live), [1, 0, 1])


@pytest.mark.parametrize(("aggregation", "count"), [("sequence_mean", 4), ("token_mean", 8 + 2 + 1 + 1)])
def test_the_denominator_counts_what_is_trained_on(aggregation, count):
    """Of the six rows one is dropped and one has no completion."""
    data = batch()
    np.testing.assert_array_equal(data["mask"].sum(1), [8, 2, 5, 1, 0, 1])
    found = grpo_denominator(CONFIGS[aggregation], data["mask"], data["row_weight"])
    np.testing.assert_allclose(found, count, rtol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip_low", -0.1),
        ("clip_low", 1.5),
        ("clip_high", -0.1),
        ("clip_high", float("inf")),
        ("kl_coef", -0.02),
        ("kl_coef", float("nan")),
        ("aggregation", "mean"),
        ("dead_groups", "ignore"),
    ],
)
def test_an_impossible_field_is_named_with_its_value(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value!r}"):
        GRPOConfig(**{field: value})


@pytest.mark.parametrize(
    "choice", list(itertools.product(AGGREGATIONS, get_args(get_type_hints(GRPOConfig)["dead_groups"])))
)
def test_every_choice_that_the_types_allow_is_in_the_tables(choice):
    config = GRPOConfig(aggregation=choice[0], dead_groups=choice[1])
    row_weights(config, np.ones(2, bool))
    grpo_denominator(config, np.ones((2, 3), bool), np.ones(2, np.float32))


def test_every_metric_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()
    _, metrics, _ = evaluate(CONFIG, batch())
    assert [name for name in metrics if f"`{name}`" not in text] == []
