"""The KL estimators: each line of kl.py's docstring, proved by enumerating every outcome of a small softmax.

The product works in float32 on all outcomes at once, weighted by their probabilities; divergences and their gradients
come from the float64 oracle and its finite differences.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.objectives import KL_ESTIMATORS, LOG_RATIO_LIMIT, KLConfig, kl_penalty, kl_terms
from tests.oracles import objectives as oracle

LOGITS = np.array([0.3, -1.2, 0.8, 0.0, -0.4])
OLD_LOGITS = np.array([1.1, -0.3, 0.2, -0.9, 0.4])  # the policy that drew the tokens, where it is another one
REF_LOG_P = oracle.log_softmax(np.array([-0.5, 0.6, 0.1, 0.9, -1.0]))
APART = 0.01  # two figures are told apart by this, far above the 2e-6 within which one is recognised

ESTIMATES = {"k1": lambda d: d, "k2": lambda d: d**2 / 2, "k3": lambda d: np.exp(-d) + d - 1}
"""In float64. An estimator that is not here is tested for the properties that every one has."""
WEIGHTABLE = [name for name in KL_ESTIMATORS if name != "k2"]


def reverse_kl(logits):
    return oracle.kl_divergence(oracle.log_softmax(logits), REF_LOG_P)


def forward_kl(logits):
    return oracle.kl_divergence(REF_LOG_P, oracle.log_softmax(logits))


REVERSE, FORWARD = (oracle.gradient(kl, LOGITS) for kl in (reverse_kl, forward_kl))


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


def differ(found, other):
    assert np.max(np.abs(np.asarray(found) - np.asarray(other))) > APART


def as_float32(values):
    return jnp.asarray(values, jnp.float32)


def token_loss(estimator, log_p, ref_log_p, log_old):
    """What the loss takes of each token by the estimator's name, `w·` before it for the weighted one."""
    name = estimator.removeprefix("w·")
    log_ratio = log_p - jax.lax.stop_gradient(log_old)
    if estimator == "k1":
        return kl_terms(name, log_p, ref_log_p).kl  # no KLConfig has it in the loss
    if estimator == "w·k2":
        return jnp.exp(log_ratio) * kl_terms(name, log_p, ref_log_p).kl  # nor this
    return kl_penalty(KLConfig(estimator=name, importance_weighted=name != estimator), log_p, ref_log_p, log_ratio).kl


def expected_loss(estimator, logits, old_logits=None):
    """E over tokens, the drawing itself held fixed: what a loss over sampled tokens tends to. Drawn from π by default."""
    log_p = jax.nn.log_softmax(logits)[None]
    log_old = jax.lax.stop_gradient(log_p if old_logits is None else jax.nn.log_softmax(old_logits)[None])
    return jnp.sum(jnp.exp(log_old) * token_loss(estimator, log_p, as_float32(REF_LOG_P)[None], log_old))


@functools.partial(jax.jit, static_argnums=0)
def _value_and_gradient(estimator, logits, old_logits):
    return jax.value_and_grad(lambda x: expected_loss(estimator, x, old_logits))(logits)


def value_and_gradient(estimator, old_logits=None):
    return _value_and_gradient(estimator, as_float32(LOGITS), None if old_logits is None else as_float32(old_logits))


@functools.partial(jax.jit, static_argnums=0)
def reward_gradient(estimator, logits):
    """E of −k ∇log π: the estimate as a reward, not differentiated itself."""
    log_p = jax.nn.log_softmax(logits)
    weight = jnp.exp(log_p) * -kl_terms(estimator, log_p, as_float32(REF_LOG_P)).kl
    return jax.grad(lambda x: jnp.sum(weight * jax.nn.log_softmax(x)))(logits)


def test_the_two_divergences_can_be_told_apart():
    differ(REVERSE, FORWARD)
    differ(REVERSE, 0.0)
    differ(FORWARD, 0.0)
    differ(reverse_kl(LOGITS), forward_kl(LOGITS))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased_estimates_of_the_reverse_kl(estimator):
    same(value_and_gradient(estimator)[0], reverse_kl(LOGITS))


def test_k2_is_a_biased_estimate():
    differ(value_and_gradient("k2")[0], reverse_kl(LOGITS))
    differ(value_and_gradient("k2")[0], forward_kl(LOGITS))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", np.zeros(5)), ("k2", REVERSE), ("k3", FORWARD)],
    ids=["k1 none", "k2 the reverse KL's", "k3 the forward KL's"],
)
def test_the_gradient_as_a_loss_on_the_policys_own_tokens(estimator, expected):
    same(value_and_gradient(estimator)[1], expected)


