"""Policy terms: against the float64 oracle in every variant, against hand-worked figures, and the choice of their tokens."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.objectives import (
    LOG_RATIO_LIMIT,
    POLICY_TERMS,
    RATIO_OPTIONS,
    GRPOConfig,
    PolicyConfig,
    TermInputs,
    select_tokens,
)
from grpo_jax.objectives.policy import policy_term
from tests.objectives.variants import (
    VARIANTS,
    batch,
    evaluate,
    evaluate_once,
    policy_config,
    takes_token_advantages,
    trained,
    with_selection,
)
from tests.oracles import policy_terms as oracle

every_variant = pytest.mark.parametrize("name", VARIANTS)
LN2, LN3 = math.log(2), math.log(3)


def entry(table: dict, kind: str, name: str):
    """The oracle's function of that name; without one this test alone fails, and says what to write."""
    if name not in table:
        pytest.fail(f"no oracle has the {kind} {name}: write it from its paper in NumPy float64, in the table of {kind}s")
    return table[name]


# Whether a token counts as held at the lower and at the upper bound: (its ratio, its row's ratio, A, options) -> both.
def _by_token(ratio, row_ratio, a, o):
    return ratio < 1 - o["clip_low"] and a < 0, ratio > 1 + o["clip_high"] and a > 0


def _by_row(ratio, row_ratio, a, o):
    return _by_token(row_ratio, row_ratio, a, o)


def _never(ratio, row_ratio, a, o):
    return False, False


HELD = {
    **dict.fromkeys(("grpo", "bnpo", "dr_grpo", "dapo", "clip_cov"), _by_token),
    **dict.fromkeys(("gspo", "gspo_token", "luspo"), _by_row),
    "dual_clip": lambda r, s, a, o: (_by_token(r, s, a, o)[0], _by_token(r, s, a, o)[1] or (a < 0 and r > o["dual_clip"])),
    "gmpo": lambda r, s, a, o: (
        a < 0 and math.log(r) < -o["log_clip_low"],
        a > 0 and math.log(r) > o["log_clip_high"],
    ),
    "cispo": lambda r, s, a, o: (False, r > o["ratio_cap"]),
    "sapo": _never,
    "kl_cov": _never,
}


def oracle_batch(data: dict) -> dict:
    """The batch in float64. `frozen` stands for what the objective holds still where it differentiates."""
    wide = {name: values if name in ("mask", "selected") else np.float64(values) for name, values in data.items()}
    return wide | {"frozen": wide["logprobs"]}


def oracle_settings(config: GRPOConfig) -> dict:
    for kind, table, name in (
        ("policy term", oracle.POLICY_TERMS, config.policy.term),
        ("aggregation", oracle.AGGREGATIONS, config.policy.summed_by),
        ("correction", oracle.CORRECTIONS, config.off_policy.correction),
    ):
        entry(table, kind, name)
    return {
        "term": config.policy.term,
        "options": config.policy.options,
        "aggregation": config.policy.summed_by,
        "fixed_length": config.policy.length,
        "kl_estimator": config.kl.estimator,
        "kl_importance_weighted": config.kl.importance_weighted,
        "kl_coef": config.kl_coef if config.kl_in_loss else 0.0,
        "entropy_coef": config.entropy_coef or 0.0,
        "correction": config.off_policy.correction,
        "correction_options": {f"correction_{option}": value for option, value in config.off_policy.options.items()},
        "opsm_threshold": config.off_policy.opsm_threshold,
    }


KL_INPUTS = ("logprobs", "old", "ref")


