"""grpo_loss: hand-worked losses, its inputs and metrics, and that every option acts or is refused by name.

The oracle's word on every variant is in test_policy_terms.py, what all of them keep in test_invariants.py.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.objectives import (
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    POLICY_TERMS,
    Coefficients,
    GroupsConfig,
    GRPOConfig,
    KLConfig,
    OffPolicyConfig,
    PolicyConfig,
    add_sums,
    finalize_metrics,
    grpo_denominator,
    reduce_sums,
    row_weights,
)
from grpo_jax.objectives.policy.config import OPTIONS
from tests.objectives.variants import (
    COMBINED,
    FLOAT_INPUTS,
    TOKEN_INPUTS,
    B,
    T,
    batch,
    differentiate,
    evaluate,
    evaluate_once,
    kl_configs,
    loss_sum,
    policy_config,
    rows,
    takes_token_advantages,
    with_selection,
)

LN2 = math.log(2)

# Two rows: ratios (1.5, 1) with A = 1 and w = π_old/μ (4, ½); a lone ratio ½ with A = −1 and w = 1. Entropies 1, 2 and 3;
# log π − log ref = ln 2 everywhere. Masked: the second row's second token.
RATIOS = np.array([[1.5, 1.0], [0.5, 1.0]])
LOGPROBS = np.log(RATIOS) - 1.0
TWO_ROWS = {
    "logprobs": LOGPROBS,
    "old": np.full((2, 2), -1.0),
    "ref": LOGPROBS - LN2,
    "sampler": np.array([[-1 - 2 * LN2, -1 + LN2], [-1.0, 50.0]]),
    "entropy": np.array([[1.0, 2.0], [3.0, 50.0]]),
    "advantages": np.array([1.0, -1.0]),
    "row_weight": np.ones(2),
}
TWO_ROWS |= {"mask": np.array([[True, True], [True, False]])}
# Filled up to the shape of the other batches, for which every operation is compiled already.
TWO_ROWS = {
    name: np.pad(values, ((0, B - 2), (0, T - 2)) if values.ndim == 2 else (0, B - 2)).astype(
        bool if name == "mask" else np.float32
    )
    for name, values in TWO_ROWS.items()
} | {"selected": None}


@pytest.mark.parametrize(
    ("aggregation", "policy", "penalty", "entropy"),
    [
        # Policy terms −1.2, −1, .8: ((−1.2 − 1)/2 + .8)/2; entropies (1.5 + 3)/2; k3 at d = ln 2: ½ + ln 2 − 1.
        ("sequence_mean", -0.15, LN2 - 0.5, 2.25),
        # (−1.2 − 1 + .8)/3; 6/3.
        ("token_mean", -1.4 / 3, LN2 - 0.5, 2.0),
        # Two rows of length 4: −1.4/8; 3/8; 6/8.
        ("sequence_sum_fixed", -0.175, (LN2 - 0.5) * 3 / 8, 0.75),
    ],
)
def test_worked_losses(aggregation, policy, penalty, entropy):
    length = 4 if aggregation == "sequence_sum_fixed" else None
    config = GRPOConfig(policy=PolicyConfig(aggregation=aggregation, fixed_length=length), kl_coef=0.1, entropy_coef=0.01)
    found = evaluate_once(config, TWO_ROWS)
    losses = [found.metrics[name] for name in ("policy_loss", "kl_loss", "entropy_loss", "loss")]
    expected = [policy, 0.1 * penalty, -0.01 * entropy, policy + 0.1 * penalty - 0.01 * entropy]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.loss, expected[-1], rtol=1e-5)


@pytest.mark.parametrize(
    ("off_policy", "policy"),
    [
        # w = (4 → 2, ½) and 1: ((−1.2 · 2 − ½)/2 + .8)/2.
        (OffPolicyConfig(correction="tis"), -0.325),
        # √(4 · ½) = 1.414 for the first row: ((−2.2 · 1.414)/2 + .8)/2.
        (OffPolicyConfig(correction="sequence_tis"), (-1.1 * math.sqrt(2) + 0.8) / 2),
        # 4 is above 3: dropped, and still in the denominator: ((0 − ½)/2 + .8)/2.
        (OffPolicyConfig(correction="icepop", low=0.4, high=3.0), 0.275),
        # 1.414 is above 1.2: the first row is dropped.
        (OffPolicyConfig(correction="sequence_mask", high=1.2), 0.4),
        # The second row's log μ − log π is ln 2 = .69.
        (OffPolicyConfig(opsm_threshold=0.5), -0.55),
        (OffPolicyConfig(opsm_threshold=0.7), -0.15),
    ],
)
def test_worked_corrections(off_policy, policy):
    found = evaluate_once(GRPOConfig(kl_coef=0.1, off_policy=off_policy), TWO_ROWS)
    np.testing.assert_allclose(found.metrics["policy_loss"], policy, rtol=1e-5)
    # What is dropped from the policy term stays under the KL term.
    np.testing.assert_allclose(found.metrics["kl_loss"], 0.1 * (LN2 - 0.5), rtol=1e-5)


@pytest.mark.parametrize(
    ("kl", "penalty"),
    [
        (KLConfig(estimator="k2"), LN2**2 / 2),
        (KLConfig(estimator="k3"), LN2 - 0.5),
        # Weighted by the ratios 1.5, 1 and ½: ((1.5 + 1)/2 + ½)/2.
        (KLConfig(estimator="k1", importance_weighted=True), 0.875 * LN2),
        (KLConfig(estimator="k3", importance_weighted=True), 0.875 * (LN2 - 0.5)),
    ],
)
def test_worked_kl_losses(kl, penalty):
    found = evaluate_once(GRPOConfig(kl=kl, kl_coef=0.1), TWO_ROWS)
    np.testing.assert_allclose(found.metrics["kl_loss"], 0.1 * penalty, rtol=1e-5)
    # The metric is k3 of what was drawn, whatever the loss is made of.
    np.testing.assert_allclose(found.metrics["kl"], LN2 - 0.5, rtol=1e-5)


def test_worked_metrics():
    config = GRPOConfig(off_policy=OffPolicyConfig(correction="tis", opsm_threshold=0.5))
    found = evaluate_once(config, TWO_ROWS).metrics
    worked = {
        "ratio_mean": 1.0,
        "ratio_min": 0.5,
        "ratio_max": 1.5,
        "clip_fraction_low": 1 / 3,
        "clip_fraction_high": 1 / 3,
        "entropy": 2.0,
        "corrected_fraction": 1 / 3,
        "opsm_fraction": 1 / 3,
        # w − 1 − ln w of 4, ½ and 1.
        "mismatch_kl": (3 - 2 * LN2 - 0.5 + LN2) / 3,
        "mismatch_max": 2 * LN2,
        # (4 + ½ + 1)² / (3 · (16 + ¼ + 1)).
        "ess": 5.5**2 / (3 * 17.25),
        "tokens": 3,
    }
    for name, value in worked.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(("aggregation", "count"), [("sequence_mean", 6), ("token_mean", 19), ("sequence_sum_fixed", 6 * 7)])
def test_the_denominator_counts_what_is_trained_on(aggregation, count):
    """Of the eight rows one is dropped and one has no completion."""
    data = batch()
    np.testing.assert_array_equal(data["mask"].sum(1), [8, 2, 5, 1, 0, 1, 4, 3])
    config = GRPOConfig(policy=policy_config(aggregation=aggregation))
    np.testing.assert_array_equal(grpo_denominator(config, data["mask"], data["row_weight"]), count)
    for nothing in ({"row_weight": np.zeros(B, np.float32)}, {"mask": np.zeros_like(data["mask"])}):
        empty = data | nothing
        np.testing.assert_array_equal(grpo_denominator(config, empty["mask"], empty["row_weight"]), 1.0)


def test_parts_of_their_own_shapes_add_up_whether_stacked_or_not():
    config, data = COMBINED["dapo w·k3 icepop opsm entropy"], batch()
    whole = evaluate_once(config, data)
    denominator = grpo_denominator(config, data["mask"], data["row_weight"])
    compiled = jax.jit(loss_sum, static_argnums=0)
    arrays = {name: jnp.asarray(values) for name, values in data.items()} | {"selected": None}
    parts = [compiled(config, rows(arrays, chosen)) for chosen in (slice(0, 1), slice(1, B))]
    np.testing.assert_allclose(sum(part[0] for part in parts) / denominator, whole.loss, rtol=1e-5)
    pairs = jax.tree.map(lambda values: values.reshape(4, 2, *values.shape[1:]), arrays)
    stacked = jax.jit(lambda pairs: jax.lax.map(lambda part: loss_sum(config, part)[1], pairs))(pairs)
    for sums in (add_sums(*(part[1] for part in parts)), reduce_sums(stacked)):
        metrics = finalize_metrics(sums)
        for metric, value in whole.metrics.items():
            np.testing.assert_allclose(metrics[metric], value, rtol=1e-5, err_msg=metric)


def test_far_off_tokens_are_pulled_back_and_not_let_go():
    data = batch()
    data["advantages"][0] = -1.0
    data["old"][0, 1] = data["logprobs"][0, 1] - 500
    data["ref"][0, 2] = data["logprobs"][0, 2] + 500
    gradient = evaluate(GRPOConfig(), data).gradients["logprobs"]
    assert gradient[0, 1] > 1e5  # far above the old policy with A < 0: pushed down as hard as at the limit
    assert gradient[0, 2] < -1e5  # far below the reference: pulled up as hard


def test_the_kl_needs_a_reference_and_zero_kl_does_not():
    with pytest.raises(ValueError, match=r"ref_logprobs is None, but kl_coef is 0\.1"):
        evaluate_once(GRPOConfig(kl_coef=0.1), batch() | {"ref": None})
    found = evaluate_once(GRPOConfig(kl_coef=0.0), batch() | {"ref": None, "sampler": None})
    assert found.metrics.keys().isdisjoint({"kl", "kl_loss", "kl_clamped", "mismatch_kl", "mismatch_max", "ess"})
    # In the reward the KL was counted before the loss.
    evaluate_once(GRPOConfig(kl=KLConfig(place="reward")), batch() | {"ref": None})


@pytest.mark.parametrize("config", [GRPOConfig(kl_coef=0.0), GRPOConfig(kl=KLConfig(place="reward"))])
def test_outside_the_loss_a_reference_is_measured_and_adds_nothing(config):
    data = batch()
    found, bare = evaluate_once(config, data), evaluate_once(config, data | {"ref": None})
    assert found.metrics["kl"] > 0 and "kl_loss" not in found.metrics
    np.testing.assert_array_equal(found.loss, bare.loss)
    np.testing.assert_array_equal(found.gradients["logprobs"], bare.gradients["logprobs"])


def test_the_mismatch_is_nothing_where_sampler_and_policy_agree():
    data = batch()
    metrics = evaluate_once(GRPOConfig(), data | {"sampler": data["old"]}).metrics
    assert metrics["mismatch_kl"] == 0.0 and metrics["mismatch_max"] == 0.0
    np.testing.assert_allclose(metrics["ess"], 1.0, rtol=1e-6)


def test_a_fixed_length_is_asked_for():
    config = GRPOConfig(policy=PolicyConfig(term="dr_grpo"))
    data = with_selection(config, batch())
    for call in (lambda: loss_sum(config, data), lambda: grpo_denominator(config, data["mask"], data["row_weight"])):
        with pytest.raises(ValueError, match=r"policy\.fixed_length is None, but sequence_sum_fixed divides by it"):
            call()


def test_half_precision_inputs_are_computed_in_float32():
    data = batch()
    half = {name: jnp.asarray(data[name], jnp.bfloat16) for name in TOKEN_INPUTS}
    found = differentiate(GRPOConfig(), with_selection(GRPOConfig(), data) | half)
    assert found.loss.dtype == jnp.float32
    widened = {name: np.asarray(values, np.float32) for name, values in half.items()}
    np.testing.assert_array_equal(found.loss, evaluate_once(GRPOConfig(), data | widened).loss)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (PolicyConfig, {"term": "ppo"}, "term is 'ppo', but it must be one of grpo, "),
        (PolicyConfig, {"aggregation": "mean"}, "aggregation is 'mean', but it must be one of token_mean, "),
        (PolicyConfig, {"fixed_length": 9}, "fixed_length is 9, but the aggregation sequence_mean has no use for it"),
        (PolicyConfig, {"term": "dr_grpo", "fixed_length": 0}, "fixed_length is 0, but it must be at least 1"),
        (PolicyConfig, {"ratio_cap": 5.0}, "ratio_cap is 5.0, but the term grpo has no use for it"),
        (PolicyConfig, {"clip_low": -0.1}, "clip_low is -0.1, but"),
        (PolicyConfig, {"clip_low": 1.5}, "clip_low is 1.5, but"),
        (PolicyConfig, {"clip_high": -0.1}, "clip_high is -0.1, but"),
        (PolicyConfig, {"term": "dual_clip", "dual_clip": 1.0}, "dual_clip is 1.0, but"),
        (PolicyConfig, {"term": "cispo", "ratio_cap": 0.0}, "ratio_cap is 0.0, but"),
        (PolicyConfig, {"term": "gmpo", "log_clip_low": -0.4}, "log_clip_low is -0.4, but"),
        (PolicyConfig, {"term": "gmpo", "log_clip_high": -0.4}, "log_clip_high is -0.4, but"),
        (PolicyConfig, {"term": "sapo", "gate_positive": 0.0}, "gate_positive is 0.0, but"),
        (PolicyConfig, {"term": "sapo", "gate_negative": -1.0}, "gate_negative is -1.0, but"),
        (PolicyConfig, {"term": "kl_cov", "cov_ratio": 0.0}, "cov_ratio is 0.0, but"),
        (PolicyConfig, {"term": "clip_cov", "cov_ratio": 1.1}, "cov_ratio is 1.1, but"),
        (PolicyConfig, {"term": "clip_cov", "cov_low": 5.0}, "cov_low is 5.0, but it must be below cov_high, 5.0"),
        (PolicyConfig, {"term": "clip_cov", "cov_high": 1.0}, "cov_low is 1.0, but it must be below cov_high, 1.0"),
        (PolicyConfig, {"term": "kl_cov", "cov_kl_coef": -1.0}, "cov_kl_coef is -1.0, but"),
        *(
            (PolicyConfig, {"term": term, option: value}, f"{option} is {value!r}, but it must be")
            for option in OPTIONS
            for term in [next(name for name, entry in POLICY_TERMS.items() if option in entry.defaults)]
            for value in (math.nan, math.inf)
        ),
        (GRPOConfig, {"kl_coef": -0.02}, "kl_coef is -0.02, but"),
        (GRPOConfig, {"kl_coef": math.nan}, "kl_coef is nan, but"),
        (GRPOConfig, {"kl_coef": math.inf}, "kl_coef is inf, but"),
        (GRPOConfig, {"entropy_coef": -0.1}, "entropy_coef is -0.1, but"),
        (GRPOConfig, {"entropy_coef": math.nan}, "entropy_coef is nan, but"),
        (GRPOConfig, {"kl_coef": 0.0, "kl": KLConfig(estimator="k2")}, "kl.estimator is 'k2', but kl_coef is 0"),
        (GRPOConfig, {"kl_coef": 0.0, "kl": KLConfig(place="reward")}, "kl.place is 'reward', but kl_coef is 0"),
        (GRPOConfig, {"kl_coef": 0.0, "kl": KLConfig(refresh_every=5)}, "kl.refresh_every is 5, but kl_coef is 0"),
    ],
)
def test_an_impossible_field_is_named_with_its_value(kind, fields, message):
    with pytest.raises(ValueError) as refusal:
        kind(**fields)
    assert str(refusal.value).startswith(message)


def test_null_is_the_value_of_the_terms_paper():
    for term, entry in POLICY_TERMS.items():
        config = PolicyConfig(term=term)
        assert config.options == dict(entry.defaults) and config.summed_by == entry.aggregation
        assert config.length == entry.fixed_length
        assert PolicyConfig(term=term, **config.options).options == config.options
    assert {option for entry in POLICY_TERMS.values() for option in entry.defaults} == set(OPTIONS)


def test_the_types_allow_what_the_tables_have():
    def allowed(kind, field):
        return {name for choice in get_args(get_type_hints(kind)[field]) for name in get_args(choice) or (choice,)}

    assert allowed(PolicyConfig, "aggregation") - {type(None)} == set(AGGREGATIONS)
    assert allowed(KLConfig, "estimator") == set(KL_ESTIMATORS)


# Every option acts or is refused by name. --------------------------------------------------------------------------------

# Fields that something else than the objective reads, and what. Nothing here may be read by grpo_loss alone.
READ_ELSEWHERE = {
    (GRPOConfig, "advantage"): "group_advantages, before the loss",
    (KLConfig, "refresh_every"): "the training loop, which holds the reference",
    (OffPolicyConfig, "old_logprobs"): "the training loop, which gives the loss its old log-probs",
    (OffPolicyConfig, "max_staleness"): "the training loop, which knows the age of a rollout",
    (GroupsConfig, "max_refills"): "the training loop, which samples",
    (GroupsConfig, "replay_groups"): "the training loop, which keeps rollouts",
}
# Walked by their own fields.
PARTS = {(GRPOConfig, name) for name in ("policy", "kl", "off_policy")}


def batches(config: GRPOConfig):
    for seed, drift in ((0, 1.0), (1, 0.3)):
        yield batch(seed, drift)
    if takes_token_advantages(config):
        yield batch(2, 1.0, token_advantages=True)


def differs(one: GRPOConfig, other: GRPOConfig) -> bool:
    """Whether two configs differ in a loss, a gradient or a choice of tokens."""
    if takes_token_advantages(one) != takes_token_advantages(other):
        one_batches = other_batches = list(batches(GRPOConfig(policy=policy_config(term="gmpo"))))
    else:
        one_batches, other_batches = list(batches(one)), list(batches(other))
    for data, again in zip(one_batches, other_batches, strict=True):
        chosen, others = (with_selection(config, values) for config, values in ((one, data), (other, again)))
        if not np.array_equal(chosen["selected"], others["selected"]):
            return True
        found, wanted = results(one, data), results(other, again)
        if any(not np.array_equal(x, y) for x, y in zip(found, wanted, strict=True)):
            return True
    return False


CACHE: dict[Any, list[np.ndarray]] = {}


def results(config: GRPOConfig, data: dict) -> list[np.ndarray]:
    key = config, data["logprobs"].tobytes()
    if key not in CACHE:
        found = evaluate_once(config, data)
        CACHE[key] = [found.loss, *(found.gradients[name] for name in FLOAT_INPUTS)]
    return CACHE[key]


def acts_or_is_refused(field: str, base: GRPOConfig, others: dict[Any, Any], *, every: bool) -> None:
    """For each value a builder of the config. One of those allowed must act; with `every`, each of them."""
    allowed = {}
    for value, build in others.items():
        try:
            allowed[value] = build()
        except ValueError as refusal:
            assert field in str(refusal), f"{field} = {value!r} is refused without its name: {refusal}"
            assert " is " in str(refusal) and ", but " in str(refusal)
    acts = (differs(base, other) for other in allowed.values())
    assert not allowed or (all if every else any)(acts), f"{field} of {list(allowed)} changes nothing"


def other_numbers(field: str, defaults: list[float], own: float | None) -> list[float]:
    return [value for known in defaults for value in (known / 2, known * 1.5, known + 0.5, known) if value != own]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(PolicyConfig)])
@pytest.mark.parametrize("term", POLICY_TERMS)
def test_every_option_of_a_policy_term_acts_or_is_refused_by_name(term, field):
    base = policy_config(term=term)
    choices = {"term": list(POLICY_TERMS), "aggregation": list(AGGREGATIONS), "fixed_length": [3, 5]}
    own = {"term": term, "aggregation": base.summed_by, "fixed_length": base.length}
    if field in choices:
        values = [value for value in choices[field] if value != own[field]]
    else:
        defaults = sorted({entry.defaults[field] for entry in POLICY_TERMS.values() if field in entry.defaults})
        if field in base.options:
            defaults = [base.options[field]]
        values = other_numbers(field, defaults, base.options.get(field))

    def build(value):
        return lambda: GRPOConfig(policy=policy_config(**{"term": term, field: value}))

    acts_or_is_refused(field, GRPOConfig(policy=base), {value: build(value) for value in values}, every=field in choices)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(KLConfig)])
@pytest.mark.parametrize("kl", kl_configs("loss"))
def test_every_option_of_the_kl_acts_or_is_refused_by_name(kl, field):
    base = kl_configs("loss")[kl]
    if (KLConfig, field) in READ_ELSEWHERE:
        return
    # With place reward nothing of it is left in the loss: the training loop reads the estimator.
    choices = {"estimator": list(KL_ESTIMATORS), "place": ["loss", "reward"], "importance_weighted": [False, True]}
    values = [value for value in choices[field] if value != getattr(base, field)]

    def build(value):
        return lambda: GRPOConfig(kl=dataclasses.replace(base, **{field: value}))

    acts_or_is_refused(field, GRPOConfig(kl=base), {value: build(value) for value in values}, every=True)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(OffPolicyConfig)])
@pytest.mark.parametrize("correction", ["none", *CORRECTIONS])
def test_every_option_of_a_correction_acts_or_is_refused_by_name(correction, field):
    base = OffPolicyConfig(correction=correction)
    if (OffPolicyConfig, field) in READ_ELSEWHERE:
        return
    if field == "correction":
        values = [value for value in ("none", *CORRECTIONS) if value != correction]
    elif field == "opsm_threshold":
        values = [0.0, 0.5]
    else:
        defaults = sorted({entry.defaults[field] for entry in CORRECTIONS.values() if field in entry.defaults})
        if field in base.options:
            defaults = [base.options[field]]
        values = other_numbers(field, defaults, base.options.get(field))

    def build(value):
        return lambda: GRPOConfig(off_policy=dataclasses.replace(base, **{field: value}))

    builders = {value: build(value) for value in values}
    acts_or_is_refused(field, GRPOConfig(off_policy=base), builders, every=field == "correction")


@pytest.mark.parametrize("dead", ["keep", "drop", "refill", "replay"])
def test_every_option_of_groups_acts_or_is_refused_by_name(dead):
    live, truncated = np.array([True, False, True]), np.array([False, False, True])

    def weights(config):
        return row_weights(config, live, truncated).tolist()

    base = GroupsConfig(dead=dead)
    assert weights(dataclasses.replace(base, mask_truncated=True)) != weights(base)
    # What fills the place of a dropped group is the training loop's: keep and the others differ here.
    assert weights(GroupsConfig(dead="drop" if dead == "keep" else "keep")) != weights(base)
    for field, user in (("max_refills", "refill"), ("replay_groups", "replay")):
        if dead == user:
            assert getattr(GroupsConfig(**{"dead": dead, field: 4}), field) == 4
            continue
        with pytest.raises(ValueError, match=f"^{field} is 4, but"):
            GroupsConfig(**{"dead": dead, field: 4})


def test_both_coefficients_act():
    assert differs(GRPOConfig(), GRPOConfig(kl_coef=0.5)) and differs(GRPOConfig(), GRPOConfig(kl_coef=0.0))
    assert differs(GRPOConfig(), GRPOConfig(entropy_coef=0.5))
    assert differs(GRPOConfig(entropy_coef=0.1), GRPOConfig(entropy_coef=0.5))
    data = batch()
    for config in (GRPOConfig(entropy_coef=0.1), GRPOConfig(entropy_coef=0.0)):
        plain = evaluate(config, data)
        for given in (Coefficients(kl=0.5, entropy=config.entropy_coef), Coefficients(kl=0.02, entropy=0.5)):
            assert evaluate(config, data, coefficients=given).loss != plain.loss


def test_every_field_is_walked_or_has_a_reader_elsewhere():
    walked = {
        PolicyConfig: {field.name for field in dataclasses.fields(PolicyConfig)},
        KLConfig: {"estimator", "place", "importance_weighted"},
        OffPolicyConfig: {"correction", "cap", "low", "high", "opsm_threshold"},
        GroupsConfig: {"dead", "mask_truncated"},
        GRPOConfig: {"kl_coef", "entropy_coef"},
    }
    for kind, names in walked.items():
        for field in dataclasses.fields(kind):
            reached = field.name in names, (kind, field.name) in READ_ELSEWHERE, (kind, field.name) in PARTS
            assert sum(reached) == 1, (
                f"{kind.__name__}.{field.name}: add it to a walk, or say in READ_ELSEWHERE who reads it"
            )


def test_every_metric_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "objectives.md").read_text()
    metrics = {metric for config in COMBINED.values() for metric in evaluate_once(config, batch()).metrics}
    assert sorted(name for name in metrics if f"`{name}`" not in text) == []


@pytest.mark.parametrize(
    ("config", "coefficients", "word"),
    [
        (GRPOConfig(kl_coef=0.0), Coefficients(kl=0.1), "kl"),
        (GRPOConfig(kl=KLConfig(place="reward")), Coefficients(kl=0.1), "kl"),
        (GRPOConfig(), Coefficients(entropy=0.1), "entropy"),
    ],
)
def test_a_coefficient_of_a_term_that_the_loss_lacks_is_refused(config, coefficients, word):
    with pytest.raises(ValueError, match=f"coefficients.{word} is given, but the loss has no such term"):
        loss_sum(config, with_selection(config, batch()), coefficients)
