"""Advantage estimators: the table of published ones, and the baselines and scales they are made of."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "BASELINES",
    "SCALES",
    "AdvantageEstimator",
    "Compared",
    "reward_set",
    "standard_deviation",
]

Over = Literal["group", "batch", "nothing"]


class RewardSet(NamedTuple):
    """Rewards in sets that are compared within themselves: a set is a group, or the batch. Values are measured from
    the set's least reward (`floor`), so that rewards that nearly agree keep all their digits."""

    above_floor: Any  # [sets, n], 0 where missing
    valid: Any  # [sets, n]
    count: Any  # [sets, 1], at least 1
    floor: Any  # [sets, 1]
    span: Any  # [sets, 1], greatest reward − least
    mean_above_floor: Any  # [sets, 1]
    differs: Any  # [sets, 1], whether the rewards differ; False for one reward or none

    @property
    def centred(self) -> Any:
        """[sets, n] distance from the mean; of a missing reward, anything finite."""
        return self.above_floor - self.mean_above_floor


class Compared(NamedTuple):
    """What an estimator may look at. A row is missing from `groups`, `batch` and everything computed from them alike."""

    xp: ModuleType
    groups: RewardSet  # [groups, G]
    batch: RewardSet  # [1, groups × G]
    lengths: Any  # [groups, G], or None
    components: dict[str, Any]  # [groups, G] each, NaN where one does not apply
    weights: dict[str, Any]


class Estimate(NamedTuple):
    """What an estimator gives, [groups, G]: the advantages, with anything where there is no signal."""

    advantages: Any
    signal: Any  # [groups, G]
    defined: Any  # [groups, 1], False where the baseline or the scale has no value


def reward_set(xp: ModuleType, rewards: Any, valid: Any) -> RewardSet:
    """The statistics of each row of `rewards` [sets, n] over its `valid` entries; the others may be anything."""
    count = xp.maximum(xp.sum(valid, axis=1, keepdims=True), 1).astype(rewards.dtype)
    floor = xp.min(xp.where(valid, rewards, xp.inf), axis=1, keepdims=True)
    floor = xp.where(xp.isfinite(floor), floor, 0)
    above_floor = xp.where(valid, rewards, floor) - floor
    span = xp.max(above_floor, axis=1, keepdims=True)
    return RewardSet(
        above_floor=above_floor,
        valid=valid,
        count=count,
        floor=floor,
        span=span,
        mean_above_floor=xp.sum(above_floor, axis=1, keepdims=True) / count,
        # By comparison, not by std == 0: a rounded mean can leave equal rewards a standard deviation of an ulp.
        differs=span > 0,
    )


def standard_deviation(xp: ModuleType, rewards: RewardSet, ddof: int) -> Any:
    """[sets, 1]; 0 for a single reward, whatever ddof is."""
    # Two passes: E[x²] − E[x]² in float32 is below zero for rewards that nearly agree. In units of the span, so that no
    # square over- or underflows.
    unit = xp.where(rewards.differs, rewards.span, 1)
    centred = xp.where(rewards.valid, rewards.centred / unit, 0)
    return unit * xp.sqrt(xp.sum(centred * centred, axis=1, keepdims=True) / xp.maximum(rewards.count - ddof, 1))


class Part(NamedTuple):
    """A baseline or a scale.

    Attributes:
        compute: for a baseline the reward minus it, [groups, G], for a scale the divisor, broadcastable to that; and
            where it is defined, [groups, 1] or True.
        over: the set of rewards that it compares; where those all agree, nothing is learnt.
        is_std: whether it divides by a standard deviation, which ddof and epsilon belong to.
        needs_lengths: whether it uses the lengths of the completions.
    """

    compute: Callable[..., tuple[Any, Any]]
    over: Over
    is_std: bool = False
    needs_lengths: bool = False


def _minus_group_mean(compared: Compared) -> tuple[Any, Any]:
    return compared.groups.centred, True


