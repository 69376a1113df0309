"""Off-policy corrections and masking: hand-worked figures, and the rules of their options."""

import math
from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.objectives import CORRECTIONS, GRPOConfig, KLConfig, OffPolicyConfig
from grpo_jax.objectives.off_policy import correction_weights, opsm_keep
from tests.objectives.variants import batch, evaluate_once, loss_sum, trained, with_selection

# Rows of w = π_old/μ; 0 stands for a masked place, which holds NaN-free garbage. Geometric means 2, ½, 8 and 4.
W = np.array([[4.0, 1.0], [0.5, 0.5], [16.0, 4.0], [4.0, 0.0]])
MASK = W > 0
# Per correction: options, the weights, and where they are not simply the ratio.
WORKED = {
    "tis": [
        ({}, [[2, 1], [0.5, 0.5], [2, 2], [2, 0]], [[1, 0], [0, 0], [1, 1], [1, 0]]),
        ({"cap": 5.0}, [[4, 1], [0.5, 0.5], [5, 4], [4, 0]], [[0, 0], [0, 0], [1, 0], [0, 0]]),
    ],
    "sequence_tis": [
        ({"cap": 3.0}, [[2, 2], [0.5, 0.5], [3, 3], [3, 0]], [[0, 0], [0, 0], [1, 1], [1, 0]]),
    ],
    "icepop": [
        ({"low": 0.6}, [[4, 1], [0, 0], [0, 4], [4, 0]], [[0, 0], [1, 1], [1, 0], [0, 0]]),
        ({"low": 0.4, "high": 3.0}, [[0, 1], [0.5, 0.5], [0, 0], [0, 0]], [[1, 0], [0, 0], [1, 1], [1, 0]]),
    ],
    "sequence_mask": [
        ({"low": 0.6, "high": 3.0}, [[1, 1], [0, 0], [0, 0], [0, 0]], [[0, 0], [1, 1], [1, 1], [1, 0]]),
        ({"low": 0.4, "high": 5.0}, [[1, 1], [1, 1], [0, 0], [1, 0]], [[0, 0], [0, 0], [1, 1], [0, 0]]),
    ],
}


def weights_of(config: OffPolicyConfig, w: np.ndarray):
    old = np.full(w.shape, -1.0, np.float32)
    sampler = np.where(w > 0, -1.0 - np.log(np.where(w > 0, w, 1.0)), 77.0).astype(np.float32)
    return correction_weights(config, jnp.asarray(old), jnp.asarray(sampler), jnp.asarray(w > 0))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_worked_figures(correction):
    assert correction in WORKED, f"add worked figures of the correction {correction} to WORKED"
    for options, weights, changed in WORKED[correction]:
        found = weights_of(OffPolicyConfig(correction=correction, **options), W)
        np.testing.assert_allclose(np.where(MASK, found.weights_BT, 0), weights, rtol=1e-6)
        np.testing.assert_array_equal(found.changed_BT, np.array(changed, bool))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_weights_carry_no_gradient_of_their_own(correction):
    config, mask = OffPolicyConfig(correction=correction), jnp.ones((1, 2), bool)

    def total(old, sampler):
        return correction_weights(config, old, sampler, mask).weights_BT.sum()

    gradients = jax.grad(total, (0, 1))(jnp.array([[-1.0, -1.2]]), jnp.array([[-1.1, -1.0]]))
    np.testing.assert_array_equal(gradients, 0.0)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_where_sampler_and_policy_agree_nothing_is_corrected(correction):
    found = weights_of(OffPolicyConfig(correction=correction), np.ones((2, 3)))
    np.testing.assert_array_equal(found.weights_BT, 1.0)
    assert not np.any(found.changed_BT)
    data = batch()
    data |= {"sampler": data["old"]}
    plain = evaluate_once(GRPOConfig(), data)
    corrected = evaluate_once(GRPOConfig(off_policy=OffPolicyConfig(correction=correction)), data)
    np.testing.assert_array_equal(corrected.gradients["logprobs"], plain.gradients["logprobs"])
    assert corrected.metrics["corrected_fraction"] == 0.0


