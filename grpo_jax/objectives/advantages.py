"""Advantages: how much better a completion did than those it is compared with."""

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from grpo_jax.objectives.advantage_estimators import (
    ADVANTAGE_ESTIMATORS,
    BASELINES,
    SCALES,
    AdvantageEstimator,
    Compared,
    reward_set,
    standard_deviation,
)

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AdvantageConfig",
    "AdvantageEstimator",
    "AdvantageStats",
    "Advantages",
    "group_advantages",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """What is subtracted from a reward and what the difference is divided by.

    An estimator names a published pair; each part of it can be replaced alone.

    Attributes:
        estimator: `grpo` (2402.03300): group_mean, group_std. `dr_grpo` (2503.20783): group_mean, none. `rloo`
            (2402.14740): leave_one_out, none. `max_rl` (2602.02710): group_mean, group_mean; for rewards of 0 or more.
            `gdpo` (2601.05242): each component of the reward normalised in its group, their weighted sum normalised
            over the batch. `reinforce_pp` (2501.03262): batch_mean, batch_std. `opo` (2505.23585): length_weighted,
            none. `lite_ppo` (2508.08221): group_mean, batch_std. `reinforce`: none, none.
        baseline: What is subtracted: `group_mean`, the mean reward of the row's group; `leave_one_out`, that of the
            group's other rows; `length_weighted`, Σ length · reward / Σ length of the group, lengths in completion
            tokens; `batch_mean`, the mean of all rows; `none`. null is the estimator's own. Not with gdpo.
        scale: What is divided by: `group_std`, the standard deviation of the group plus epsilon; `batch_std`, that
            of all rows; `group_mean`, the group's mean reward; `none`. null is the estimator's own. Not with gdpo.
        ddof: A standard deviation divides by n − ddof: 0 is the population's, 1 the sample's. null is the estimator's
            own, 0. Only where a standard deviation divides.
        epsilon: Added to the standard deviation; in units of reward. null is the estimator's own, 1e-6. Only where a
            standard deviation divides.
    """

    estimator: Literal["grpo", "dr_grpo", "rloo", "max_rl", "gdpo", "reinforce_pp", "opo", "lite_ppo", "reinforce"] = "grpo"
    baseline: Literal["group_mean", "leave_one_out", "length_weighted", "batch_mean", "none"] | None = None
    scale: Literal["group_std", "batch_std", "group_mean", "none"] | None = None
    ddof: Literal[0, 1] | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        for key, value, known in (
            ("estimator", self.estimator, tuple(ADVANTAGE_ESTIMATORS)),
            ("baseline", self.baseline, (None, *BASELINES)),
            ("scale", self.scale, (None, *SCALES)),
        ):
            if value not in known:
                names = ", ".join("null" if name is None else name for name in known)
                raise ValueError(f"{key} is {value!r}, but it must be one of {names}")
        if self.ddof is not None and (isinstance(self.ddof, bool) or self.ddof not in (0, 1)):
            raise ValueError(f"ddof is {self.ddof!r}, but it must be 0 (population) or 1 (sample)")
        if self.epsilon is not None and not 0.0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon is {self.epsilon!r}, but it must be a positive number: it keeps 0/0 away")
        if not ADVANTAGE_ESTIMATORS[self.estimator].parts:
            for key, value in (("baseline", self.baseline), ("scale", self.scale)):
                if value is not None:
                    raise ValueError(
                        f"{key} is {value!r}, but the estimator {self.estimator} has no use for it, its order is fixed; "
                        "leave it null, or choose another estimator"
                    )
        resolved = self.resolved
        for key, number in (("ddof", self.ddof), ("epsilon", self.epsilon)):
            if number is not None and not resolved.divides_by_std:
                stds = " or ".join(name for name, part in SCALES.items() if part.is_std)
                raise ValueError(
                    f"{key} is {number!r}, but the estimator {self.estimator} with scale {resolved.scale} has no use for "
                    f"it; leave it null, or choose the scale {stds}"
                )

    @property
    def resolved(self) -> AdvantageEstimator:
        """The estimator, its parts replaced by those that are given."""
        given = {key: value for key in ("baseline", "scale", "ddof", "epsilon") if (value := getattr(self, key)) is not None}
        return dataclasses.replace(ADVANTAGE_ESTIMATORS[self.estimator], **given)

    @property
    def compares_group(self) -> bool:
        """Whether an advantage depends on a statistic of its group."""
        return self.resolved.compares_group

    @property
    def smallest_group(self) -> int:
        """The least group size that can give a signal: a group of one has nothing to be compared with."""
        return 2 if self.compares_group else 1

    @property
    def needs_lengths(self) -> bool:
        """Whether `group_advantages` needs lengths_B."""
        return self.resolved.needs_lengths

    @property
    def needs_components(self) -> bool:
        """Whether `group_advantages` needs components and weights."""
        return self.resolved.needs_components


class AdvantageStats(NamedTuple):
    """Scalars of the whole batch of groups.

    Attributes:
        frac_zero_std: fraction of groups whose rewards all agree, or of which at most one is not missing.
        group_std_mean: mean over groups of the population standard deviation of their rewards.
        missing_rewards: rows whose reward is missing.
        groups_of_one: groups with a single reward that is not missing.
        groups_undefined: groups with a reward for which the baseline or the scale has no value: a mean reward of 0 or
            less under the scale group_mean, no completion token at all under the baseline length_weighted.
        groups_without_signal: groups without a live row, for whatever reason.
        components_left_out: components that do not apply to a row that has a reward, counted over rows and
            components; 0 where the estimator does not look at components.
    """

    frac_zero_std: Float[jax.Array | np.ndarray, ""]
    group_std_mean: Float[jax.Array | np.ndarray, ""]
    missing_rewards: Float[jax.Array | np.ndarray, ""]
    groups_of_one: Float[jax.Array | np.ndarray, ""]
    groups_undefined: Float[jax.Array | np.ndarray, ""]
    groups_without_signal: Float[jax.Array | np.ndarray, ""]
    components_left_out: Float[jax.Array | np.ndarray, ""]


