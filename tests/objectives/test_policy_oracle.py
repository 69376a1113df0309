"""The policy oracle against figures worked by hand: every expected number is derived in the comment beside it."""

import math

import numpy as np
import pytest

from tests.oracles import policy_terms as oracle

LN2 = math.log(2)
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
OPTIONS = {
    "grpo": CLIP,
    "dual_clip": {**CLIP, "dual_clip": 3.0},
    "gspo": CLIP,
    "gspo_token": CLIP,
    "luspo": CLIP,
    "cispo": {"ratio_cap": 5.0},
    "sapo": {"gate_positive": 1.0, "gate_negative": 1.05},
    "gmpo": {"log_clip_low": 0.4, "log_clip_high": 0.4},
    "clip_cov": CLIP,
    "kl_cov": {"cov_kl_coef": 1.0},
}


def inputs(ratios, advantages, old=-1.0, selected=None):
    """The term's six arrays for one row or several of ratios π / π_old."""
    ratios = np.atleast_2d(np.asarray(ratios, np.float64))
    logprobs = np.log(ratios) + old
    advantages = np.broadcast_to(np.asarray(advantages, np.float64), ratios.shape)
    selected = np.zeros(ratios.shape, bool) if selected is None else np.atleast_2d(np.array(selected, bool))
    return logprobs, logprobs.copy(), np.full(ratios.shape, old), advantages, np.ones(ratios.shape, bool), selected


def value(name, ratios, advantages, options=None, **kwargs):
    found = oracle.POLICY_TERMS[name](*inputs(ratios, advantages, **kwargs), options or OPTIONS[name])
    return found[0] if len(found) == 1 else found


def slope(name, ratios, advantages, options=None, **kwargs):
    """d(sum of the term) / d logprobs, the frozen copy held."""
    logprobs, *rest = inputs(ratios, advantages, **kwargs)
    found = oracle.gradient_wrt_logprobs(
        lambda x: oracle.POLICY_TERMS[name](x, *rest, options or OPTIONS[name]).sum(), logprobs
    )
    return found[0] if len(found) == 1 else found


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_clipped_takes_the_worse_of_ratio_and_clipped_ratio():
    # min(1.5, 1.28) = 1.28; min(-.5, -.8) = -.8; min(-3, -2.56) = -3; min(1, 1.6) = 1; ρ = 1: A itself.
    near(value("clipped", [1.5, 0.5, 1.5, 0.5, 1.0], [1, -1, -2, 2, 3], CLIP), [-1.28, 0.8, 3.0, -1.0, -3.0])
    # The slope is -ρA where the plain ratio is the minimum and 0 where the clipped one is.
    near(slope("clipped", [1.5, 0.5, 1.5, 0.5, 1.0], [1, -1, -2, 2, 3], CLIP), [0, 0, 3, -1, -3])


