"""Termination: 1 where a completion ended when it should have, 0 elsewhere.

A reward for the right number alone never teaches a policy to stop.
"""

from grpo_jax.rewards.protocol import Reward, RewardInput


def ended_after(closing: str) -> Reward:
    """A reward for an eos token straight after `closing`; anything between the two scores 0."""

    def termination(row: RewardInput) -> float:
        return float(row.end == "eos" and row.completion.endswith(closing))

    return termination


def ended(row: RewardInput) -> float:
    """1 where the completion ended by an eos token, wherever."""
    return float(row.end == "eos")
