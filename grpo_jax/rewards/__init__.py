"""Verifiers that turn a completion into a number: accuracy, format, termination, shaping by length and repetition, and
their sum. Host side, no jax."""

from grpo_jax.rewards.accuracy import accuracy_reward
from grpo_jax.rewards.answers import EXTRACTORS
from grpo_jax.rewards.composite import CompositeReward, RewardConfig, RewardResult
from grpo_jax.rewards.equality import EQUALITIES, equal_final, equal_value
from grpo_jax.rewards.format import format_reward
from grpo_jax.rewards.length import CosineLengthConfig, cosine_length_reward
from grpo_jax.rewards.overlong import OverlongConfig, overlong_reward
from grpo_jax.rewards.protocol import End, Reward, RewardInput
from grpo_jax.rewards.registry import REWARDS, resolve_reward
from grpo_jax.rewards.repetition import RepetitionConfig, ngram_repetition, repetition_reward
from grpo_jax.rewards.termination import ended_after

__all__ = [
    "EQUALITIES",
    "EXTRACTORS",
    "REWARDS",
    "CompositeReward",
    "CosineLengthConfig",
    "End",
    "OverlongConfig",
    "RepetitionConfig",
    "Reward",
    "RewardConfig",
    "RewardInput",
    "RewardResult",
    "accuracy_reward",
    "cosine_length_reward",
    "ended_after",
    "equal_final",
    "equal_value",
    "format_reward",
    "ngram_repetition",
    "overlong_reward",
    "repetition_reward",
    "resolve_reward",
]
