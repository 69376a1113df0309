"""Rewards that are wrong on purpose, for the studies of what goes wrong with them."""

import re

from grpo_jax.rewards import RewardInput


def number_anywhere(row: RewardInput) -> float:
    """1 where the reference stands anywhere in the completion, whatever else does and however it ends."""
    return float(row.reference in re.findall(r"-?\d+", row.completion))


def brevity(row: RewardInput) -> float:
    """The shorter the better: 1 for an empty completion, 0 from 40 tokens on."""
    return max(0.0, 1.0 - len(row.ids) / 40)


def never(row: RewardInput) -> float:
    """0 for every completion."""
    return 0.0