def expected_metrics(config: GRPOConfig, data: dict) -> dict[str, float]:
    """Every metric, one token at a time."""
    wide, mask = oracle_batch(data), trained(data)
    settings = oracle_settings(config)
    losses = oracle.loss(wide, **settings)
    metrics = {"loss": losses["loss"], "policy_loss": losses["policy_loss"]}
    if config.kl_in_loss:
        metrics["kl_loss"] = losses["kl_loss"]
    if config.entropy_coef is not None:
        metrics["entropy_loss"] = losses["entropy_loss"]

    advantages = np.broadcast_to(wide["advantages"].reshape(len(mask), -1), mask.shape)
    held = entry(HELD, "held bound", config.policy.term)
    lows, highs, gaps, ratios = [], [], [], []
    for b, t in np.argwhere(mask):
        distances = [wide["logprobs"][b, u] - wide["old"][b, u] for u in np.flatnonzero(mask[b])]
        ratio = math.exp(wide["logprobs"][b, t] - wide["old"][b, t])
        low, high = held(ratio, math.exp(sum(distances) / len(distances)), advantages[b, t], config.policy.options)
        lows.append(low)
        highs.append(high)
        ratios.append(ratio)
        gaps.append(wide["old"][b, t] - wide["sampler"][b, t])
    weights = np.exp(gaps)
    metrics |= {
        "entropy": np.mean(wide["entropy"][mask]),
        "ratio_mean": np.mean(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratio_clamped": 0,
        "clip_fraction_low": np.mean(lows),
        "clip_fraction_high": np.mean(highs),
        "kl": np.mean(
            [oracle.kl("k3", False, p, p, r) for p, r in zip(wide["logprobs"][mask], wide["ref"][mask], strict=True)]
        ),
        "kl_clamped": 0,
        # Unbiased for KL(sampler ‖ policy at rollout): E[w] = 1, so E[w − 1 − log w] = E[−log w].
        "mismatch_kl": np.mean(weights - 1 - gaps),
        "mismatch_max": np.max(np.abs(gaps)),
        "ess": weights.sum() ** 2 / (len(weights) * (weights**2).sum()),
        "tokens": len(ratios),
    }
    if data["selected"] is not None:
        metrics["selected_tokens"] = np.sum(data["selected"][mask])
    if config.off_policy.correction != "none":
        options = settings["correction_options"]
        applied = oracle.CORRECTIONS[config.off_policy.correction](wide["old"], wide["sampler"], mask, options)[mask]
        metrics["corrected_fraction"] = np.mean((applied == 0) | (applied == options.get("correction_cap", np.inf)))
    if config.off_policy.opsm_threshold is not None:
        keep = oracle.opsm(wide["logprobs"], wide["sampler"], wide["advantages"], mask, config.off_policy.opsm_threshold)
        metrics["opsm_fraction"] = np.mean(np.broadcast_to(~keep[:, None], mask.shape)[mask])
    return metrics


def batches(config: GRPOConfig, drift: float):
    """Batches of one advantage a row and, where the config allows it, of one a token."""
    for seed in range(3):
        yield with_selection(config, batch(seed, drift))
    if takes_token_advantages(config) and drift == 1.0:
        yield with_selection(config, batch(3, drift, token_advantages=True))


def evaluated(config: GRPOConfig, data: dict):
    """Compiled for batches of one advantage a row; there is one batch of the other shape, or two."""
    return (evaluate if data["advantages"].ndim == 1 else evaluate_once)(config, data)


@every_variant
@pytest.mark.parametrize("drift", [0.0, 0.1, 1.0])
def test_loss_and_metrics_match_the_oracle(name, drift):
    config = VARIANTS[name]
    for data in batches(config, drift):
        found, expected = evaluated(config, data), expected_metrics(config, data)
        assert found.metrics.keys() == expected.keys()
        for metric, value in expected.items():
            np.testing.assert_allclose(found.metrics[metric], value, rtol=1e-4, atol=2e-6, err_msg=metric)
        np.testing.assert_array_equal(found.loss, found.metrics["loss"])


@every_variant
@pytest.mark.parametrize(("drift", "token_advantages"), [(0.0, False), (0.1, False), (1.0, False), (1.0, True)])
def test_gradients_match_finite_differences_of_the_oracle(name, drift, token_advantages):
    config = VARIANTS[name]
    data = with_selection(config, batch(3, drift, token_advantages=token_advantages and takes_token_advantages(config)))
    found = evaluated(config, data).gradients
    wide, settings, mask = oracle_batch(data), oracle_settings(config), trained(data)
    for one in ("logprobs", "entropy"):

        def loss(values, one=one):
            moved = wide[one].copy()
            moved[mask] = values
            return oracle.loss(wide | {one: moved}, **settings)["loss"]

        numeric = oracle.gradient(loss, wide[one][mask], step=1e-6)
        np.testing.assert_allclose(found[one][mask], numeric, rtol=1e-4, atol=1e-5, err_msg=one)
    assert np.count_nonzero(found["logprobs"]) > 3


def test_the_batches_reach_every_branch():
    """Else a wrong bound could agree with the oracle for want of a token beyond it."""
    reached = dict.fromkeys(("clip_fraction_low", "clip_fraction_high", "corrected_fraction", "opsm_fraction"), 0)
    for name, config in VARIANTS.items():
        for data in batches(config, 1.0):
            expected = expected_metrics(config, data)
            for metric in reached:
                reached[metric] += 0 < expected.get(metric, 0) < 1
            if config.policy.entry.selects:
                assert expected["selected_tokens"] > 0, name
    assert min(reached.values()) >= 3, reached


# Hand-worked figures. Per term: options; ratios, rows of tokens; A of each row, or of each token; selected; and then the
# loss of each token, the slope of their sum in log π, and whether the lower and the upper bound hold it. log π is log ρ − 1.
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
PPO = [
    # 1.5 is above 1.2: −1.2 · 2, no slope. For A < 0 the minimum takes 1.5 itself. .5 is below .8: .8 · 2, no slope.
    ({}, [1.5, 1.5, 0.5, 0.5], [2, -2, -2, 2], None, [-2.4, 3, 1.6, -1], [0, 3, 0, -1], [0, 0, 1, 0], [1, 0, 0, 0]),
]
WORKED = {
    **dict.fromkeys(("grpo", "bnpo", "dr_grpo"), PPO),
    # The upper bound alone is higher: 1.25 is inside, 1.5 held at 1.28.
    "dapo": [({}, [1.25, 1.5, 0.5], [2, 2, -2], None, [-2.5, -2.56, 1.6], [-2.5, 0, 0], [0, 0, 1], [0, 1, 0])],
    # A < 0: 2 is below 3, and 4 is held at 3. A > 0 is PPO's.
    "dual_clip": [
        ({}, [2, 4, 4, 0.5], [-2, -2, 2, -2], None, [4, 6, -2.4, 1.6], [4, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 0]),
    ],
    "gspo": [
        # s = √(4 · 1) = 2. A = 1: held at 1.2. A = −1: 2, and each token moves both terms by half of 2.
        (CLIP, [[4, 1], [4, 1]], [1, -1], None, [[-1.2] * 2, [2, 2]], [[0, 0], [2, 2]], [[0, 0], [0, 0]], [[1, 1], [0, 0]]),
        # The tokens' own advantages 1 and 3 at s = √(2 · ½) = 1: each moves s by a half, −(1 + 3)/2.
        (CLIP, [2, 0.5], [1, 3], None, [-1, -3], [-2, -2], [0, 0], [0, 0]),
        # s = e^.0005 is above 1.0004, the paper's range; e^−.0005 is below .9997.
        ({}, [[math.exp(0.001), 1]], [[1, 1]], None, [[-1.0004] * 2], [[0, 0]], [[0, 0]], [[1, 1]]),
        ({}, [[math.exp(-0.001), 1]], [[-1, -1]], None, [[0.9997] * 2], [[0, 0]], [[1, 1]], [[0, 0]]),
    ],
    "gspo_token": [
        # As gspo's value, but each token's slope is that of its own advantage.
        (CLIP, [2, 0.5], [1, 3], None, [-1, -3], [-1, -3], [0, 0], [0, 0]),
        # s = 2: A = 1 is held; A = −3: 2 · 3.
        (CLIP, [4, 1], [1, -3], None, [-1.2, 6], [0, 6], [0, 0], [1, 0]),
    ],
    "luspo": [
        # s = e^.003 is above 1.0025, e^.002 is inside, e^−.003 is below .998.
        ({}, [[math.exp(0.006), 1]], [1], None, [[-1.0025] * 2], [[0, 0]], [[0, 0]], [[1, 1]]),
        ({}, [[math.exp(0.004), 1]], [1], None, [[-math.exp(0.002)] * 2], [[-math.exp(0.002)] * 2], [[0, 0]], [[0, 0]]),
        ({}, [[math.exp(-0.006), 1]], [-1], None, [[0.998] * 2], [[0, 0]], [[1, 1]], [[0, 0]]),
    ],
    "gmpo": [
        # A = 2: log ρ (1, −.2) is held at (.4, −.2), mean .1. A = −1: (−1, .6) at (−.4, .6), mean .1. Two equal losses, each
        # moved by half of a token that is not held.
        (
            {},
            np.exp([[1.0, -0.2], [-1.0, 0.6]]),
            [2, -1],
            None,
            [[-2 * math.exp(0.1)] * 2, [math.exp(0.1)] * 2],
            [[0, -2 * math.exp(0.1)], [0, math.exp(0.1)]],
            [[0, 0], [1, 0]],
            [[1, 0], [0, 0]],
        ),
        # A = 1: −1 is not held, 1 is held at .4: mean −.3.
        ({}, np.exp([[-1.0, 1.0]]), [1], None, [[-math.exp(-0.3)] * 2], [[-math.exp(-0.3), 0]], [[0, 0]], [[0, 1]]),
    ],
    # −min(8, 5) · 2 · (ln 8 − 1); −½ · 2 · (−ln 2 − 1); A = −1 at ρ = 1. The slope is −weight · A, also above the cap.
    "cispo": [({}, [8, 0.5, 1], [2, 2, -1], None, [10 - 30 * LN2, 1 + LN2, -1], [-10, -1, 1], [0, 0, 0], [1, 0, 0])],
    "sapo": [
        # σ(0) = ½: −4/1 · ½ and 4/1.05 · ½; the slope at ρ = 1 is −A.
        ({}, [1, 1], [1, -1], None, [-2, 2 / 1.05], [-1, 1], [0, 0], [0, 0]),
        # τ = ln 3, ρ = 2: σ = ¾, so −3/ln 3; slope −4 · ¾ · ¼ · 2.
        ({"gate_positive": LN3, "gate_negative": 1.0}, [2], [1], None, [-3 / LN3], [-1.5], [0], [0]),
        # The slope is −A ρ sech²(τ(ρ − 1)/2): at ρ = 3 sech²(1) for A > 0, sech²(1.05) for A < 0.
        (
            {},
            [3, 3],
            [1, -1],
            None,
            [-4 / (1 + math.exp(-2)), 4 / 1.05 / (1 + math.exp(-2.1))],
            [-3 / math.cosh(1) ** 2, 3 / math.cosh(1.05) ** 2],
            [0, 0],
            [0, 0],
        ),
    ],
    # PPO's, and the selected token has neither value nor slope.
    "clip_cov": [({}, [1.5, 1.1, 1.1], [1, 1, 2], [0, 1, 0], [-1.2, 0, -2.2], [0, 0, -2.2], [0, 0, 0], [1, 0, 0])],
    "kl_cov": [
        # −2 + ln 2; −½ + ln 2; not selected −2 and 6. |log ρ| has slope 1 above ρ = 1 and −1 below.
        (
            {},
            [2, 0.5, 2, 2],
            [1, 1, 1, -3],
            [1, 1, 0, 0],
            [-2 + LN2, -0.5 + LN2, -2, 6],
            [-1, -1.5, -2, 6],
            [0] * 4,
            [0] * 4,
        ),
        ({"cov_kl_coef": 3.0}, [2], [1], [1], [-2 + 3 * LN2], [1], [0], [0]),
    ],
}


def term_and_slope(config: PolicyConfig, ratios, advantages, selected=None):
    """`policy_term` of tokens, and the slope of the sum of their losses in log π.

    The tokens are filled up with masked ones to two rows of four: every operation is then compiled for one shape.
    """
    ratios = np.atleast_2d(np.asarray(ratios, np.float64))
    size = ratios.shape

    def filled(values, dtype):
        return jnp.asarray(np.pad(values, ((0, 2 - size[0]), (0, 4 - size[1]))).astype(dtype))

    # One row: its tokens' advantages. More rows: one a row.
    wide = filled(np.asarray(advantages, np.float64).reshape(size[0], -1) + np.zeros(size), np.float32)
    chosen = None if selected is None else filled(np.atleast_2d(selected), bool)
    log_ratio, mask = filled(np.log(ratios), np.float32), filled(np.ones(size), bool)

    def loss(log_ratio):
        inputs = TermInputs(jnp.where(mask, log_ratio - 1.0, 0.0), log_ratio, wide, mask, chosen)
        term = policy_term(config, inputs)
        return term.loss_BT.sum(), term

    (_, term), slope = jax.value_and_grad(loss, has_aux=True)(log_ratio)
    for values in (*term, slope):
        np.testing.assert_array_equal(np.where(mask, 0, values), 0)  # masked tokens have no part in any of it
    return jax.tree.map(lambda values: np.asarray(values)[: size[0], : size[1]], (term, slope))


@pytest.mark.parametrize("term", POLICY_TERMS)
def test_worked_figures(term):
    for options, ratios, advantages, selected, losses, slopes, lows, highs in entry(WORKED, "worked figure", term):
        found, slope = term_and_slope(policy_config(term=term, **options), ratios, advantages, selected)
        np.testing.assert_allclose(found.loss_BT, np.atleast_2d(losses), rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(slope, np.atleast_2d(slopes), rtol=5e-6, atol=1e-6)
        np.testing.assert_array_equal(found.clipped_low_BT, np.atleast_2d(np.array(lows, bool)))
        np.testing.assert_array_equal(found.clipped_high_BT, np.atleast_2d(np.array(highs, bool)))


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
def test_which_side_of_the_clip_a_token_is_on(ratio, advantage, loss, gradient, low, high):
    term, slope = term_and_slope(PolicyConfig(clip_high=0.3), [ratio], [advantage])
    np.testing.assert_allclose((term.loss_BT[0, 0], slope[0, 0]), (loss, gradient), rtol=1e-5)
    assert (bool(term.clipped_low_BT[0, 0]), bool(term.clipped_high_BT[0, 0])) == (low, high)


@pytest.mark.parametrize("term", [term for term, entry in POLICY_TERMS.items() if "clip_low" in entry.defaults])
def test_a_clip_of_nothing_clips_nothing_on_policy_and_leaves_the_whole_gradient(term):
    """At ρ = 1 both sides of the minimum are equal; a gradient split between them would be halved."""
    config = policy_config(term=term, clip_low=0.0, clip_high=0.0)
    found, slope = term_and_slope(config, [[1.0], [1.0]], [2.0, -3.0], [[0], [0]])
    np.testing.assert_array_equal(slope, [[-2.0], [3.0]])
    assert not np.any(found.clipped_low_BT | found.clipped_high_BT)


@pytest.mark.parametrize("log_ratio", [-1e4, -21.0, 21.0, 1e4])
@pytest.mark.parametrize("term", POLICY_TERMS)
def test_a_token_far_above_is_pulled_back_and_none_is_let_go_by_the_limit(term, log_ratio):
    assert abs(log_ratio) > LOG_RATIO_LIMIT
    config = policy_config(term=term)
    beyond, at_limit = (term_and_slope_of(config, np.float32(x)) for x in (log_ratio, np.sign(log_ratio) * LOG_RATIO_LIMIT))
    assert np.all(np.isfinite(beyond))
    # The slope is the limit's, whatever the distance.
    np.testing.assert_allclose(beyond, at_limit, rtol=1e-5)


def term_and_slope_of(config: PolicyConfig, log_ratio: np.float32) -> np.ndarray:
    """Slopes of lone tokens with A = 1 and A = −1 at a log-ratio."""

    def loss(values):
        inputs = TermInputs(
            values - values, values, jnp.array([[1.0], [-1.0]]), np.ones((2, 1), bool), np.zeros((2, 1), bool)
        )
        return policy_term(config, inputs).loss_BT.sum()

    return np.asarray(jax.grad(loss)(jnp.full((2, 1), log_ratio)))


@pytest.mark.parametrize("term", POLICY_TERMS)
def test_options_of_the_ratio_have_no_gradient_to_change_where_it_is_one(term):
    """What RATIO_OPTIONS promises: with one update a rollout they cannot take effect."""
    defaults = POLICY_TERMS[term].defaults
    config = policy_config(term=term)
    moved = policy_config(term=term, **{name: 1.5 * defaults[name] for name in RATIO_OPTIONS if name in defaults})
    data = with_selection(GRPOConfig(policy=config), batch()) | {"old": None}
    gradients = [evaluate_once(GRPOConfig(policy=policy), data).gradients["logprobs"] for policy in (config, moved)]
    np.testing.assert_allclose(*gradients, rtol=1e-6)


COVARIANCE_TERMS = [term for term, entry in POLICY_TERMS.items() if entry.selects is not None]


def chosen_by_oracle(config: PolicyConfig, data: dict) -> np.ndarray:
    mask, options = trained(data), config.options
    advantages = np.float64(data["advantages"])
    if advantages.ndim == 1:
        advantages = np.repeat(advantages[:, None], mask.shape[1], axis=1)
    covariance = oracle.covariance(np.float64(data["old"]), advantages, mask)
    choice = {
        "clip_cov": lambda: oracle.select_clip_cov(
            covariance, mask, data["noise"], options["cov_ratio"], options["cov_low"], options["cov_high"]
        ),
        "kl_cov": lambda: oracle.select_kl_cov(covariance, mask, options["cov_ratio"]),
    }
    return entry(choice, "selection", config.term)()


@pytest.mark.parametrize("term", COVARIANCE_TERMS)
@pytest.mark.parametrize("share", [2e-4, 0.1, 0.5, 1.0])
def test_selected_tokens_match_the_oracle_and_are_as_many_as_the_share_says(term, share):
    band = {"cov_low": -0.2, "cov_high": 2.0} if term == "clip_cov" else {}
    config = PolicyConfig(term=term, cov_ratio=share, **band)
    for seed in range(10):
        # One advantage a token, or all tokens of a row: no two covariances are equal either way.
        data = batch(seed, token_advantages=seed % 2 == 0)
        found = with_selection(GRPOConfig(policy=config), data)["selected"]
        np.testing.assert_array_equal(found, chosen_by_oracle(config, data))
        count = max(1, math.floor(share * 19))  # 19 tokens of the batch are trained on
        assert found.sum() <= count and (term == "clip_cov" or found.sum() == count)
        assert not np.any(found & ~trained(data))


@pytest.mark.parametrize("term", COVARIANCE_TERMS)
def test_selection_reads_no_masked_place_and_follows_rows(term):
    band = {"cov_low": -0.2, "cov_high": 2.0} if term == "clip_cov" else {}
    config, data = PolicyConfig(term=term, cov_ratio=0.3, **band), batch(token_advantages=True)
    mask = trained(data)
    arguments = [data[name] for name in ("old", "advantages")]
    expected = select_tokens(config, *arguments, mask, data["noise"])
    assert expected.any()
    for garbage in (1e4, -1e4, np.nan, np.inf, -np.inf):
        planted = [np.where(mask, values, np.float32(garbage)) for values in (*arguments, data["noise"])]
        np.testing.assert_array_equal(select_tokens(config, *planted[:2], mask, planted[2]), expected)
    order = np.random.default_rng(3).permutation(len(mask))
    shuffled = select_tokens(config, *(values[order] for values in arguments), mask[order], data["noise"][order])
    np.testing.assert_array_equal(shuffled, expected[order])


def test_among_equal_covariances_noise_decides():
    """Covariances 1, 1, 1, 1: log π ∓1 with A ∓1. Half of them are chosen, those of least noise."""
    old, advantages = np.array([[-1.0, -1.0], [-3.0, -3.0]]), np.array([1.0, -1.0])
    noise, mask = np.array([[0.9, 0.2], [0.1, 0.5]]), np.ones((2, 2), bool)
    chosen = [[False, True], [True, False]]
    greatest = PolicyConfig(term="kl_cov", cov_ratio=0.5)
    np.testing.assert_array_equal(select_tokens(greatest, old, advantages, mask, noise), chosen)
    in_band = PolicyConfig(term="clip_cov", cov_ratio=0.5, cov_low=0.5, cov_high=1.5)
    np.testing.assert_array_equal(select_tokens(in_band, old, advantages, mask, noise), chosen)


def test_the_band_of_clip_cov_is_open_and_may_be_empty():
    """Covariances 1, 1, 1, 1 again: neither bound belongs to the band, and without a candidate none is chosen."""
    old, advantages, mask = np.array([[-1.0, -1.0], [-3.0, -3.0]]), np.array([1.0, -1.0]), np.ones((2, 2), bool)
    for low, high, count in ((0.9, 1.1, 1), (1.0, 1.1, 0), (0.9, 1.0, 0), (2.0, 3.0, 0)):
        config = PolicyConfig(term="clip_cov", cov_low=low, cov_high=high)
        assert select_tokens(config, old, advantages, mask, np.zeros((2, 2))).sum() == count


@pytest.mark.parametrize("term", POLICY_TERMS)
def test_only_covariance_terms_select_and_they_cannot_do_without(term):
    config, data = policy_config(term=term), batch()
    found = select_tokens(config, data["old"], data["advantages"], trained(data), data["noise"])
    if term not in COVARIANCE_TERMS:
        assert found is None
        return
    assert found.shape == data["mask"].shape and found.dtype == bool
    nothing = select_tokens(config, data["old"], data["advantages"], np.zeros_like(data["mask"]), data["noise"])
    assert not nothing.any()
    with pytest.raises(ValueError, match="selected is None, but a covariance term needs"):
        term_and_slope(config, [1.0], [1.0])


@functools.cache
def gradient_of(term: str, **options: float) -> np.ndarray:
    config = GRPOConfig(policy=policy_config(term=term, **options))
    return evaluate(config, batch(4, 1.0)).gradients["logprobs"]


def test_gspo_token_is_gspo_where_a_row_has_one_advantage():
    """Section 4.3 of 2507.18071."""
    clips = {"clip_low": 0.1, "clip_high": 0.2}
    np.testing.assert_allclose(gradient_of("gspo_token", **clips), gradient_of("gspo", **clips), rtol=2e-6)


def test_dapo_is_grpo_with_its_bounds_and_aggregation():
    renamed = GRPOConfig(policy=PolicyConfig(clip_high=0.28, aggregation="token_mean"))
    assert GRPOConfig(policy=PolicyConfig(term="dapo")).policy.options == renamed.policy.options
    np.testing.assert_array_equal(gradient_of("dapo"), evaluate(renamed, batch(4, 1.0)).gradients["logprobs"])
