"""Advantages in NumPy float64, one row and one token at a time straight from the papers."""

import numpy as np

# (baseline, scale) of each paper; GDPO is a recipe of its own.
PAPERS = {
    "grpo": ("group_mean", "group_std"),
    "dr_grpo": ("group_mean", "none"),
    "rloo": ("leave_one_out", "none"),
    "max_rl": ("group_mean", "group_mean"),
    "reinforce_pp": ("batch_mean", "batch_std"),
    "opo": ("length_weighted", "none"),
    "lite_ppo": ("group_mean", "batch_std"),
    "reinforce": ("none", "none"),
}


def _baseline(name: str, row: int, group: dict[int, float], batch: dict[int, float], lengths) -> float | None:
    """What is subtracted from the reward of `row`; None where there is no such thing."""
    if name == "none":
        return 0.0
    if name == "batch_mean":
        return sum(batch.values()) / len(batch) if len(set(batch.values())) > 1 else None
    if len(set(group.values())) < 2:
        return None
    if name == "group_mean":
        return sum(group.values()) / len(group)
    if name == "leave_one_out":
        others = [reward for other, reward in group.items() if other != row]
        return sum(others) / len(others)
    tokens = sum(float(lengths[other]) for other in group)
    return sum(float(lengths[other]) * reward for other, reward in group.items()) / tokens if tokens else None


def _spread(values, ddof: int) -> float | None:
    values = list(values)
    if len(set(values)) < 2:
        return None
    mean = sum(values) / len(values)
    return float(np.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - ddof)))


def _scale(name: str, group: dict[int, float], batch: dict[int, float], ddof: int, epsilon: float) -> float | None:
    """What the row's difference is divided by; None where it cannot be."""
    if name == "none":
        return 1.0
    if name == "group_mean":
        mean = sum(group.values()) / len(group)
        positive = mean > 1e-7 * max(abs(reward) for reward in group.values())
        return mean if positive and len(set(group.values())) > 1 else None
    spread = _spread((group if name == "group_std" else batch).values(), ddof)
    return None if spread is None else spread + epsilon


def _known(values, start: int, stop: int) -> dict[int, float]:
    return {row: float(values[row]) for row in range(start, stop) if np.isfinite(values[row])}


def advantages(rewards, group_size: int, baseline: str, scale: str, *, ddof=0, epsilon=1e-6, lengths=None):
    """Advantages and which rows have one."""
    batch = _known(rewards, 0, len(rewards))
    result, live = np.zeros(len(rewards)), np.zeros(len(rewards), bool)
    for row in batch:
        start = row - row % group_size
        group = _known(rewards, start, start + group_size)
        subtracted = _baseline(baseline, row, group, batch, lengths)
        divisor = _scale(scale, group, batch, ddof, epsilon)
        if subtracted is not None and divisor is not None:
            result[row], live[row] = (batch[row] - subtracted) / divisor, True
    return result, live


def gdpo(rewards, group_size: int, components, weights, *, ddof=0, epsilon=1e-6):
    """GDPO's equations 4 to 6, with components that do not apply to every row."""
    rows = [
        row
        for row in range(len(rewards))
        if np.isfinite(rewards[row]) and any(np.isfinite(values[row]) for values in components.values())
    ]
    sums = dict.fromkeys(rows, 0.0)
    size = dict.fromkeys(rows, 0.0)
    touched = set()
    for name, values in components.items():
        for start in range(0, len(rewards), group_size):
            group = {row: value for row, value in _known(values, start, start + group_size).items() if row in sums}
            spread = _spread(group.values(), ddof)
            if spread is None or weights[name] == 0:
                continue
            mean = sum(group.values()) / len(group)
            for row, value in group.items():
                sums[row] += weights[name] * (value - mean) / (spread + epsilon)
                size[row] += abs(weights[name] * (value - mean) / (spread + epsilon))
                touched.add(row)
    for row in rows:
        if abs(sums[row]) < 1e-6 * max(size.values()):
            sums[row] = 0.0
    spread = _spread(sums.values(), ddof)
    result, live = np.zeros(len(rewards)), np.zeros(len(rewards), bool)
    for row in touched if spread is not None else ():
        start = row - row % group_size
        if len({sums[other] for other in rows if start <= other < start + group_size}) > 1:
            result[row] = (sums[row] - sum(sums.values()) / len(sums)) / (spread + epsilon)
            live[row] = True
    return result, live


def estimate(estimator: str, rewards, group_size: int, *, ddof=0, epsilon=1e-6, lengths=None, components=None, weights=None):
    """The advantages of a named estimator, and which rows have one."""
    if estimator == "gdpo":
        return gdpo(rewards, group_size, components, weights, ddof=ddof, epsilon=epsilon)
    baseline, scale = PAPERS[estimator]
    return advantages(rewards, group_size, baseline, scale, ddof=ddof, epsilon=epsilon, lengths=lengths)


def gae(rewards, values, mask, discount: float, decay: float) -> np.ndarray:
    """A_t as the sum over l of (γλ)^l δ_{t+l}, written out (Schulman et al., 1506.02438, eq. 16)."""
    result = np.zeros(np.shape(mask))
    for row in range(len(mask)):
        tokens = np.flatnonzero(mask[row])
        for place, token in enumerate(tokens):
            for ahead, later in enumerate(tokens[place:]):
                following = float(values[row, later + 1]) if later != tokens[-1] else 0.0
                residual = float(rewards[row, later]) + discount * following - float(values[row, later])
                result[row, token] += (discount * decay) ** ahead * residual
    return result
