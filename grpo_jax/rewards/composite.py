"""The composite reward: R = accuracy + format_weight · format + termination_weight · termination + extras."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from grpo_jax.rewards.protocol import Reward, RewardInput
from grpo_jax.rewards.registry import check_name, resolve_reward

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """What is rewarded, and by how much. Accuracy has weight 1.

    Every reward is given by a name in `grpo_jax.rewards.REWARDS` or by a dotted path `package.module:function`.

    Attributes:
      accuracy: the reward for a right answer: answer_tag, boxed, hash_mark or last_number say where it is looked for.
      format: the reward for structure: think_answer, answer_only, boxed_once or hash_mark_once.
      termination: the reward for stopping: eos_after_answer, or eos for stopping anywhere.
      format_weight: weight of the format reward; 0 reports it without rewarding it.
      termination_weight: weight of the termination reward; 0 reports it without rewarding it.
      extras: further rewards and their weights, for example {"my_package.rewards:brevity": 0.1}.
    """

    accuracy: str = "answer_tag"
    format: str = "think_answer"
    termination: str = "eos_after_answer"
    format_weight: float = 0.2
    termination_weight: float = 0.2
    extras: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for field, name in (
            ("accuracy", self.accuracy),
            ("format", self.format),
            ("termination", self.termination),
            *(("extras", name) for name in self.extras),
        ):
            check_name(field, name)
        for field, weight in (
            ("format_weight", self.format_weight),
            ("termination_weight", self.termination_weight),
            *((f"extras[{name!r}]", weight) for name, weight in self.extras.items()),
        ):
            if not math.isfinite(weight):
                raise ValueError(f"{field} is {weight}, but it must be a finite number")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardResult:
    """Rewards of B rows.

    Attributes:
      total: [B] composite reward; NaN where a reward failed or none applied.
      components: each reward before its weight, [B]; NaN where it is missing. Keys: accuracy, format, termination and
        the names of the extras.
      missing: rows on which each component did not apply.
      failed: rows on which each component raised, or returned something that is not a finite number.
    """

    total: Float32[np.ndarray, " B"]
    components: dict[str, Float32[np.ndarray, " B"]]
    missing: dict[str, int]
    failed: dict[str, int]

    @property
    def accuracy(self) -> Float32[np.ndarray, " B"]:
        """[B] the accuracy component, which no weight or other reward touches."""
        return self.components["accuracy"]

    def metrics(self) -> dict[str, float]:
        """Mean and population standard deviation of the total and of each component over the rows that have them, and
        the counts of missing and failed rows."""
        metrics = {}
        for name, values in {"total": self.total, **self.components}.items():
            present = values[~np.isnan(values)].astype(np.float64)
            metrics[f"{name}/mean"] = float(present.mean()) if present.size else math.nan
            metrics[f"{name}/std"] = float(present.std()) if present.size else math.nan
        for name in self.components:
            metrics[f"{name}/missing"] = float(self.missing[name])
            metrics[f"{name}/failed"] = float(self.failed[name])
        return metrics


class CompositeReward:
    """Scores rows by the rewards that a config names.

    A reward that does not apply to a row (None or NaN) is left out of the row's sum. A reward that fails must neither
    stop training nor be taken for a 0, which would punish a row for a fault of its judge: the row's total becomes NaN,
    which gives it no advantage and takes it out of its group's statistics.

    Raises:
      ValueError: a reward cannot be found.
    """

    def __init__(self, config: RewardConfig | None = None) -> None:
        self.config = RewardConfig() if config is None else config
        self._rewards: dict[str, tuple[Reward, float]] = {
            "accuracy": (resolve_reward(self.config.accuracy), 1.0),
            "format": (resolve_reward(self.config.format), self.config.format_weight),
            "termination": (resolve_reward(self.config.termination), self.config.termination_weight),
        }
        for name, weight in self.config.extras.items():
            self._rewards[name] = (resolve_reward(name), weight)

    def score(self, rows: Sequence[RewardInput]) -> RewardResult:
        """The rewards of `rows`, each judged alone."""
        total = np.zeros(len(rows))
        applies = np.zeros(len(rows), dtype=bool)
        components, missing, failures = {}, {}, {}
        for name, (reward, weight) in self._rewards.items():
            values, failed = _judge(name, reward, rows)
            absent = np.isnan(values)
            total += np.where(absent, 0.0, weight * values)
            total[failed] = np.nan
            applies |= ~absent
            components[name] = values.astype(np.float32)
            missing[name] = int((absent & ~failed).sum())
            failures[name] = int(failed.sum())
        total[~applies] = np.nan
        return RewardResult(total=total.astype(np.float32), components=components, missing=missing, failed=failures)


def _judge(name: str, reward: Reward, rows: Sequence[RewardInput]) -> tuple[np.ndarray, np.ndarray]:
    """(values [B], NaN where missing; failed [B])."""
    values = np.full(len(rows), np.nan)
    failed = np.zeros(len(rows), dtype=bool)
    for index, row in enumerate(rows):
        try:
            value = reward(row)
            values[index] = math.nan if value is None else float(value)
            if math.isinf(values[index]):
                raise ValueError(f"a reward is a finite number, None or NaN; got {value}")
        except Exception as error:
            values[index] = math.nan
            # One report a batch: a reward that fails on every row would bury the log.
            if not failed.any():
                _log.warning("reward %r failed on row %d, %.2000r", name, index, row, exc_info=error)
            failed[index] = True
    if failed.sum() > 1:
        _log.warning("reward %r failed on %d of %d rows", name, failed.sum(), len(rows))
    return values, failed
