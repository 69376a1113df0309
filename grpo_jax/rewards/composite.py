"""The composite reward.

R = accuracy + format_weight · format + termination_weight · termination + overlong + repetition_penalty + extras, where
the cosine length reward, if one is given, stands in the place of accuracy.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from grpo_jax.rewards.length import CosineLengthConfig, cosine_length_reward
from grpo_jax.rewards.overlong import OverlongConfig, overlong_reward
from grpo_jax.rewards.protocol import Reward, RewardInput
from grpo_jax.rewards.registry import check_name, resolve_reward
from grpo_jax.rewards.repetition import RepetitionConfig, repetition_reward

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """What is rewarded, and by how much. Accuracy has weight 1, or 0 where `length` takes its place.

    Every reward is given by a name in `grpo_jax.rewards.REWARDS` or by a dotted path `package.module:function`.

    Attributes:
      accuracy: the reward for a right answer: answer_tag, boxed, hash_mark or last_number say where it is looked for.
      format: the reward for structure: think_answer, answer_only, boxed_once or hash_mark_once.
      termination: the reward for stopping: eos_after_answer, or eos for stopping anywhere.
      format_weight: weight of the format reward; 0 reports it without rewarding it.
      termination_weight: weight of the termination reward; 0 reports it without rewarding it.
      extras: further rewards and their weights, for example {"my_package.rewards:brevity": 0.1}.
      overlong: a punishment that grows as a completion nears the limit (DAPO); null for none.
      repetition: a punishment of repeated n-grams; null for none.
      length: the cosine length reward in the place of accuracy; null rewards accuracy itself.
    """

    accuracy: str = "answer_tag"
    format: str = "think_answer"
    termination: str = "eos_after_answer"
    format_weight: float = 0.2
    termination_weight: float = 0.2
    extras: Mapping[str, float] = dataclasses.field(default_factory=dict)
    overlong: OverlongConfig | None = None
    repetition: RepetitionConfig | None = None
    length: CosineLengthConfig | None = None

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
      components: each reward before its weight, [B]; NaN where it is missing. Keys: accuracy, format, termination, those
        of overlong, repetition_penalty and length that the config gives, and the names of the extras.
      weights: the weight of each component in the total.
      missing: rows on which each component did not apply.
      failed: rows on which each component raised, or returned something that is not a finite number.
    """

    total: Float32[np.ndarray, " B"]
    components: dict[str, Float32[np.ndarray, " B"]]
    weights: dict[str, float]
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

    Args:
      config: the rewards; None is `RewardConfig()`.
      max_completion_tokens: the most tokens that a completion of a rollout can have: the limit of `overlong` and
        `length` where they give none of their own.

    Raises:
      ValueError: a reward cannot be found; or a section has no limit, one that no completion can reach, or one smaller
        than its buffer.
    """

    def __init__(self, config: RewardConfig | None = None, max_completion_tokens: int | None = None) -> None:
        self.config = config = RewardConfig() if config is None else config
        self._rewards: dict[str, Reward] = {
            "accuracy": resolve_reward(config.accuracy),
            "format": resolve_reward(config.format),
            "termination": resolve_reward(config.termination),
        }
        self._weights = {
            "accuracy": 1.0 if config.length is None else 0.0,
            "format": config.format_weight,
            "termination": config.termination_weight,
        }
        # The sections scale themselves (factor, penalty, the ends of the cosine), so that their weight is 1.
        if config.overlong is not None:
            limit = _limit("overlong", config.overlong.limit, max_completion_tokens)
            if config.overlong.buffer > limit:
                raise ValueError(
                    f"overlong.buffer is {config.overlong.buffer}, but it must be at most {limit}: overlong.limit is null, "
                    "so that the limit is the rollout's max_completion_tokens. Lower it"
                )
            self._rewards["overlong"] = overlong_reward(config.overlong, limit)
            self._weights["overlong"] = 1.0
        if config.repetition is not None:
            if max_completion_tokens is not None and config.repetition.ngram > max_completion_tokens:
                raise ValueError(
                    f"repetition.ngram is {config.repetition.ngram}, but it must be at most {max_completion_tokens}, the "
                    "most tokens of a completion: no shorter one has such an n-gram. Lower it"
                )
            self._rewards["repetition_penalty"] = repetition_reward(config.repetition)
            self._weights["repetition_penalty"] = 1.0
        for name, weight in config.extras.items():
            self._rewards[name] = resolve_reward(name)
            self._weights[name] = weight
        self._length = None
        if config.length is not None:
            limit = _limit("length", config.length.limit, max_completion_tokens)
            self._length = cosine_length_reward(config.length, limit)
            self._weights["length"] = 1.0

    @property
    def weights(self) -> dict[str, float]:
        """The configured weight of every component, which `score` uses unless it is told otherwise."""
        return dict(self._weights)

    def score(self, rows: Sequence[RewardInput], weights: Mapping[str, float] | None = None) -> RewardResult:
        """The rewards of `rows`, each judged alone.

        Args:
          rows: what is judged.
          weights: weights of components, by name, in the place of the configured ones; the others keep theirs.

        Raises:
          ValueError: `weights` names no component of this reward, or has a weight that is not a finite number.
        """
        applied = self._override(weights or {})
        judged = {name: _judge(name, reward, rows) for name, reward in self._rewards.items()}
        if self._length is not None:
            accuracy, failed = judged["accuracy"]
            known = zip(rows, accuracy, strict=True)
            lengths = [math.nan if math.isnan(value) else self._length(row, value) for row, value in known]
            judged["length"] = np.array(lengths), failed
        total = np.zeros(len(rows))
        applies = np.zeros(len(rows), dtype=bool)
        components, missing, failures = {}, {}, {}
        for name, (values, failed) in judged.items():
            absent = np.isnan(values)
            total += np.where(absent, 0.0, applied[name] * values)
            total[failed] = np.nan
            applies |= ~absent
            components[name] = values.astype(np.float32)
            missing[name] = int((absent & ~failed).sum())
            failures[name] = int(failed.sum())
        total[~applies] = np.nan
        return RewardResult(
            total=total.astype(np.float32), components=components, weights=applied, missing=missing, failed=failures
        )

    def _override(self, weights: Mapping[str, float]) -> dict[str, float]:
        for name, weight in weights.items():
            if name not in self._weights:
                raise ValueError(
                    f"weights names {name!r}, but it must name components of this reward: {', '.join(self._weights)}. "
                    "A shaping reward is one where its section is given"
                )
            if not math.isfinite(weight):
                raise ValueError(f"weights[{name!r}] is {weight}, but it must be a finite number")
        return {name: float(weights.get(name, weight)) for name, weight in self._weights.items()}


def _limit(section: str, limit: int | None, max_completion_tokens: int | None) -> int:
    """The limit of a section in tokens: its own, or the rollout's."""
    if limit is None:
        if max_completion_tokens is None:
            raise ValueError(
                f"{section}.limit is None, but it must be a number of tokens where no max_completion_tokens is given to "
                "CompositeReward. Give one of the two"
            )
        return max_completion_tokens
    if max_completion_tokens is not None and limit > max_completion_tokens:
        raise ValueError(
            f"{section}.limit is {limit}, but it must be at most {max_completion_tokens}, the max_completion_tokens of the "
            "rollout: no completion gets longer. Lower it, or leave it null to take that number"
        )
    return limit


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