@pytest.mark.parametrize("correction", [name for name, entry in CORRECTIONS.items() if "low" in entry.defaults])
def test_the_bounds_of_a_mask_belong_to_what_is_kept(correction):
    """Ratios of ½ and 2 come of exp and log, so there the bound gives way a little; a ratio of 1 is exact."""
    for bound, kept in ((1.0001, False), (0.9999, True)):
        at_low = weights_of(OffPolicyConfig(correction=correction, low=0.5 * bound, high=3.0), np.array([[0.5, 0.5]]))
        assert np.all(np.asarray(at_low.weights_BT) > 0) == kept
        at_high = weights_of(OffPolicyConfig(correction=correction, low=0.1, high=2.0 / bound), np.array([[2.0, 2.0]]))
        assert np.all(np.asarray(at_high.weights_BT) > 0) == kept
    exact = weights_of(OffPolicyConfig(correction=correction, low=1.0, high=1.5), np.array([[1.0, 1.0]]))
    np.testing.assert_array_equal(exact.weights_BT, 1.0)
    exact = weights_of(OffPolicyConfig(correction=correction, low=0.5, high=1.0), np.array([[1.0, 1.0]]))
    np.testing.assert_array_equal(exact.weights_BT, 1.0)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_long_row_is_weighed_by_its_mean_and_not_by_its_product(correction):
    """A thousand tokens, each off by one in a hundred: their product, 2e4, would cap or mask the row."""
    found = weights_of(OffPolicyConfig(correction=correction), np.full((1, 1000), 1.01))
    assert np.all(np.abs(np.asarray(found.weights_BT) - 1.0) < 0.011)
    assert not np.any(found.changed_BT)


def test_a_correction_weighs_the_policy_term_alone():
    """The KL, the entropy bonus and the denominator do not know of it."""
    config = {"kl": KLConfig(estimator="k2"), "kl_coef": 0.3, "entropy_coef": 0.2}
    data = batch(drift=1.0)
    plain = evaluate_once(GRPOConfig(**config), data)
    masked = evaluate_once(
        GRPOConfig(**config, off_policy=OffPolicyConfig(correction="icepop", low=1e-4, high=1.1e-4)), data
    )
    assert masked.metrics["corrected_fraction"] == 1.0 and masked.metrics["policy_loss"] == 0.0
    for name in ("kl_loss", "entropy_loss"):
        np.testing.assert_array_equal(masked.metrics[name], plain.metrics[name])


def test_opsm_drops_rows_of_negative_advantage_that_the_policy_has_left():
    """Mean log μ − log π: .6, .6, .6, .4, −2, and one token of .6 beside a masked 99; the threshold is ½."""
    gaps = np.array([[1.0, 0.2], [1.0, 0.2], [1.0, 0.2], [0.6, 0.2], [-2.0, -2.0], [0.6, 99.0]], np.float32)
    mask = np.array([[1, 1]] * 5 + [[1, 0]], bool)
    advantages = np.array([-1, 1, 0, -1, -1, -1], np.float32)[:, None] + np.zeros((6, 2), np.float32)
    keep = opsm_keep(0.5, jnp.full((6, 2), -3.0), jnp.asarray(gaps - 3.0), jnp.asarray(advantages), jnp.asarray(mask))
    np.testing.assert_array_equal(np.asarray(keep).any(1), [False, True, True, True, True, False])
    np.testing.assert_array_equal(np.asarray(keep).all(1), np.asarray(keep).any(1))


def test_opsm_measures_from_the_policy_of_now_and_not_from_that_of_the_rollout():
    """π_old = μ, and π has fallen by one nat a token: rows of negative advantage are dropped, the others are not."""
    data = with_selection(GRPOConfig(), batch(drift=0.0))
    data["logprobs"] = data["logprobs"] - np.float32(1.0)
    config = GRPOConfig(kl_coef=0.0, off_policy=OffPolicyConfig(opsm_threshold=0.5))
    found = evaluate_once(config, data)
    negative = (data["advantages"] < 0)[:, None] & trained(data)
    assert 0 < negative.sum() < trained(data).sum()
    np.testing.assert_allclose(found.metrics["opsm_fraction"], negative.sum() / trained(data).sum(), rtol=1e-6)
    np.testing.assert_array_equal(found.gradients["logprobs"][negative], 0.0)
    assert np.all(found.gradients["logprobs"][trained(data) & ~negative] != 0.0)
    # A looser threshold drops none.
    loose = evaluate_once(GRPOConfig(kl_coef=0.0, off_policy=OffPolicyConfig(opsm_threshold=1.01)), data)
    assert loose.metrics["opsm_fraction"] == 0.0