@pytest.mark.parametrize("old_logits", [None, OLD_LOGITS], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize("estimator", ["w·k1", "w·k3"])
def test_weighted_k1_and_k3_have_the_reverse_kls_value_and_gradient_whoever_drew_the_tokens(estimator, old_logits):
    value, gradient = value_and_gradient(estimator, old_logits)
    same(value, reverse_kl(LOGITS))
    same(gradient, REVERSE)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_on_another_policys_tokens_no_unweighted_estimator_has_the_kls_value_or_a_kls_gradient(estimator):
    value, gradient = value_and_gradient(estimator, OLD_LOGITS)
    differ(value, reverse_kl(LOGITS))
    differ(gradient, REVERSE)
    differ(gradient, FORWARD)


@pytest.mark.parametrize("old_logits", [None, OLD_LOGITS], ids=["on-policy", "off-policy"])
def test_weighted_k2_has_the_gradient_of_neither_kl(old_logits):
    _, gradient = value_and_gradient("w·k2", old_logits)
    differ(gradient, REVERSE)
    differ(gradient, FORWARD)


def test_k1_in_the_reward_has_the_gradient_of_a_penalty_on_the_reverse_kl():
    same(reward_gradient("k1", as_float32(LOGITS)), -REVERSE)


@pytest.mark.parametrize(
    ("estimator", "potential"),
    [
        ("k2", lambda log_p, d: np.sum(np.exp(log_p) * (d**2 / 2 - d))),
        ("k3", lambda log_p, _: oracle.kl_divergence(log_p, REF_LOG_P) - oracle.kl_divergence(REF_LOG_P, log_p)),
    ],
)
def test_k2_and_k3_in_the_reward_have_no_divergences_gradient(estimator, potential):
    """What they go down is not least at the reference, as every divergence is."""

    def at(logits):
        log_p = oracle.log_softmax(logits)
        return potential(log_p, log_p - REF_LOG_P)

    found = -reward_gradient(estimator, as_float32(LOGITS))
    same(found, oracle.gradient(at, LOGITS))
    differ(found, REVERSE)
    differ(found, FORWARD)
    moved = [REF_LOG_P + step * np.eye(5)[0] for step in (-3, 3)]
    assert min(at(logits) for logits in moved) < at(REF_LOG_P) - APART


# Sequences of two tokens, 5 · 5 outcomes, the second token's distribution depending on the first: logits [6, 5], those of
# the first token and then, for each first token, those of the second.
SEQUENCES, OLD_SEQUENCES, REF_SEQUENCES = np.random.default_rng(0).normal(size=(3, 6, 5))


def both_tokens(log_p):
    """[6, 5] -> log π of both tokens of each of the 25 sequences, [25, 2]."""
    return jnp.stack([jnp.repeat(log_p[0], 5), log_p[1:].reshape(-1)], axis=1)


REF_TOKENS = both_tokens(as_float32(oracle.log_softmax(REF_SEQUENCES)))


def kl_of_the_sequence(logits):
    def joint(log_p):
        return (log_p[0][:, None] + log_p[1:]).reshape(-1)

    return oracle.kl_divergence(joint(oracle.log_softmax(logits)), joint(oracle.log_softmax(REF_SEQUENCES)))


def kl_of_the_places(logits, drawn_from, reverse=True):
    """Σ over places of the KL given the tokens before, those tokens drawn from `drawn_from`."""
    log_p, ref, prefix = (oracle.log_softmax(x) for x in (logits, REF_SEQUENCES, drawn_from))
    weights = [1.0, *np.exp(prefix[0])]
    pairs = zip(log_p, ref, strict=True) if reverse else zip(ref, log_p, strict=True)
    return sum(w * oracle.kl_divergence(p, q) for w, (p, q) in zip(weights, pairs, strict=True))


def gradient_of_the_places(drawn_from, reverse=True):
    return oracle.gradient(lambda x: kl_of_the_places(x, drawn_from, reverse), SEQUENCES)


@functools.partial(jax.jit, static_argnums=0)
def _sequence_loss(estimator, logits, old_logits):
    def expected(logits):
        log_p = both_tokens(jax.nn.log_softmax(logits))
        log_old = log_p if old_logits is None else both_tokens(jax.nn.log_softmax(old_logits))
        losses = token_loss(estimator, log_p, REF_TOKENS, log_old)
        return jnp.sum(jax.lax.stop_gradient(jnp.exp(log_old.sum(1))) * losses.sum(1))

    return jax.value_and_grad(expected)(logits)


def sequence_loss(estimator, old_logits=None):
    return _sequence_loss(estimator, as_float32(SEQUENCES), None if old_logits is None else as_float32(old_logits))


def test_summed_over_a_sequence_k1_and_k3_are_unbiased_and_k2_is_not():
    expected = kl_of_the_sequence(SEQUENCES)
    same(sequence_loss("k1")[0], expected)
    same(sequence_loss("k3")[0], expected)
    differ(sequence_loss("k2")[0], expected)


def test_summed_over_a_sequence_k1_as_a_loss_has_no_gradient():
    same(sequence_loss("k1")[1], 0.0)


@pytest.mark.parametrize(("estimator", "reverse"), [("k2", True), ("w·k1", True), ("w·k3", True), ("k3", False)])
def test_a_loss_summed_over_a_sequence_has_each_places_gradient_and_not_the_sequences(estimator, reverse):
    _, gradient = sequence_loss(estimator)
    same(gradient, gradient_of_the_places(SEQUENCES, reverse))
    differ(gradient, gradient_of_the_places(SEQUENCES, not reverse))
    # What is missing is what the first token does to the second's KL.
    differ(gradient[0], oracle.gradient(kl_of_the_sequence, SEQUENCES)[0])


@pytest.mark.parametrize("estimator", ["w·k1", "w·k3"])
def test_weighted_k1_and_k3_have_each_places_value_and_gradient_where_another_policy_drew_the_sequences(estimator):
    value, gradient = sequence_loss(estimator, OLD_SEQUENCES)
    same(value, kl_of_the_places(SEQUENCES, OLD_SEQUENCES))
    same(gradient, gradient_of_the_places(OLD_SEQUENCES))
    differ(gradient, gradient_of_the_places(SEQUENCES))


@pytest.mark.parametrize("estimator", ["k2", "w·k2", "k3"])
def test_there_neither_k2_nor_k3_nor_weighted_k2_has_the_gradient_of_either_kl(estimator):
    _, gradient = sequence_loss(estimator, OLD_SEQUENCES)
    differ(gradient, gradient_of_the_places(OLD_SEQUENCES))
    differ(gradient, gradient_of_the_places(OLD_SEQUENCES, reverse=False))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_in_the_reward_the_sum_of_k1_and_no_other_has_the_gradient_of_the_sequences_kl(estimator):
    @jax.jit
    def gradient(logits):
        log_p = both_tokens(jax.nn.log_softmax(logits))
        reward = -jnp.sum(kl_terms(estimator, log_p, REF_TOKENS).kl, axis=1)
        weight = jnp.exp(log_p.sum(1)) * reward
        return jax.grad(lambda x: jnp.sum(weight * both_tokens(jax.nn.log_softmax(x)).sum(1)))(logits)

    found = gradient(as_float32(SEQUENCES))
    (same if estimator == "k1" else differ)(found, -oracle.gradient(kl_of_the_sequence, SEQUENCES))
    differ(found, -gradient_of_the_places(SEQUENCES))
    differ(found, -gradient_of_the_places(SEQUENCES, reverse=False))


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_equal_policies_have_no_kl(estimator):
    logprobs = jnp.array([-0.1, -3.0, -20.0])
    value, gradient = jax.vjp(lambda x: kl_terms(estimator, x, logprobs).kl, logprobs)
    np.testing.assert_array_equal(value, 0.0)
    # As a value k1 alone leans to one side there; the others are at their least.
    np.testing.assert_array_equal(gradient(jnp.ones(3))[0], 1.0 if estimator == "k1" else 0.0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(-60, 0), st.floats(-60, 0)), min_size=4, max_size=4))
