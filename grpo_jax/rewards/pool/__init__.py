"""Processes that judge rows while the trainer does other things."""

from grpo_jax.rewards.pool.config import PoolConfig
from grpo_jax.rewards.pool.pool import PendingVerdicts, PoolClosed, RewardPool

__all__ = ["PendingVerdicts", "PoolClosed", "PoolConfig", "RewardPool"]