@pytest.mark.parametrize(
    "config", [OffPolicyConfig(opsm_threshold=0.5), *(OffPolicyConfig(correction=correction) for correction in CORRECTIONS)]
)
def test_what_reads_the_samplers_logprobs_cannot_do_without(config):
    assert config.needs_sampler
    data = with_selection(GRPOConfig(), batch()) | {"sampler": None}
    with pytest.raises(ValueError, match="sampler_logprobs is None, but off_policy has correction"):
        loss_sum(GRPOConfig(off_policy=config), data)
    loss_sum(GRPOConfig(), data)
    assert not OffPolicyConfig().needs_sampler


def test_no_gradient_flows_through_a_correction_or_the_mask():
    data = with_selection(GRPOConfig(), batch(drift=1.0))
    for off_policy in (OffPolicyConfig(correction="tis", cap=9.0), OffPolicyConfig(correction="sequence_tis", cap=9.0)):
        config = GRPOConfig(kl_coef=0.0, off_policy=off_policy)
        gradient = jax.grad(lambda old, config=config: loss_sum(config, data | {"logprobs": old, "old": None})[0])(
            jnp.asarray(data["old"])
        )
        # With π_old = sg(π), the weight π_old/μ moves with π; only the ratio may be differentiated.
        w = np.exp((data["old"] - data["sampler"]).astype(np.float64))
        if off_policy.correction == "sequence_tis":
            logs = [np.mean(np.log(row[mask])) if mask.any() else 0.0 for row, mask in zip(w, trained(data), strict=True)]
            w = np.exp(logs)[:, None]
        tokens = np.maximum(trained(data).sum(1, keepdims=True), 1)
        expected = -data["advantages"][:, None] * np.minimum(w, 9.0) / tokens * trained(data)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"old_logprobs": "rollout"}, "old_logprobs is 'rollout', but it must be one of recomputed, sampler"),
        ({"correction": "cis"}, "correction is 'cis', but it must be one of none, "),
        (
            {"correction": "tis", "old_logprobs": "sampler"},
            "correction is 'tis', but it must be none with old_logprobs sampler",
        ),
        ({"cap": 3.0}, "cap is 3.0, but the correction none has no use for it"),
        ({"correction": "icepop", "cap": 3.0}, "cap is 3.0, but the correction icepop has no use for it"),
        ({"correction": "tis", "low": 0.1}, "low is 0.1, but the correction tis has no use for it"),
        ({"correction": "sequence_tis", "high": 9.0}, "high is 9.0, but the correction sequence_tis has no use for it"),
        ({"correction": "tis", "cap": 0.0}, "cap is 0.0, but it must be"),
        ({"correction": "tis", "cap": math.nan}, "cap is nan, but it must be"),
        ({"correction": "sequence_tis", "cap": math.inf}, "cap is inf, but it must be"),
        ({"correction": "icepop", "low": -0.5}, "low is -0.5, but it must be"),
        ({"correction": "icepop", "high": math.nan}, "high is nan, but it must be"),
        ({"correction": "icepop", "low": 5.0}, "low is 5.0, but it must be below high, 5.0"),
        ({"correction": "sequence_mask", "high": 0.5}, "low is 0.5, but it must be below high, 0.5"),
        ({"opsm_threshold": -0.1}, "opsm_threshold is -0.1, but it must be"),
        ({"opsm_threshold": math.nan}, "opsm_threshold is nan, but it must be"),
        ({"max_staleness": -1}, "max_staleness is -1, but it must be"),
    ],
)
def test_an_impossible_field_is_named_with_its_value(fields, message):
    with pytest.raises(ValueError) as refusal:
        OffPolicyConfig(**fields)
    assert str(refusal.value).startswith(message)


def test_the_types_allow_what_the_table_has():
    assert set(get_args(get_type_hints(OffPolicyConfig)["correction"])) == {"none", *CORRECTIONS}


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_null_is_the_published_value(correction):
    config = OffPolicyConfig(correction=correction)
    assert config.options == dict(CORRECTIONS[correction].defaults)
    assert OffPolicyConfig(correction=correction, **config.options).options == config.options
