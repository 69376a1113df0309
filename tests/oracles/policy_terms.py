"""Policy terms, aggregations, KL estimators and sampler corrections in NumPy float64, one row and token at a time.

Written from the papers alone. Shapes: B rows, T tokens. What lies outside `mask` is never read, and comes out as 0.
`frozen` is the stop-gradient copy of `logprobs`: equal to it, and held still when finite differences move `logprobs`.
"""

import math
from collections.abc import Callable

import numpy as np

from tests.oracles.objectives import gradient


def _tokens(mask_row) -> list[int]:
    return [t for t in range(len(mask_row)) if mask_row[t]]


def _clipped_loss(ratio: float, advantage: float, options: dict) -> float:
    inside = min(max(ratio, 1.0 - options["clip_low"]), 1.0 + options["clip_high"])
    return -min(ratio * advantage, inside * advantage)


def clipped(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """PPO's clipped surrogate (1707.06347), as in GRPO (2402.03300), Dr. GRPO (2503.20783) and DAPO (2503.14476)."""
    loss = np.zeros(mask.shape)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            ratio = math.exp(logprobs[b, t] - old[b, t])
            loss[b, t] = _clipped_loss(ratio, advantages[b, t], options)
    return loss


def dual_clip(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """Dual-clip PPO (1912.09729): where A < 0 the surrogate is at least c A, so the loss is at most -c A."""
    loss = clipped(logprobs, frozen, old, advantages, mask, selected, options)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            if advantages[b, t] < 0:
                loss[b, t] = min(loss[b, t], -options["dual_clip"] * advantages[b, t])
    return loss


def gspo(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """GSPO (2507.18071, eq. 5-7): one ratio a row, (π(y) / π_old(y)) ** (1 / |y|), clipped as a whole."""
    loss = np.zeros(mask.shape)
    for b in range(len(mask)):
        tokens = _tokens(mask[b])
        if not tokens:
            continue
        ratio = math.exp(sum(logprobs[b, t] - old[b, t] for t in tokens) / len(tokens))
        for t in tokens:
            loss[b, t] = _clipped_loss(ratio, advantages[b, t], options)
    return loss


def gspo_token(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """GSPO-token (2507.18071, eq. 13-14): the value of GSPO's ratio, the gradient of each token by itself."""
    loss = np.zeros(mask.shape)
    for b in range(len(mask)):
        tokens = _tokens(mask[b])
        if not tokens:
            continue
        row_ratio = math.exp(sum(frozen[b, t] - old[b, t] for t in tokens) / len(tokens))
        for t in tokens:
            ratio = row_ratio * math.exp(logprobs[b, t] - frozen[b, t])
            loss[b, t] = _clipped_loss(ratio, advantages[b, t], options)
    return loss


def luspo(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """LUSPO (2602.05261): GSPO's term. Its factor |y| a row is the aggregation's: a sum over the row, not a mean."""
    return gspo(logprobs, frozen, old, advantages, mask, selected, options)


def cispo(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """CISPO (MiniMax-M1, 2506.13585, eq. 4-5, clipped above only; ScaleRL, 2510.13786): -sg(min(ρ, cap)) A log π."""
    loss = np.zeros(mask.shape)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            weight = min(math.exp(frozen[b, t] - old[b, t]), options["ratio_cap"])
            loss[b, t] = -weight * advantages[b, t] * logprobs[b, t]
    return loss


def sapo(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """SAPO (2511.20347): -(4 / τ) σ(τ (ρ - 1)) A, whose slope in ρ is -A sech²(τ (ρ - 1) / 2): a soft clip."""
    loss = np.zeros(mask.shape)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            ratio, advantage = math.exp(logprobs[b, t] - old[b, t]), advantages[b, t]
            temperature = options["gate_positive"] if advantage > 0 else options["gate_negative"]
            gate = 1.0 / (1.0 + math.exp(-temperature * (ratio - 1.0)))
            loss[b, t] = -4.0 / temperature * gate * advantage
    return loss


def gmpo(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """GMPO (2507.20673): -A times the geometric mean of the row's ratios, each clipped on the side A pushes to.

    Defined for one advantage a row.
    """
    loss = np.zeros(mask.shape)
    for b in range(len(mask)):
        tokens = _tokens(mask[b])
        if not tokens:
            continue
        if len({float(advantages[b, t]) for t in tokens}) > 1:
            raise ValueError("advantages differ within a row, but GMPO is defined for one advantage a row")
        total = 0.0
        for t in tokens:
            log_ratio, advantage = logprobs[b, t] - old[b, t], advantages[b, t]
            if advantage > 0:
                log_ratio = min(log_ratio, options["log_clip_high"])
            elif advantage < 0:
                log_ratio = max(log_ratio, -options["log_clip_low"])
            total += log_ratio
        for t in tokens:
            loss[b, t] = -advantages[b, t] * math.exp(total / len(tokens))
    return loss


def clip_cov(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """Clip-Cov (2505.22617): the clipped surrogate; a selected token has neither value nor gradient."""
    loss = clipped(logprobs, frozen, old, advantages, mask, selected, options)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            if selected[b, t]:
                loss[b, t] = 0.0
    return loss


def kl_cov(logprobs, frozen, old, advantages, mask, selected, options: dict) -> np.ndarray:
    """KL-Cov (2505.22617): -ρA, never clipped; a selected token also pays for its distance from π_old."""
    loss = np.zeros(mask.shape)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            log_ratio = logprobs[b, t] - old[b, t]
            loss[b, t] = -math.exp(log_ratio) * advantages[b, t]
            if selected[b, t]:
                loss[b, t] += options["cov_kl_coef"] * abs(log_ratio)
    return loss


POLICY_TERMS: dict[str, Callable[..., np.ndarray]] = {
    "clipped": clipped,
    "grpo": clipped,
    "bnpo": clipped,
    "dr_grpo": clipped,
    "dapo": clipped,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "luspo": luspo,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}


def covariance(old, advantages, mask) -> np.ndarray:
    """Each token's share of the covariance of log π_old and A over all masked tokens (2505.22617)."""
    places = [(b, t) for b in range(len(mask)) for t in _tokens(mask[b])]
    cov = np.zeros(mask.shape)
    if places:
        mean_logprob = sum(old[p] for p in places) / len(places)
        mean_advantage = sum(advantages[p] for p in places) / len(places)
        for p in places:
            cov[p] = (old[p] - mean_logprob) * (advantages[p] - mean_advantage)
    return cov


def select_clip_cov(cov, mask, noise, cov_ratio: float, cov_low: float, cov_high: float) -> np.ndarray:
    """Of the tokens with cov_low < cov < cov_high, those of least noise: a uniform draw (2505.22617)."""
    places = [(b, t) for b in range(len(mask)) for t in _tokens(mask[b])]
    candidates = sorted((p for p in places if cov_low < cov[p] < cov_high), key=lambda p: noise[p])
    selected = np.zeros(mask.shape, bool)
    for p in candidates[: max(1, math.floor(cov_ratio * len(places)))]:
        selected[p] = True
    return selected


def select_kl_cov(cov, mask, cov_ratio: float) -> np.ndarray:
    """The tokens of greatest covariance (2505.22617); among equals the earlier row, then the earlier token."""
    places = sorted(((b, t) for b in range(len(mask)) for t in _tokens(mask[b])), key=lambda p: -cov[p])
    selected = np.zeros(mask.shape, bool)
    for p in places[: max(1, math.floor(cov_ratio * len(places)))]:
        selected[p] = True
    return selected


def token_mean(values, mask, row_weight, fixed_length=None) -> float:
    """Every token counts alike (DAPO, 2503.14476)."""
    total, weight = 0.0, 0.0
    for b in range(len(mask)):
        for t in _tokens(mask[b]) if row_weight[b] else []:
            total += row_weight[b] * values[b, t]
            weight += row_weight[b]
    return float(total / weight) if weight else 0.0


def sequence_mean(values, mask, row_weight, fixed_length=None) -> float:
    """Every row counts alike (GRPO, 2402.03300). A row without a token does not count."""
    total, weight = 0.0, 0.0
    for b in range(len(mask)):
        tokens = _tokens(mask[b]) if row_weight[b] else []
        if tokens:
            total += row_weight[b] * sum(values[b, t] for t in tokens) / len(tokens)
            weight += row_weight[b]
    return float(total / weight) if weight else 0.0


def sequence_sum_fixed(values, mask, row_weight, fixed_length) -> float:
    """A row's sum over one length for all (Dr. GRPO, 2503.20783). With length 1 it is LUSPO's: |y| times the mean."""
    total, weight = 0.0, 0.0
    for b in range(len(mask)):
        tokens = _tokens(mask[b]) if row_weight[b] else []
        if tokens:
            total += row_weight[b] * sum(values[b, t] for t in tokens)
            weight += row_weight[b]
    return float(total / (weight * fixed_length)) if weight else 0.0


AGGREGATIONS: dict[str, Callable[..., float]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum_fixed": sequence_sum_fixed,
}


def kl(estimator: str, importance_weighted: bool, logprobs: float, old: float, ref: float) -> float:
    """One token's estimate of KL(π ‖ ref) (Schulman's k1, k2, k3); times π / π_old when weighted (2512.02556)."""
    d = logprobs - ref
    if importance_weighted and estimator == "k2":
        raise ValueError("k2 has no importance-weighted form: its weighted gradient is no KL's; choose k1 or k3")
    value = {"k1": d, "k2": d * d / 2.0, "k3": math.exp(-d) + d - 1.0}[estimator]
    return value * math.exp(logprobs - old) if importance_weighted else value


def no_correction(old, sampler, mask, options: dict) -> np.ndarray:
    return np.where(mask, 1.0, 0.0)


def tis(old, sampler, mask, options: dict) -> np.ndarray:
    """Truncated importance sampling: min(w, cap) a token, w = π_old / μ."""
    weights = np.zeros(mask.shape)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            weights[b, t] = min(math.exp(old[b, t] - sampler[b, t]), options["correction_cap"])
    return weights


def icepop(old, sampler, mask, options: dict) -> np.ndarray:
    """IcePop (Ring-1T, 2510.18855): w where it lies in [low, high], else 0."""
    weights = np.zeros(mask.shape)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            w = math.exp(old[b, t] - sampler[b, t])
            weights[b, t] = w if options["correction_low"] <= w <= options["correction_high"] else 0.0
    return weights


def _geometric_mean(old_row, sampler_row, tokens: list[int]) -> float:
    return math.exp(sum(old_row[t] - sampler_row[t] for t in tokens) / len(tokens))


def sequence_mask(old, sampler, mask, options: dict) -> np.ndarray:
    """1 for a row whose geometric mean of w lies in [low, high], else 0."""
    weights = np.zeros(mask.shape)
    for b in range(len(mask)):
        tokens = _tokens(mask[b])
        if tokens:
            g = _geometric_mean(old[b], sampler[b], tokens)
            for t in tokens:
                weights[b, t] = 1.0 if options["correction_low"] <= g <= options["correction_high"] else 0.0
    return weights


def sequence_tis(old, sampler, mask, options: dict) -> np.ndarray:
    """min(g, cap) for every token of a row, g the geometric mean of w."""
    weights = np.zeros(mask.shape)
    for b in range(len(mask)):
        tokens = _tokens(mask[b])
        for t in tokens:
            weights[b, t] = min(_geometric_mean(old[b], sampler[b], tokens), options["correction_cap"])
    return weights


CORRECTIONS: dict[str, Callable[..., np.ndarray]] = {
    "none": no_correction,
    "tis": tis,
    "icepop": icepop,
    "sequence_mask": sequence_mask,
    "sequence_tis": sequence_tis,
}


def opsm(frozen, sampler, advantages, mask, threshold: float) -> np.ndarray:
    """Off-policy sequence masking (DeepSeek-V3.2, 2512.02556): rows [B] kept; `advantages` is [B]."""
    keep = np.ones(len(mask), bool)
    for b in range(len(mask)):
        tokens = _tokens(mask[b])
        if tokens and advantages[b] < 0:
            keep[b] = sum(sampler[b, t] - frozen[b, t] for t in tokens) / len(tokens) <= threshold
    return keep


def _row_advantages(advantages, mask) -> list[float]:
    """One advantage a row; 0 for a row without a token."""
    result = []
    for b in range(len(mask)):
        values = {float(advantages[b, t]) for t in _tokens(mask[b])}
        if len(values) > 1:
            raise ValueError("advantages differ within a row, but OPSM is defined for one advantage a row")
        result.append(values.pop() if values else 0.0)
    return result


def loss(
    data: dict,
    *,
    term: str,
    options: dict,
    aggregation: str,
    fixed_length: float | None = None,
    kl_estimator: str = "k3",
    kl_importance_weighted: bool = False,
    kl_coef: float = 0.0,
    entropy_coef: float = 0.0,
    correction: str = "none",
    correction_options: dict | None = None,
    opsm_threshold: float | None = None,
) -> dict[str, float]:
    """The whole loss and its three parts, coefficients and signs included: loss = policy + kl + entropy.

    A row of weight 0 counts nowhere. What a correction or OPSM puts to 0 stays in the denominator.
    """
    row_weight = np.asarray(data["row_weight"], np.float64)
    mask = np.asarray(data["mask"], bool) & (row_weight > 0)[:, None]
    frozen, old, sampler, ref = data["frozen"], data["old"], data["sampler"], data["ref"]
    advantages = np.asarray(data["advantages"], np.float64)
    if advantages.ndim == 1:
        advantages = np.repeat(advantages[:, None], mask.shape[1], axis=1)

    def aggregate(values: np.ndarray) -> float:
        return AGGREGATIONS[aggregation](values, mask, row_weight, fixed_length)

    values = POLICY_TERMS[term](data["logprobs"], frozen, old, advantages, mask, data["selected"], options)
    weights = CORRECTIONS[correction](old, sampler, mask, correction_options or {})
    keep = np.ones(len(mask), bool)
    if opsm_threshold is not None:
        keep = opsm(frozen, sampler, _row_advantages(advantages, mask), mask, opsm_threshold)
    penalty, entropy = np.zeros(mask.shape), np.zeros(mask.shape)
    for b in range(len(mask)):
        for t in _tokens(mask[b]):
            values[b, t] *= weights[b, t] * keep[b]
            entropy[b, t] = data["entropy"][b, t]
            if ref is not None:
                penalty[b, t] = kl(kl_estimator, kl_importance_weighted, data["logprobs"][b, t], old[b, t], ref[b, t])
    policy_loss, kl_loss, entropy_loss = aggregate(values), kl_coef * aggregate(penalty), -entropy_coef * aggregate(entropy)
    return {
        "loss": policy_loss + kl_loss + entropy_loss,
        "policy_loss": policy_loss,
        "kl_loss": kl_loss,
        "entropy_loss": entropy_loss,
    }


def gradient_wrt_logprobs(function_of_logprobs: Callable[[np.ndarray], float], at, step: float = 1e-5) -> np.ndarray:
    """Central differences [B, T]. The function must hold `frozen` still: `lambda x: loss({**data, "logprobs": x}, ...)`."""
    return gradient(function_of_logprobs, at, step)