def _minus_leave_one_out(compared: Compared) -> tuple[Any, Any]:
    # r_i − mean of the others = (r_i − mean of all) · n / (n − 1)
    count = compared.groups.count
    return compared.groups.centred * (count / compared.xp.maximum(count - 1, 1)), True


def _minus_length_weighted(compared: Compared) -> tuple[Any, Any]:
    xp, groups = compared.xp, compared.groups
    lengths = xp.where(groups.valid & xp.isfinite(compared.lengths) & (compared.lengths > 0), compared.lengths, 0)
    tokens = xp.sum(lengths, axis=1, keepdims=True)
    weights = lengths / xp.where(tokens > 0, tokens, 1)
    return groups.above_floor - xp.sum(weights * groups.above_floor, axis=1, keepdims=True), tokens > 0


def _minus_batch_mean(compared: Compared) -> tuple[Any, Any]:
    return compared.batch.centred.reshape(compared.groups.valid.shape), True


def _minus_nothing(compared: Compared) -> tuple[Any, Any]:
    return compared.groups.above_floor + compared.groups.floor, True


def _by_group_std(compared: Compared, ddof: int, epsilon: float) -> tuple[Any, Any]:
    return standard_deviation(compared.xp, compared.groups, ddof) + epsilon, True


def _by_batch_std(compared: Compared, ddof: int, epsilon: float) -> tuple[Any, Any]:
    return standard_deviation(compared.xp, compared.batch, ddof) + epsilon, True


def _by_group_mean(compared: Compared, ddof: int, epsilon: float) -> tuple[Any, Any]:
    xp, groups = compared.xp, compared.groups
    mean = groups.floor + groups.mean_above_floor
    # A mean of 0 must not come out as 1e-9 by rounding: rewards of both signs can cancel.
    largest = xp.maximum(xp.abs(groups.floor), xp.abs(groups.floor + groups.span))
    positive = mean > groups.count * largest * xp.finfo(mean.dtype).eps
    return xp.where(positive, mean, 1), positive


def _by_nothing(compared: Compared, ddof: int, epsilon: float) -> tuple[Any, Any]:
    return 1.0, True


