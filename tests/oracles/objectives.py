"""The objectives in NumPy float64, written out one token at a time straight from the papers."""

from collections.abc import Callable

import numpy as np

LIMIT = 20.0


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def kl_divergence(log_p: np.ndarray, log_q: np.ndarray) -> float:
    return float(sum(np.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True)))


def token_stats(hidden, kernel, tokens, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    hidden, kernel = np.asarray(hidden, np.float64), np.asarray(kernel, np.float64)
    rows, width = tokens.shape
    logprobs, entropy = np.zeros((rows, width)), np.zeros((rows, width))
    for row in range(rows):
        for index in range(1, width):
            log_p = log_softmax(hidden[row, index - 1] @ kernel / temperature)
            logprobs[row, index] = log_p[tokens[row, index]]
            entropy[row, index] = -np.sum(np.exp(log_p) * log_p)
    return logprobs, entropy


def completion_mask(prompt_lengths, lengths, width: int) -> np.ndarray:
    return np.array([[p <= t < n and t > 0 for t in range(width)] for p, n in zip(prompt_lengths, lengths, strict=True)])


def group_advantages(rewards, group_size: int, baseline: str, scale: str, epsilon: float):
    advantages, live = [], []
    for start in range(0, len(rewards), group_size):
        group = [float(r) for r in rewards[start : start + group_size]]
        known = [r for r in group if np.isfinite(r)]
        differs = len(set(known)) > 1
        for reward in group:
            live.append(bool(np.isfinite(reward)) and (differs or (baseline, scale) == ("none", "none")))
            if not live[-1]:
                advantages.append(0.0)
                continue
            value = reward - (np.mean(known) if baseline == "group_mean" else 0.0)
            advantages.append(value / (np.std(known, ddof=0) + epsilon if scale == "group_std" else 1.0))
    return np.array(advantages), np.array(live)


def surrogate(logprob: float, old: float, advantage: float, clip_low: float, clip_high: float) -> float:
    ratio = np.exp(np.clip(logprob - old, -LIMIT, LIMIT))
    return -min(ratio * advantage, float(np.clip(ratio, 1 - clip_low, 1 + clip_high)) * advantage)


def k3(logprob: float, ref: float) -> float:
    d = np.clip(logprob - ref, -LIMIT, LIMIT)
    return float(np.exp(-d) + d - 1)


def grpo(
    logprobs,
    old,
    ref,
    sampler,
    advantages,
    row_weight,
    mask,
    entropy,
    *,
    clip_low: float,
    clip_high: float,
    kl_coef: float,
    aggregation: str,
) -> dict[str, float]:
    """The loss and every metric of a whole batch."""
    rows = []  # per counted row: weight, and its tokens' (policy, KL) losses
    ratios, kls, entropies, gaps, lows, highs, ratio_clamped, kl_clamped = [], [], [], [], [], [], 0, 0
    for b in range(len(mask)):
        losses = []
        if row_weight[b] == 0:
            continue
        for t in np.flatnonzero(mask[b]):
            new, before, reference = float(logprobs[b, t]), float(old[b, t]), float(ref[b, t])
            advantage = float(advantages[b])
            losses.append((surrogate(new, before, advantage, clip_low, clip_high), kl_coef * k3(new, reference)))
            ratio = np.exp(np.clip(new - before, -LIMIT, LIMIT))
            ratios.append(ratio)
            lows.append(ratio < 1 - clip_low and advantage < 0)
            highs.append(ratio > 1 + clip_high and advantage > 0)
            kls.append(k3(new, reference))
            entropies.append(float(entropy[b, t]))
            gaps.append(before - float(sampler[b, t]))
            ratio_clamped += abs(new - before) > LIMIT
            kl_clamped += abs(new - reference) > LIMIT
        if losses:
            rows.append((row_weight[b], np.array(losses)))
    if aggregation == "sequence_mean":
        policy, penalty = sum(w * v.mean(0) for w, v in rows) / sum(w for w, _ in rows) if rows else (0.0, 0.0)
    else:
        policy, penalty = sum(w * v.sum(0) for w, v in rows) / sum(w * len(v) for w, v in rows) if rows else (0.0, 0.0)
    weights = np.exp(np.clip(gaps, -LIMIT, LIMIT))
    return {
        "loss": policy + penalty,
        "policy_loss": policy,
        "kl_loss": penalty,
        "kl": np.mean(kls),
        "entropy": np.mean(entropies),
        "ratio_mean": np.mean(ratios),
        "ratio_min": np.min(ratios),
        "ratio_max": np.max(ratios),
        "clip_fraction_low": np.mean(lows),
        "clip_fraction_high": np.mean(highs),
        "ratio_clamped": ratio_clamped,
        "kl_clamped": kl_clamped,
        # Unbiased for KL(sampler ‖ policy at rollout): E[w] = 1, so E[w − 1 − log w] = E[−log w].
        "mismatch_kl": np.mean([w - 1 - np.log(w) for w in weights]),
        "mismatch_max": np.max(np.abs(gaps)),
        "ess": weights.sum() ** 2 / (len(weights) * (weights**2).sum()),
        "tokens": len(ratios),
    }


def gradient(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central differences."""
    at = np.asarray(at, np.float64)
    result = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[index] += step
        down[index] -= step
        result[index] = (function(up) - function(down)) / (2 * step)
    return result
