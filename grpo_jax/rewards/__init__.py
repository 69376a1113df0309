"""Verifiers that turn a completion into a number: mathematics, code in a sandbox, format, language, termination, shaping by
length and repetition, and their sum. Host side, no jax."""

from grpo_jax.rewards.code import CodeConfig, Limits, ProgramResult, SandboxFault, code_reward, run_python
from grpo_jax.rewards.composite import CompositeReward, PendingRewards
from grpo_jax.rewards.config import RewardConfig
from grpo_jax.rewards.format import format_reward
from grpo_jax.rewards.language import LanguageConfig, charset_reward, language_reward
from grpo_jax.rewards.length import CosineLengthConfig, cosine_length_reward
from grpo_jax.rewards.mathematics import (
    EQUALITIES,
    EXTRACTORS,
    MathConfig,
    accuracy_reward,
    equal_final,
    equal_value,
    equality,
    math_reward,
)
from grpo_jax.rewards.overlong import OverlongConfig, overlong_reward
from grpo_jax.rewards.pool import PoolClosed, PoolConfig
from grpo_jax.rewards.protocol import AsyncReward, BatchReward, End, Reward, RewardInput
from grpo_jax.rewards.registry import REWARD_NAMES, resolve_reward
from grpo_jax.rewards.repetition import RepetitionConfig, ngram_repetition, repetition_reward
from grpo_jax.rewards.result import RewardFailure, RewardResult, joined_results
from grpo_jax.rewards.termination import ended_after

__all__ = [
    "EQUALITIES",
    "EXTRACTORS",
    "REWARD_NAMES",
    "AsyncReward",
    "BatchReward",
    "CodeConfig",
    "CompositeReward",
    "CosineLengthConfig",
    "End",
    "LanguageConfig",
    "Limits",
    "MathConfig",
    "OverlongConfig",
    "PendingRewards",
    "PoolClosed",
    "PoolConfig",
    "ProgramResult",
    "RepetitionConfig",
    "Reward",
    "RewardConfig",
    "RewardFailure",
    "RewardInput",
    "RewardResult",
    "SandboxFault",
    "accuracy_reward",
    "charset_reward",
    "code_reward",
    "cosine_length_reward",
    "ended_after",
    "equal_final",
    "equal_value",
    "equality",
    "format_reward",
    "joined_results",
    "language_reward",
    "math_reward",
    "ngram_repetition",
    "overlong_reward",
    "repetition_reward",
    "resolve_reward",
    "run_python",
]