@pytest.mark.parametrize("name", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_the_clipped_family_shares_one_term(name):
    near(value(name, [1.5, 0.5], [1, -1], CLIP), [-1.28, 0.8])


def test_dual_clip_bounds_the_loss_of_a_negative_advantage():
    # ρ = 5, A = -2: 10 would be the loss, 3 · 2 = 6 is the bound; ρ = 2: 4 < 6 stays; ρ = .5: .8 · 2 = 1.6; A > 0: 1.28.
    near(value("dual_clip", [5, 2, 0.5, 5], [-2, -2, -2, 1]), [6.0, 4.0, 1.6, -1.28])
    near(slope("dual_clip", [5, 2, 0.5, 5], [-2, -2, -2, 1]), [0, 4, 0, 0])


def test_gspo_gives_every_token_the_rows_geometric_mean_ratio():
    # √(4 · 1) = 2: A = 1 is clipped to 1.28, A = -1 is not; √(2 · ½) = 1.
    near(value("gspo", [[4, 1], [4, 1], [2, 0.5]], [[1, 1], [-1, -1], [3, 3]]), [[-1.28] * 2, [2.0] * 2, [-3.0] * 2])
    # Each of the row's two losses -sA moves by -sA/2 with either token: -sA in all.
    near(slope("gspo", [[4, 1], [4, 1], [2, 0.5]], [[1, 1], [-1, -1], [3, 3]]), [[0, 0], [2, 2], [-3, -3]])


def test_gspo_at_the_papers_ranges_clips_a_row_that_drifted_by_a_thousandth():
    # Log ratios .001 and 0: s = e^.0005 = 1.00050012…, above 1.0004; -.001 and 0: s = .99950012…, below .9997.
    paper = {"clip_low": 3e-4, "clip_high": 4e-4}
    near(value("gspo", np.exp([0.001, 0.0]), 1, paper), [-1.0004, -1.0004])
    near(value("gspo", np.exp([-0.001, 0.0]), -1, paper), [0.9997, 0.9997])


def test_gspo_token_is_gspo_when_a_row_has_one_advantage():
    # Section 4.3 of 2507.18071: value, clipping and gradient agree when every A of a row is the same.
    ratios, advantages = [[1.3, 0.9, 1.1], [0.8, 0.7, 1.2], [2.0, 1.5, 1.4]], [[1.0] * 3, [-2.0] * 3, [0.5] * 3]
    near(value("gspo_token", ratios, advantages), value("gspo", ratios, advantages))
    near(slope("gspo_token", ratios, advantages), slope("gspo", ratios, advantages))


def test_gspo_token_gives_each_token_the_gradient_of_its_own_advantage():
    # s = √(2 · ½) = 1, A = (1, 3). GSPO: each token moves s by a half, so -(1 + 3)/2; GSPO-token: -A_t.
    near(value("gspo_token", [2, 0.5], [1, 3]), [-1, -3])
    near(slope("gspo", [2, 0.5], [1, 3]), [-2, -2])
    near(slope("gspo_token", [2, 0.5], [1, 3]), [-1, -3])
    # s = 2: (A = 1, clipped: no slope; A = -3, not: 6).
    near(slope("gspo_token", [4, 1], [1, -3]), [0, 6])


def test_luspo_is_gspo_and_a_rows_sum():
    near(value("luspo", [[4, 1], [2, 0.5]], [[-1, -1], [3, 3]]), [[2, 2], [-3, -3]])
    # On-policy rows of 1 and 3 tokens, A = 1. GSPO: (-1 - 1)/2. LUSPO: (1 · -1 + 3 · -1)/2.
    data = full(np.ones((2, 3)), [1, 1], mask=[[1, 0, 0], [1, 1, 1]])
    near(oracle.loss(data, term="gspo", options=CLIP, aggregation="sequence_mean")["loss"], -1.0)
    luspo = oracle.loss(data, term="luspo", options=CLIP, aggregation="sequence_sum_fixed", fixed_length=1)
    near(luspo["loss"], -2.0)


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    # ratio_cap 5, log π = ln ρ - 1. ρ = 8: weight 5, -5 · 2 · (ln 8 - 1); ρ = ½: -½ · 2 · (-ln 2 - 1); A = -1, ρ = 1: -1.
    near(value("cispo", [8, 0.5, 1], [2, 2, -1]), [10 - 30 * LN2, 1 + LN2, -1.0])
    # -weight · A, also above the cap and for A < 0: CISPO drops no token's gradient.
    near(slope("cispo", [8, 0.5, 8], [2, 2, -1]), [-10, -1, 5])
    near(slope("grpo", [8], [2]), [0])


def test_sapo_is_the_policy_gradient_on_policy():
    # σ(0) = ½: -(4/1)(½) = -2 and (4/1.05)(½) = 2/1.05. The slope in ρ is -A whatever τ, and at ρ = 1 so is that in log π.
    near(value("sapo", [1, 1], [1, -1]), [-2, 2 / 1.05])
    near(slope("sapo", [1, 1, 1], [1, -1, 0.3]), [-1, 1, -0.3])


def test_sapo_fades_as_the_ratio_leaves_one():
    # τ = ln 3, ρ = 2: σ(ln 3) = ¾, so -3/ln 3; ρ = 0, near enough e^-20: σ(-ln 3) = ¼, so 1/ln 3 for A = -1.
    gates = {"gate_positive": math.log(3), "gate_negative": math.log(3)}
    np.testing.assert_allclose(value("sapo", [2, math.exp(-20)], [1, -1], gates), [-3 / math.log(3), 1 / math.log(3)])
    # In ρ: -A · 4 · ¾ · ¼ = -¾, times dρ/dlog π = 2. The paper's weight, sech²(τ(ρ - 1)/2), at τ = 1, ρ = 3: sech²(1).
    near(slope("sapo", [2], [1], gates), [-1.5])
    near(slope("sapo", [3], [1]), [-3 / math.cosh(1) ** 2])
    # The hotter gate of a negative advantage fades sooner: sech²(1.05).
    near(slope("sapo", [3], [-1]), [3 / math.cosh(1.05) ** 2])


def test_gmpo_clips_each_token_then_takes_the_geometric_mean():
    # A = 2: (1, -.2) → (.4, -.2), mean .1; A = -1: (-1, .6) → (-.4, .6), mean .1; A = 0: 0.
    ratios = np.exp([[1.0, -0.2], [-1.0, 0.6], [0.3, 0.1]])
    near(value("gmpo", ratios, [[2, 2], [-1, -1], [0, 0]]), np.outer([-2 * math.exp(0.1), math.exp(0.1), 0], [1, 1]))
    # A clipped token has no slope; the other's is the sum of two equal losses, each by a half.
    near(slope("gmpo", ratios, [[2, 2], [-1, -1], [0, 0]]), [[0, -2 * math.exp(0.1)], [0, math.exp(0.1)], [0, 0]])


def test_gmpo_clips_on_one_side_only():
    # A = 1: -1 stays, and 1 → .4: mean -.3.
    near(value("gmpo", np.exp([-1.0, 1.0]), 1), [-math.exp(-0.3)] * 2)
    with pytest.raises(ValueError, match="GMPO"):
        value("gmpo", [1, 1], [1, 2])


def test_clip_cov_silences_the_selected_tokens():
    near(value("clip_cov", [1.5, 1.1, 1.1], [1, 1, 2], selected=[0, 1, 0]), [-1.28, 0.0, -2.2])
    near(slope("clip_cov", [1.5, 1.1, 1.1], [1, 1, 2], selected=[0, 1, 0]), [0.0, 0.0, -2.2])


def test_kl_cov_charges_the_selected_tokens_and_clips_none():
    # -2 · 1 + ln 2; -½ · 1 + ln 2; not selected: -2; A = -3: 6.
    found = value("kl_cov", [2, 0.5, 2, 2], [1, 1, 1, -3], selected=[1, 1, 0, 0])
    near(found, [-2 + LN2, -0.5 + LN2, -2.0, 6.0])
    # d|l|/dl is 1 above π_old and -1 below; with coefficient 3: -2 + 3.
    near(slope("kl_cov", [2, 0.5, 2, 2], [1, 1, 1, -3], selected=[1, 1, 0, 0]), [-1.0, -1.5, -2.0, 6.0])
    near(slope("kl_cov", [2], [1], {"cov_kl_coef": 3.0}, selected=[1]), [1.0])


def test_covariance_is_centred_on_all_masked_tokens():
    mask = np.array([[True, True, False], [True, False, False]])
    old = np.array([[-1.0, -2.0, np.nan], [-3.0, np.nan, np.nan]])
    # Means -2 and 0: 1 · 2, 0 · 0, -1 · -2. With A = (1, 1, -2): 1 · 1, 0, -1 · -2.
    near(oracle.covariance(old, np.array([[2, 0, 99], [-2, 99, 99]]), mask), [[2, 0, 0], [2, 0, 0]])
    near(oracle.covariance(old, np.array([[1, 1, 99], [-2, 99, 99]]), mask), [[1, 0, 0], [2, 0, 0]])


def test_select_kl_cov_takes_the_greatest():
    mask = np.ones((2, 4), bool)
    mask[1, 3] = False
    cov = np.array([[0.1, 3.0, -9.0, 1.0], [2.0, 0.0, -1.0, 99.0]])
    # 7 tokens: floor(.5 · 7) = 3: 3, 2 and 1; floor(.1 · 7) = 0, but at least one.
    assert np.argwhere(oracle.select_kl_cov(cov, mask, 0.5)).tolist() == [[0, 1], [0, 3], [1, 0]]
    assert np.argwhere(oracle.select_kl_cov(cov, mask, 0.1)).tolist() == [[0, 1]]
    assert not oracle.select_kl_cov(cov, np.zeros((2, 4), bool), 0.5).any()


def test_select_clip_cov_draws_by_noise_within_the_bounds():
    mask = np.ones((2, 4), bool)
    mask[1, 3] = False
    cov = np.array([[1.5, 6.0, 2.0, 1.0], [4.0, 5.0, 3.0, 3.0]])
    noise = np.array([[0.9, 0.0, 0.3, 0.0], [0.5, 0.0, 0.7, 0.0]])
    # Strictly between 1 and 5: 1.5, 2, 4, 3, of noise .9, .3, .5, .7. floor(.3 · 7) = 2: .3 and .5; .99: 6, but there are 4.
    assert np.argwhere(oracle.select_clip_cov(cov, mask, noise, 0.3, 1.0, 5.0)).tolist() == [[0, 2], [1, 0]]
    assert oracle.select_clip_cov(cov, mask, noise, 0.99, 1.0, 5.0).sum() == 4
    assert np.argwhere(oracle.select_clip_cov(cov, mask, noise, 2e-4, 1.0, 5.0)).tolist() == [[0, 2]]
    assert not oracle.select_clip_cov(cov, mask, noise, 0.3, 10.0, 20.0).any()


@pytest.mark.parametrize(
    ("name", "equal", "weighted"),
    [
        # Rows (1, 2, 3) and (4). 10/4; with weights 3 and 1: (3 · 6 + 4)/(3 · 3 + 1).
        ("token_mean", 2.5, 2.2),
        # (2 + 4)/2; (3 · 2 + 4)/4.
        ("sequence_mean", 3.0, 2.5),
        # Length 4: 10/(2 · 4); (18 + 4)/(4 · 4).
        ("sequence_sum_fixed", 1.25, 1.375),
    ],
)
def test_aggregations(name, equal, weighted):
    mask = np.array([[1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]], bool)
    values = np.array([[1, 2, 3], [np.nan, 4, np.nan], [np.nan] * 3, [np.nan] * 3])
    # The third row has no token and the fourth no weight: neither is in the denominator.
    near(oracle.AGGREGATIONS[name](values, mask, [1, 1, 1, 0], 4), equal)
    near(oracle.AGGREGATIONS[name](values, mask, [3, 1, 5, 0], 4), weighted)
    assert oracle.AGGREGATIONS[name](values, mask, [0, 0, 0, 0], 4) == 0.0


def test_kl_estimators():
    # d = ln 2: ln 2, ln² 2 / 2, ½ + ln 2 - 1; d = -ln 2: 2 - ln 2 - 1.
    near([oracle.kl(k, False, -1.0, 0.0, -1.0 - LN2) for k in ("k1", "k2", "k3")], [LN2, LN2**2 / 2, LN2 - 0.5])
    near([oracle.kl(k, False, -1.0, 0.0, -1.0 + LN2) for k in ("k1", "k2", "k3")], [-LN2, LN2**2 / 2, 1 - LN2])
    # π / π_old = 2.
    near([oracle.kl(k, True, -1.0, -1.0 - LN2, -1.0 - LN2) for k in ("k1", "k3")], [2 * LN2, 2 * LN2 - 1])
    with pytest.raises(ValueError, match="k2"):
        oracle.kl("k2", True, -1.0, -1.0, -1.0)


def test_k1_and_k3_average_to_the_kl():
    # π = (½, ½), ref = (¼, ¾): KL = ½ ln 2 + ½ ln ⅔ = ½ ln 4/3. Weighted, drawn from π_old = (⅓, ⅔): the same.
    pi, ref, old = np.log([0.5, 0.5]), np.log([0.25, 0.75]), np.log([1 / 3, 2 / 3])
    for k in ("k1", "k3"):
        near(sum(math.exp(p) * oracle.kl(k, False, p, p, r) for p, r in zip(pi, ref)), 0.5 * math.log(4 / 3))
        near(sum(math.exp(o) * oracle.kl(k, True, p, o, r) for p, o, r in zip(pi, old, ref)), 0.5 * math.log(4 / 3))


def correction(name, w, **options):
    w = np.atleast_2d(np.asarray(w, np.float64))
    mask = np.isfinite(w)
    return oracle.CORRECTIONS[name](np.full(w.shape, -1.0), -1.0 - np.log(w), mask, options)


def test_token_corrections():
    near(correction("none", [4, 0.5, np.nan]), [[1, 1, 0]])
    near(correction("tis", [4, 0.5, 1.9, np.nan], correction_cap=2.0), [[2, 0.5, 1.9, 0]])
    found = correction("icepop", [0.4, 0.51, 4.9, 6, np.nan], correction_low=0.5, correction_high=5.0)
    near(found, [[0, 0.51, 4.9, 0, 0]])


def test_sequence_corrections_read_the_geometric_mean():
    # √(4 · 1) = 2; √(16 · 4) = 8; √(1/16 · ¼) = ⅛; a row of one token: 4.
    w = [[4, 1], [16, 4], [1 / 16, 1 / 4], [4, np.nan]]
    near(correction("sequence_mask", w, correction_low=0.5, correction_high=5.0), [[1, 1], [0, 0], [0, 0], [1, 0]])
    near(correction("sequence_tis", w, correction_cap=3.0), [[2, 2], [3, 3], [0.125, 0.125], [3, 0]])


def test_opsm_drops_a_row_of_negative_advantage_that_has_drifted():
    # Mean of sampler - π: .6 > .5 (dropped for A < 0 only), .4, and -2: the other direction never drops.
    gaps = np.array([[1.0, 0.2], [1.0, 0.2], [1.0, 0.2], [0.6, 0.2], [-2.0, -2.0], [9.0, 9.0]])
    mask = np.array([[1, 1]] * 5 + [[0, 0]], bool)
    found = oracle.opsm(np.zeros((6, 2)), gaps, [-1, 1, 0, -1, -1, -1], mask, 0.5)
    assert found.tolist() == [False, True, True, True, True, True]


def full(ratios, advantages, mask, **changes):
    """A `data` for the whole loss: old -1 everywhere, d = ln 2, sampler = old."""
    ratios, mask = np.asarray(ratios, np.float64), np.array(mask, bool)
    logprobs = np.log(ratios) - 1.0
    data = {
        "logprobs": logprobs,
        "frozen": logprobs.copy(),
        "old": np.full(ratios.shape, -1.0),
        "ref": logprobs - LN2,
        "sampler": np.full(ratios.shape, -1.0),
        "advantages": np.asarray(advantages, np.float64),
        "row_weight": np.ones(len(ratios)),
        "mask": mask,
        "selected": np.zeros(ratios.shape, bool),
        "entropy": np.zeros(ratios.shape),
    }
    return {**data, **changes}


# Two rows: ratios (1.5, 1) with A = 1 and weights w = (4 → 2, ½); ratio ½ with A = -1 and w = 1. Entropies 1, 2 and 3.
WORKED = full(
    [[1.5, 1.0], [0.5, 1.0]],
    [1, -1],
    mask=[[1, 1], [1, 0]],
    sampler=np.array([[-1 - 2 * LN2, -1 + LN2], [-1.0, 50.0]]),
    entropy=np.array([[1.0, 2.0], [3.0, 50.0]]),
)
SETTINGS = {
    "term": "grpo",
    "options": {"clip_low": 0.2, "clip_high": 0.2},
    "kl_estimator": "k3",
    "kl_importance_weighted": False,
    "kl_coef": 0.1,
    "entropy_coef": 0.01,
    "correction": "tis",
    "correction_options": {"correction_cap": 2.0},
    "opsm_threshold": None,
}


@pytest.mark.parametrize(
    ("aggregation", "policy", "entropy"),
    [
        # Corrected losses (-1.2 · 2, -1 · ½) and (.8): ((-2.4 - .5)/2 + .8)/2; entropies (1.5 + 3)/2.
        ("sequence_mean", -0.325, -0.0225),
        # (-2.9 + .8)/3; 6/3.
        ("token_mean", -0.7, -0.02),
        # Length 4: (-2.9 + .8)/(2 · 4); 6/8.
        ("sequence_sum_fixed", -0.2625, -0.0075),
    ],
)
def test_the_whole_loss(aggregation, policy, entropy):
    found = oracle.loss(WORKED, aggregation=aggregation, fixed_length=4, **SETTINGS)
    # k3 at d = ln 2 is ln 2 - ½ for each of the three tokens; of length 4, 3/8 of it.
    penalty = 0.1 * (LN2 - 0.5) * (3 / 8 if aggregation == "sequence_sum_fixed" else 1)
    near([found["policy_loss"], found["kl_loss"], found["entropy_loss"]], [policy, penalty, entropy])
    near(found["loss"], policy + penalty + entropy)


def test_a_row_that_opsm_drops_stays_in_the_denominator_and_in_the_kl():
    # The second row's sampler - π is ln 2 > .5: ((-2.4 - .5)/2 + 0)/2.
    found = oracle.loss(WORKED, aggregation="sequence_mean", **{**SETTINGS, "opsm_threshold": 0.5})
    near([found["policy_loss"], found["kl_loss"]], [-0.725, 0.1 * (LN2 - 0.5)])
    kept = oracle.loss(WORKED, aggregation="sequence_mean", **{**SETTINGS, "opsm_threshold": 0.7})
    near(kept["policy_loss"], -0.325)


def test_tokens_that_a_correction_masks_stay_in_the_denominator():
    # IcePop: w = 4 above 3 → 0, ½ stays: ((0 - .5)/2 + .8)/2.
    bounds = {"correction_low": 0.4, "correction_high": 3.0}
    settings = {**SETTINGS, "correction": "icepop", "correction_options": bounds}
    near(oracle.loss(WORKED, aggregation="sequence_mean", **settings)["policy_loss"], 0.275)


def test_row_weights_scale_a_rows_share():
    # Weights 3 and 1: (3 · -1.45 + .8)/4.
    data = {**WORKED, "row_weight": np.array([3.0, 1.0])}
    near(oracle.loss(data, aggregation="sequence_mean", **SETTINGS)["policy_loss"], -0.8875)


@pytest.mark.parametrize("term", list(OPTIONS))
@pytest.mark.parametrize("aggregation", list(oracle.AGGREGATIONS))
def test_nothing_outside_the_mask_or_in_a_row_of_weight_zero_is_read(term, aggregation):
    rng = np.random.default_rng(0)
    mask = np.array([[0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]], bool)
    data = full(np.exp(rng.normal(0, 0.3, (3, 4))), [1.2, -0.7, 2.0], mask, entropy=rng.random((3, 4)))
    data |= {"sampler": rng.normal(-1, 0.3, (3, 4)), "row_weight": np.array([1.0, 2.0, 0.0])}
    unread = ~mask | (data["row_weight"] == 0)[:, None]
    dirty = {k: np.where(unread, np.nan, data[k]) for k in ("logprobs", "frozen", "old", "ref", "sampler", "entropy")}
    dirty |= {"selected": unread.copy(), "advantages": np.where(unread, np.nan, data["advantages"][:, None])}
    settings = {**SETTINGS, "term": term, "options": OPTIONS[term], "aggregation": aggregation, "fixed_length": 5}
    settings |= {"correction": "sequence_tis", "opsm_threshold": 0.1}
    found = oracle.loss({**data, **dirty}, **settings)
    assert found == oracle.loss(data, **settings)
    assert all(np.isfinite(list(found.values())))
    slopes = oracle.gradient_wrt_logprobs(
        lambda x: oracle.loss({**data, "logprobs": x}, **settings)["loss"], data["logprobs"]
    )
    assert np.all(slopes[unread] == 0) and np.any(slopes[~unread] != 0)


@pytest.mark.parametrize("term", list(OPTIONS))
def test_every_term_has_the_policy_gradients_slope_on_policy(term):
    # At ρ = 1 with one advantage a row, d(row's sum) / d log π = -A for every variant (no token selected).
    near(slope(term, np.ones((2, 3)), [[1.5] * 3, [-0.5] * 3]), [[-1.5] * 3, [0.5] * 3])