def test_values_match_the_formulas_and_all_but_k1_are_never_negative(pairs):
    logprobs, ref = np.array(pairs, np.float32).T
    difference = logprobs - ref
    held = np.clip(difference.astype(np.float64), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    for estimator in KL_ESTIMATORS:
        terms = kl_terms(estimator, jnp.asarray(logprobs), jnp.asarray(ref))
        np.testing.assert_array_equal(terms.clamped, np.abs(difference) > LOG_RATIO_LIMIT)
        if estimator in ESTIMATES:
            np.testing.assert_allclose(terms.kl, ESTIMATES[estimator](held), rtol=1e-5, atol=1e-6)
        if estimator != "k1":
            assert np.all(np.asarray(terms.kl) >= -1e-6)


def test_k3_keeps_its_digits_near_equality():
    """exp(−d) + d − 1 in float32 would be off by 1e-7, more than its value of 5e-9."""
    difference = np.float32(1e-4)
    np.testing.assert_allclose(kl_terms("k3", difference, jnp.float32(0.0)).kl, difference**2 / 2, rtol=2e-3)


@pytest.mark.parametrize("estimator", [*KL_ESTIMATORS, *(f"w·{name}" for name in WEIGHTABLE)])
def test_the_reference_gets_no_gradient(estimator):
    logprobs = jnp.array([[-1.0, -2.0]])
    gradient = jax.grad(lambda ref: token_loss(estimator, logprobs, ref, 0.9 * logprobs).sum())(jnp.array([[-2.0, -0.5]]))
    np.testing.assert_array_equal(gradient, 0.0)


def value_and_slope(function, at):
    """Of a function of each token, at the differences `at`."""
    value, gradient = jax.vjp(function, jnp.asarray(at, jnp.float32)[None])
    return np.asarray(value[0]), np.asarray(gradient(jnp.ones_like(value))[0][0])


BEYOND = LOG_RATIO_LIMIT + np.array([0.5, 100.0, 1e4])


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_beyond_the_limit_a_token_is_counted_and_keeps_the_finite_gradient_of_the_limit(estimator, sign):
    found, edge = (
        value_and_slope(lambda d: kl_terms(estimator, d, jnp.zeros_like(d)).kl, sign * at)
        for at in (BEYOND, np.full(3, LOG_RATIO_LIMIT))
    )
    np.testing.assert_array_equal(found, edge)
    assert np.all(np.isfinite(found))
    # Down the gradient lies the reference; for k1 always less of the token.
    np.testing.assert_array_equal(np.sign(found[1]), 1 if estimator == "k1" else sign)
    differences = as_float32([sign * LOG_RATIO_LIMIT, *sign * BEYOND])
    clamped = kl_terms(estimator, differences, jnp.zeros_like(differences)).clamped
    np.testing.assert_array_equal(clamped, [False, True, True, True])


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("estimator", WEIGHTABLE)
def test_beyond_the_limit_the_weight_too_keeps_the_finite_gradient_of_the_limit(estimator, sign):
    config = KLConfig(estimator=estimator, importance_weighted=True)
    found, edge = (
        value_and_slope(lambda r: kl_penalty(config, jnp.full_like(r, -1.0), jnp.full_like(r, -2.0), r).kl, sign * at)
        for at in (BEYOND, np.full(3, LOG_RATIO_LIMIT))
    )
    np.testing.assert_array_equal(found, edge)
    assert np.all(np.isfinite(found)) and np.all(found[0] > 0)
    np.testing.assert_array_equal(found[1], found[0])  # exp's slope is its value


def test_the_penalty_flags_the_tokens_that_the_estimate_clamps_and_weighs_only_where_asked():
    logprobs, ref, log_ratio = jnp.array([[-1.0, -30.0]]), jnp.array([[-2.0, -1.0]]), jnp.array([[0.5, -0.25]])
    plain = kl_terms("k3", logprobs, ref)
    for weighted, weight in ((False, 1.0), (True, np.exp(log_ratio))):
        terms = kl_penalty(KLConfig(estimator="k3", importance_weighted=weighted), logprobs, ref, log_ratio)
        np.testing.assert_allclose(terms.kl, weight * plain.kl, rtol=1e-6)
        np.testing.assert_array_equal(terms.clamped, [[False, True]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "k4"}, r"^estimator is 'k4', but it must be one of k1, k2, k3"),
        ({"place": "both"}, r"^place is 'both', but it must be loss or reward: .* paid for twice"),
        ({"importance_weighted": True, "place": "reward"}, r"^importance_weighted is True, .* place reward"),
        ({"importance_weighted": True, "estimator": "k2"}, r"^importance_weighted is True, .* estimator k2"),
        ({"estimator": "k1"}, r"^estimator is 'k1', but as a loss its expected gradient is 0"),
        ({"refresh_every": -1}, r"^refresh_every is -1, but it must be 0 or more"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        KLConfig(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "k2", "refresh_every": 10},
        {"estimator": "k1", "importance_weighted": True},
        {"estimator": "k3", "importance_weighted": True},
        *({"estimator": estimator, "place": "reward"} for estimator in KL_ESTIMATORS),
    ],
)
def test_every_combination_with_a_use_is_accepted(options):
    KLConfig(**options)


def test_an_unknown_estimator_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError) as error:
        KLConfig(estimator="mystery")
    assert all(name in str(error.value) for name in KL_ESTIMATORS)
