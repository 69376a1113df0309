"""The distribution a sampler draws from, in NumPy float64: one row at a time, by sorting, as the filters are defined."""

import numpy as np


def distribution(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray:
    """Probabilities [V] of one row of logits [V]; the filters apply in the order of the arguments."""
    scaled = np.asarray(logits, np.float64) / temperature
    ranked = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    kept = ranked if top_k is None else ranked[:top_k]
    if top_p < 1:
        share = _normalised(scaled, kept)
        nucleus: list[int] = []
        total = 0.0
        for token in kept:
            if total >= top_p:
                break
            nucleus.append(token)
            total += share[token]
        kept = nucleus
    if min_p > 0:
        share = _normalised(scaled, kept)
        kept = [token for token in kept if share[token] >= min_p * share.max()]
    return _normalised(scaled, kept)


def _normalised(scaled: np.ndarray, kept: list[int]) -> np.ndarray:
    probabilities = np.zeros(len(scaled))
    weights = np.exp(scaled[kept] - scaled[kept].max())
    probabilities[kept] = weights / weights.sum()
    return probabilities
