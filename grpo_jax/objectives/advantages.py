"""Advantages: how much better a completion did than the others of its prompt."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

__all__ = ["AdvantageConfig", "AdvantageStats", "Advantages", "group_advantages"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """What is subtracted from a reward and what the difference is divided by; the two are chosen apart.

    GRPO is group_mean with group_std (DeepSeekMath, 2402.03300); Dr. GRPO is group_mean with none (2503.20783);
    REINFORCE is none with none.

    Attributes:
        baseline: What is subtracted: `group_mean`, the mean reward of the row's group, or `none`.
        scale: What is divided by: `group_std`, the population standard deviation (ddof 0) of the group plus
            epsilon, or `none`.
        epsilon: Added to the standard deviation; in units of reward.
    """

    baseline: Literal["group_mean", "none"] = "group_mean"
    scale: Literal["group_std", "none"] = "group_std"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        for key, value, known in (
            ("baseline", self.baseline, tuple(_BASELINES)),
            ("scale", self.scale, tuple(_SCALES)),
        ):
            if value not in known:
                raise ValueError(f"{key} is {value!r}, but it must be one of {', '.join(known)}")
        if not 0.0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon is {self.epsilon!r}, but it must be a positive number: it keeps 0/0 away")

    @property
    def compares_group(self) -> bool:
        """Whether an advantage depends on the other rows of its group."""
        return self.baseline == "group_mean" or self.scale == "group_std"

    @property
    def smallest_group(self) -> int:
        """The least group size that can give a signal: a group of one has nothing to be compared with."""
        return 2 if self.compares_group else 1


class _Groups(NamedTuple):
    """The statistics of each group, over its rewards that are not missing. Values are measured from the group's
    least reward (`floor`), so that rewards that nearly agree keep all their digits."""

    above_floor: Any  # [groups, G], 0 where missing
    valid: Any  # [groups, G]
    floor: Any  # [groups, 1]
    mean_above_floor: Any  # [groups, 1]
    std: Any  # [groups, 1]


def _group_statistics(xp: ModuleType, rewards: Any) -> _Groups:
    valid = xp.isfinite(rewards)
    count = xp.maximum(xp.sum(valid, axis=1, keepdims=True), 1).astype(rewards.dtype)
    floor = xp.min(xp.where(valid, rewards, xp.inf), axis=1, keepdims=True)
    floor = xp.where(xp.isfinite(floor), floor, 0)
    above_floor = xp.where(valid, rewards, floor) - floor
    mean = xp.sum(above_floor, axis=1, keepdims=True) / count
    # Two passes: E[x²] − E[x]² in float32 is below zero for rewards that nearly agree.
    centred = xp.where(valid, above_floor - mean, 0)
    std = xp.sqrt(xp.sum(centred * centred, axis=1, keepdims=True) / count)
    return _Groups(above_floor=above_floor, valid=valid, floor=floor, mean_above_floor=mean, std=std)


_BASELINES: dict[str, Callable[[_Groups], Any]] = {
    "group_mean": lambda groups: groups.above_floor - groups.mean_above_floor,
    "none": lambda groups: groups.above_floor + groups.floor,
}
_SCALES: dict[str, Callable[[_Groups, float], Any]] = {
    "group_std": lambda groups, epsilon: groups.std + epsilon,
    "none": lambda groups, epsilon: 1.0,
}


class AdvantageStats(NamedTuple):
    """Scalars of the whole batch of groups.

    Attributes:
        frac_zero_std: fraction of groups whose rewards all agree, or of which at most one is not missing.
        group_std_mean: mean over groups of the population standard deviation of their rewards.
        missing_rewards: rows whose reward is missing.
    """

    frac_zero_std: Float[jax.Array | np.ndarray, ""]
    group_std_mean: Float[jax.Array | np.ndarray, ""]
    missing_rewards: Float[jax.Array | np.ndarray, ""]


class Advantages(NamedTuple):
    """What `group_advantages` gives.

    Attributes:
        advantages_B: finite always.
        live_B: True for a row that carries a signal: it has a reward and, where rows are compared, its group's
            rewards differ.
        stats: scalars for the log.
    """

    advantages_B: Float[jax.Array | np.ndarray, " B"]
    live_B: Bool[jax.Array | np.ndarray, " B"]
    stats: AdvantageStats


def group_advantages(rewards_B: Float[jax.Array | np.ndarray, " B"], group_size: int, config: AdvantageConfig) -> Advantages:
    """(r − baseline) / scale, with the statistics of each group of `group_size` neighbouring rows.

    Args:
        rewards_B: one reward a row; the rows of a prompt stand together. NaN is a missing reward (so is an infinite
            one): the row's advantage is 0 and it has no part in its group's statistics.
        group_size: G, samples per prompt.
        config: the baseline and the scale.

    Rewards that all agree, and a group with a single reward, give exactly 0 wherever a statistic of the group is
    used. NumPy in gives NumPy out (on the host, nothing is dispatched to a device), jax in gives jax out; both are
    float32.

    Raises:
        ValueError: rewards_B is not one-dimensional or is no whole number of groups.
    """
    xp: ModuleType = jax.numpy if isinstance(rewards_B, jax.Array) else np
    rewards = xp.asarray(rewards_B, dtype=xp.float32)
    if rewards.ndim != 1 or group_size < 1 or rewards.size % group_size:
        raise ValueError(
            f"rewards have shape {rewards.shape} and group_size is {group_size}, but rewards must be one row of whole "
            "groups: prompts × group_size values, the rows of one prompt next to each other"
        )
    groups = _group_statistics(xp, rewards.reshape(-1, group_size))
    # By comparison, not by std == 0: a rounded mean can leave equal rewards a standard deviation of an ulp.
    differs = xp.max(groups.above_floor, axis=1, keepdims=True) > 0
    advantages = _BASELINES[config.baseline](groups) / _SCALES[config.scale](groups, config.epsilon)
    signal = groups.valid & (differs | (not config.compares_group))
    return Advantages(
        advantages_B=xp.where(signal, advantages, 0).astype(xp.float32).reshape(-1),
        live_B=signal.reshape(-1),
        stats=AdvantageStats(
            frac_zero_std=xp.mean(~differs, dtype=xp.float32),
            group_std_mean=xp.mean(xp.where(differs, groups.std, 0), dtype=xp.float32),
            missing_rewards=xp.sum(~groups.valid, dtype=xp.float32),
        ),
    )
