"""Verifiers that turn a completion into a number: accuracy, format, termination, shaping by length and repetition, and
their sum. Host side, no jax."""

from grpo_jax.rewards.composite import CompositeReward, PendingRewards
from grpo_jax.rewards.config import RewardConfig
from grpo_jax.rewards.format import format_reward
from grpo_jax.rewards.length import CosineLengthConfig, cosine_length_reward
from grpo_jax.rewards.mathematics.accuracy import accuracy_reward
from grpo_jax.rewards.mathematics.answers import EXTRACTORS
from grpo_jax.rewards.mathematics.equality import EQUALITIES, equal_final, equal_value
from grpo_jax.rewards.overlong import OverlongConfig, overlong_reward
from grpo_jax.rewards.pool import PoolClosed
from grpo_jax.rewards.pool_config import PoolConfig
from grpo_jax.rewards.protocol import AsyncReward, BatchReward, End, Reward, RewardInput
from grpo_jax.rewards.registry import REWARDS, resolve_reward
from grpo_jax.rewards.repetition import RepetitionConfig, ngram_repetition, repetition_reward
from grpo_jax.rewards.result import RewardFailure, RewardResult, joined_results
from grpo_jax.rewards.termination import ended_after

__all__ = [
    "EQUALITIES",
    "EXTRACTORS",
    "REWARDS",
    "AsyncReward",
    "BatchReward",
    "CompositeReward",
    "CosineLengthConfig",
    "End",
    "OverlongConfig",
    "PendingRewards",
    "PoolClosed",
    "PoolConfig",
    "RepetitionConfig",
    "Reward",
    "RewardConfig",
    "RewardFailure",
    "RewardInput",
    "RewardResult",
    "accuracy_reward",
    "cosine_length_reward",
    "ended_after",
    "equal_final",
    "equal_value",
    "format_reward",
    "joined_results",
    "ngram_repetition",
    "overlong_reward",
    "repetition_reward",
    "resolve_reward",
]