BASELINES: dict[str, Part] = {
    "group_mean": Part(_minus_group_mean, "group"),
    "leave_one_out": Part(_minus_leave_one_out, "group"),
    "length_weighted": Part(_minus_length_weighted, "group", needs_lengths=True),
    "batch_mean": Part(_minus_batch_mean, "batch"),
    "none": Part(_minus_nothing, "nothing"),
}
SCALES: dict[str, Part] = {
    "group_std": Part(_by_group_std, "group", is_std=True),
    "batch_std": Part(_by_batch_std, "batch", is_std=True),
    "group_mean": Part(_by_group_mean, "group"),
    "none": Part(_by_nothing, "nothing"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageEstimator:
    """A published way to make rewards into advantages.

    Attributes:
        paper: what it is called and where it is defined.
        baseline: what is subtracted, a key of BASELINES; None where the estimator's order is fixed.
        scale: what is divided by, a key of SCALES; None likewise.
        ddof: a standard deviation divides by n − ddof.
        epsilon: added to a standard deviation, in units of reward.
        estimate: computes it.
        needs_components: whether it looks at each component of the reward rather than at the total.
    """

    paper: str
    baseline: str | None
    scale: str | None
    ddof: int = 0
    epsilon: float = 1e-6
    estimate: Callable[[Compared, "AdvantageEstimator"], Estimate]
    needs_components: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """The baseline and the scale; empty where the order is fixed."""
        if self.baseline is None or self.scale is None:
            return ()
        return BASELINES[self.baseline], SCALES[self.scale]

    @property
    def compares_group(self) -> bool:
        """Whether an advantage depends on the other rows of its group; one of a fixed order does."""
        return not self.parts or any(part.over == "group" for part in self.parts)

    @property
    def divides_by_std(self) -> bool:
        """Whether ddof and epsilon have a use; in a fixed order they do."""
        return not self.parts or any(part.is_std for part in self.parts)

    @property
    def needs_lengths(self) -> bool:
        """Whether it uses the lengths of the completions."""
        return any(part.needs_lengths for part in self.parts)


def _quotient(compared: Compared, estimator: AdvantageEstimator) -> Estimate:
    """(r − baseline) / scale."""
    baseline, scale = estimator.parts
    above, has_baseline = baseline.compute(compared)
    divisor, has_scale = scale.compute(compared, estimator.ddof, estimator.epsilon)
    differs = {"group": compared.groups.differs, "batch": compared.batch.differs, "nothing": True}
    defined = compared.xp.full(compared.groups.count.shape, True) & has_baseline & has_scale
    signal = compared.groups.valid & defined & differs[baseline.over] & differs[scale.over]
    return Estimate(advantages=above / divisor, signal=signal, defined=defined)


def _decoupled(compared: Compared, estimator: AdvantageEstimator) -> Estimate:
    """Every component normalised in its group, the weighted sum of those, and that normalised over the batch."""
    xp, valid = compared.xp, compared.groups.valid
    shape = valid.shape
    sums, sizes, varies = xp.zeros(shape, xp.float32), xp.zeros(shape, xp.float32), xp.zeros(shape, bool)
    for name, values in compared.components.items():
        component = reward_set(xp, values, valid & xp.isfinite(values))
        counts = component.valid & component.differs & (compared.weights[name] != 0)
        divisor = standard_deviation(xp, component, estimator.ddof) + estimator.epsilon
        term = xp.where(counts, compared.weights[name] * component.centred / divisor, 0)
        sums, sizes, varies = sums + term, sizes + xp.abs(term), varies | counts
    # Components that pull against each other can cancel. What rounding leaves of them is made 0 before the batch's
    # standard deviation, which may be as small, divides it.
    rounding = 16 * xp.finfo(xp.float32).eps * xp.max(sizes, axis=1, keepdims=True)
    sums = xp.where(xp.abs(sums) > rounding, sums, 0)
    batch = reward_set(xp, sums.reshape(1, -1), valid.reshape(1, -1))
    advantages = batch.centred / (standard_deviation(xp, batch, estimator.ddof) + estimator.epsilon)
    return Estimate(
        advantages=advantages.reshape(shape),
        signal=varies & reward_set(xp, sums, valid).differs,
        defined=xp.full((shape[0], 1), True),
    )


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {
    "grpo": AdvantageEstimator(
        paper="GRPO (DeepSeekMath, 2402.03300)", baseline="group_mean", scale="group_std", estimate=_quotient
    ),
    "dr_grpo": AdvantageEstimator(paper="Dr. GRPO (2503.20783)", baseline="group_mean", scale="none", estimate=_quotient),
    "rloo": AdvantageEstimator(
        paper="REINFORCE leave-one-out (2402.14740)", baseline="leave_one_out", scale="none", estimate=_quotient
    ),
    "max_rl": AdvantageEstimator(
        paper="Maximum likelihood reinforcement learning (2602.02710)",
        baseline="group_mean",
        scale="group_mean",
        estimate=_quotient,
    ),
    "gdpo": AdvantageEstimator(
        paper="GDPO, group reward-decoupled normalization (2601.05242)",
        baseline=None,
        scale=None,
        estimate=_decoupled,
        needs_components=True,
    ),
    "reinforce_pp": AdvantageEstimator(
        paper="REINFORCE++ (2501.03262)", baseline="batch_mean", scale="batch_std", estimate=_quotient
    ),
    "opo": AdvantageEstimator(
        paper="OPO, on-policy RL with the optimal baseline (2505.23585)",
        baseline="length_weighted",
        scale="none",
        estimate=_quotient,
    ),
    "lite_ppo": AdvantageEstimator(
        paper="Lite PPO (2508.08221)", baseline="group_mean", scale="batch_std", estimate=_quotient
    ),
    "reinforce": AdvantageEstimator(paper="REINFORCE (Williams, 1992)", baseline="none", scale="none", estimate=_quotient),
}