class Advantages(NamedTuple):
    """What `group_advantages` gives.

    Attributes:
        advantages_B: finite always.
        live_B: True for a row that carries a signal: it has a reward, and the rewards that it is compared with differ.
        stats: scalars for the log.
    """

    advantages_B: Float[jax.Array | np.ndarray, " B"]
    live_B: Bool[jax.Array | np.ndarray, " B"]
    stats: AdvantageStats


def group_advantages(
    rewards_B: Float[jax.Array | np.ndarray, " B"],
    group_size: int,
    config: AdvantageConfig,
    *,
    lengths_B: Float[jax.Array | np.ndarray, " B"] | None = None,
    components: Mapping[str, Float[jax.Array | np.ndarray, " B"]] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Advantages:
    """(r − baseline) / scale, with the statistics of each group of `group_size` neighbouring rows and of the batch.

    Args:
        rewards_B: one reward a row; the rows of a prompt stand together. NaN is a missing reward (so is an infinite
            one): the row's advantage is 0 and it has no part in any statistic.
        group_size: G, samples per prompt.
        config: the estimator.
        lengths_B: completion tokens of each row, for a baseline that needs them; one that is no positive number
            weighs nothing.
        components: the parts of the reward by name, each [B], for an estimator that needs them. NaN is one that does
            not apply to the row: it is left out of the component's statistics and of the row's sum. A row that none
            applies to has a missing reward.
        weights: the weight of each component, with the same names.

    Lengths, components and weights that the estimator does not need are not read. Where a statistic of the group is
    used, rewards of a group that all agree, and the only reward of a group, give exactly 0; where one of the batch is
    used, so do rewards of the batch that all agree. A group whose mean is 0 or less, which would turn a sign or divide
    by 0, gives 0 under the scale group_mean. All these are counted in the stats.

    NumPy in gives NumPy out (on the host, nothing is dispatched to a device), jax in gives jax out; both are float32.

    Raises:
        ValueError: rewards_B is not one-dimensional or is no whole number of groups; what the estimator needs is
            missing or of another shape.
    """
    xp: ModuleType = jax.numpy if isinstance(rewards_B, jax.Array) else np
    rewards = xp.asarray(rewards_B, dtype=xp.float32)
    if rewards.ndim != 1 or group_size < 1 or not rewards.size or rewards.size % group_size:
        raise ValueError(
            f"rewards have shape {rewards.shape} and group_size is {group_size}, but rewards must be one row of whole "
            "groups: prompts × group_size values, the rows of one prompt next to each other"
        )
    estimator = config.resolved
    lengths = None
    if estimator.needs_lengths:
        if lengths_B is None:
            raise ValueError(
                f"lengths_B is None, but the baseline {estimator.baseline} must have the completion tokens of each row"
            )
        lengths = _by_group(xp, "lengths_B", lengths_B, rewards.shape, group_size)
    parts: dict[str, Any] = {}
    if estimator.needs_components:
        for key, value in (("components", components), ("weights", weights)):
            if not value:
                raise ValueError(f"{key} is {value!r}, but the estimator {config.estimator} must have at least one")
        assert components is not None and weights is not None
        if components.keys() != weights.keys():
            raise ValueError(
                f"weights is for {sorted(weights)}, but it must have one weight for each of the components "
                f"{sorted(components)}"
            )
        parts = {
            name: _by_group(xp, f"components[{name!r}]", values, rewards.shape, group_size)
            for name, values in components.items()
        }

    rewards = rewards.reshape(-1, group_size)
    valid = xp.isfinite(rewards)
    if parts:
        valid = valid & xp.any(xp.stack([xp.isfinite(values) for values in parts.values()]), axis=0)
    groups = reward_set(xp, rewards, valid)
    compared = Compared(
        xp=xp,
        groups=groups,
        batch=reward_set(xp, rewards.reshape(1, -1), valid.reshape(1, -1)),
        lengths=lengths,
        components=parts,
        weights=dict(weights) if parts and weights else {},
    )
    estimate = estimator.estimate(compared, estimator)
    known = xp.sum(valid, axis=1, keepdims=True)
    left_out = sum((xp.sum(valid & ~xp.isfinite(values), dtype=xp.float32) for values in parts.values()), xp.float32(0))
    return Advantages(
        advantages_B=xp.where(estimate.signal, estimate.advantages, 0).astype(xp.float32).reshape(-1),
        live_B=estimate.signal.reshape(-1),
        stats=AdvantageStats(
            frac_zero_std=xp.mean(~groups.differs, dtype=xp.float32),
            group_std_mean=xp.mean(xp.where(groups.differs, standard_deviation(xp, groups, 0), 0), dtype=xp.float32),
            missing_rewards=xp.sum(~valid, dtype=xp.float32),
            groups_of_one=xp.sum(known == 1, dtype=xp.float32),
            groups_undefined=xp.sum((known > 0) & ~estimate.defined, dtype=xp.float32),
            groups_without_signal=xp.sum(~xp.any(estimate.signal, axis=1), dtype=xp.float32),
            components_left_out=left_out,
        ),
    )


def _by_group(xp: ModuleType, name: str, values_B: Any, shape: tuple[int, ...], group_size: int) -> Any:
    values = xp.asarray(values_B, dtype=xp.float32)
    if values.shape != shape:
        raise ValueError(f"{name} has shape {values.shape}, but it must be that of the rewards, {shape}")
    return values.reshape(-1, group_size)
