"""The composite reward.

R = accuracy + format_weight · format + termination_weight · termination + overlong + repetition_penalty + extras, where
the cosine length reward, if one is given, stands in the place of accuracy, and a gate takes a component out of the rows that
do not pass it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from grpo_jax.rewards.config import RewardConfig
from grpo_jax.rewards.language import language_reward
from grpo_jax.rewards.length import cosine_length_reward
from grpo_jax.rewards.overlong import overlong_reward
from grpo_jax.rewards.pool import PendingVerdicts, PoolConfig, RewardPool
from grpo_jax.rewards.protocol import BatchReward, QuickReward, RewardInput
from grpo_jax.rewards.registry import AT_ONCE, resolve_reward
from grpo_jax.rewards.repetition import repetition_reward
from grpo_jax.rewards.result import RewardFailure, RewardResult
from grpo_jax.rewards.verdict import (
    MOST,
    Verdict,
    awaited_verdict,
    is_awaited,
    quick_verdict,
    raised,
    verdict,
    verdict_of_value,
)

_log = logging.getLogger(__name__)

GATE_THRESHOLD = 0.5
"""The least value of a component at which it opens the gate of another."""


class CompositeReward:
    """Scores rows by the rewards that a config names.

    A reward that does not apply to a row (None or NaN) is left out of the row's sum. A reward that fails must neither
    stop training nor be taken for a 0, which would punish a row for a fault of its judge: the row's total becomes NaN,
    which gives it no advantage and takes it out of its group's statistics.

    The rewards of this package that only read text are judged at once, and so are answers that are compared without sympy.
    The others, those that run programs and those at a dotted path are judged in a pool of processes, which starts with the
    first such row and ends with `close`, with this object, or with the interpreter.

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
        named = {"accuracy": config.accuracy, "format": config.format, "termination": config.termination}
        named |= {name: name for name in config.extras}
        self._rewards: dict[str, Any] = {component: resolve_reward(name, config) for component, name in named.items()}
        self._weights = {
            "accuracy": 1.0,
            "format": config.format_weight,
            "termination": config.termination_weight,
            **config.extras,
        }
        if config.language is not None:
            self._rewards["language"] = language_reward(config.language)
            self._weights["language"] = config.language.weight
        # The other sections scale themselves (factor, penalty, the ends of the cosine), so that their weight is 1.
        if config.overlong is not None:
            limit = _limit("overlong", config.overlong.limit, max_completion_tokens)
            if config.overlong.buffer > limit:
                raise ValueError(
                    f"overlong.buffer is {config.overlong.buffer}, but it must be at most {limit}: overlong.limit is null, "
                    "so that the limit is the rollout's max_completion_tokens. Lower it"
                )
            self._add_section("overlong", overlong_reward(config.overlong, limit))
        if config.repetition is not None:
            if max_completion_tokens is not None and config.repetition.ngram > max_completion_tokens:
                raise ValueError(
                    f"repetition.ngram is {config.repetition.ngram}, but it must be at most {max_completion_tokens}, the "
                    "most tokens of a completion: no shorter one has such an n-gram. Lower it"
                )
            self._add_section("repetition_penalty", repetition_reward(config.repetition))
        self._length = None
        if config.length is not None:
            self._length = cosine_length_reward(config.length, _limit("length", config.length.limit, max_completion_tokens))
            self._weights |= {"accuracy": 0.0, "length": 1.0}
        if "accuracy" in config.gates:
            self._weights |= {"accuracy": 0.0, "gated_accuracy": 1.0}
        self._weights = {name: self._weights[name] for name in self._order()}

        pool_config = PoolConfig() if config.pool is None else config.pool
        pooled = {
            component: name
            for component, name in named.items()
            if name not in AT_ONCE and not isinstance(self._rewards[component], BatchReward)
        }
        if config.pool is not None and not pooled:
            raise ValueError(
                "pool is given, but it must be null where no reward is judged in a process of its own: those at a dotted "
                "path are, and those that run programs"
            )
        self._pool = None
        if pooled and pool_config.processes:
            awaited = frozenset(component for component in pooled if is_awaited(self._rewards[component]))
            self._pool = RewardPool(pool_config, config, pooled, awaited)

    def _add_section(self, name: str, reward: Any) -> None:
        self._rewards[name] = reward
        self._weights[name] = 1.0

    def _order(self) -> list[str]:
        names = list(self.config.component_names)
        return [*names, "gated_accuracy"] if "accuracy" in self.config.gates else names

    @property
    def weights(self) -> dict[str, float]:
        """The configured weight of every component, which `score` uses unless it is told otherwise."""
        return dict(self._weights)

    @property
    def batch_rewards(self) -> dict[str, BatchReward]:
        """The components that whole batches are judged by."""
        return {name: reward for name, reward in self._rewards.items() if isinstance(reward, BatchReward)}

    @property
    def pool(self) -> RewardPool | None:
        """The processes that judge, or None where no reward needs any."""
        return self._pool

    def check(self) -> None:
        """Starts a worker of the pool, if every row will need one, to see that it can build the rewards.

        Raises:
          ValueError: it cannot.
        """
        if self._pool is not None and not all(isinstance(self._rewards[name], QuickReward) for name in self._pool.rewards):
            self._pool.check()

    def close(self) -> None:
        """Ends the pool; rows can no longer be judged where one is needed."""
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def score(self, rows: Sequence[RewardInput], weights: Mapping[str, float] | None = None) -> RewardResult:
        """The rewards of `rows`, each judged alone.

        Args:
          rows: what is judged.
          weights: weights of components, by name, in the place of the configured ones; the others keep theirs.

        Raises:
          ValueError: `weights` names no component of this reward, or has a weight that is not a finite number; or the pool's
            workers cannot build the rewards.
        """
        return self.submit(rows, weights).result()

    def submit(self, rows: Sequence[RewardInput], weights: Mapping[str, float] | None = None) -> PendingRewards:
        """As `score`, but returns once the rows are handed in: the pool judges them while the caller does other things.

        Waits while the pool has `pool.max_pending` rows before it.
        """
        applied = self._override(weights or {})
        here: dict[str, dict[int, Verdict]] = {}
        asked: dict[str, list[int]] = {}
        for name in () if self._pool is None else self._pool.rewards:
            reward = self._rewards[name]
            quick = (
                {index: quick_verdict(reward, row) for index, row in enumerate(rows)}
                if isinstance(reward, QuickReward)
                else {}
            )
            here[name] = {index: each for index, each in quick.items() if each is not None}
            asked[name] = [index for index in range(len(rows)) if index not in here[name]]
        # Before anything else is judged, so that the processes have something to do meanwhile.
        pending = None if self._pool is None else self._pool.submit(rows, asked)
        for name, reward in self._rewards.items():
            if name not in asked and not isinstance(reward, BatchReward):
                here[name] = {index: _judged_here(reward, row) for index, row in enumerate(rows)}
        return PendingRewards(self, rows, applied, pending, here)

    def combine(
        self, rows: Sequence[RewardInput], judged: Mapping[str, Sequence[Verdict]], weights: Mapping[str, float]
    ) -> RewardResult:
        """The composite of the verdicts of all rewards on `rows`."""
        verdicts = {name: list(judged[name]) for name in self._order() if name in judged}
        if self._length is not None:
            length = self._length
            known = zip(rows, verdicts["accuracy"], strict=True)
            verdicts["length"] = [
                each if math.isnan(each.value) else Verdict(value=length(row, each.value)) for row, each in known
            ]
        values = {name: np.array([each.value for each in column], np.float64) for name, column in verdicts.items()}
        failed = {name: np.array([each.failure is not None for each in column], bool) for name, column in verdicts.items()}
        gated = self._pass_gates(values, failed)

        total = np.zeros(len(rows))
        applies = np.zeros(len(rows), dtype=bool)
        for name, column in values.items():
            absent = np.isnan(column)
            total += np.where(absent, 0.0, weights[name] * column)
            total[failed[name]] = np.nan
            applies |= ~absent
        total[~applies] = np.nan
        total[np.abs(total) > MOST] = np.nan  # by a weight without measure
        # A component made of another (length, gated_accuracy) repeats its failures; they are told of once.
        failures = [
            RewardFailure(component=name, row=row, failure=each.failure, report=each.report)
            for name, column in verdicts.items()
            if name != "length"
            for row, each in enumerate(column)
            if each.failure is not None
        ]
        _report(rows, failures)
        return RewardResult(
            total=total.astype(np.float32),
            components={name: column.astype(np.float32) for name, column in values.items()},
            weights=dict(weights),
            missing={name: int((np.isnan(column) & ~failed[name]).sum()) for name, column in values.items()},
            failed={name: int(failed[name].sum()) for name in values},
            timed_out={
                name: sum(each.failure == "timed_out" for each in verdicts[name])
                for name in ([] if self._pool is None else self._pool.rewards)
            },
            gated=gated,
            failures=tuple(failures),
        )

    def _pass_gates(self, values: dict[str, np.ndarray], failed: dict[str, np.ndarray]) -> dict[str, int]:
        """Sets what its gate shuts out to 0, in place; returns how many rows of each that were."""
        raw, gated = dict(values), {}
        for name, gate in self.config.gates.items():
            target = "gated_accuracy" if name == "accuracy" else name
            # A gate that is missing (NaN) is shut, for the comparison is false.
            shut = ~(raw[gate] >= GATE_THRESHOLD) & ~np.isnan(raw[name])
            values[target] = np.where(shut, 0.0, raw[name])
            failed[target] = failed[name] | failed[gate]
            gated[target] = int(shut.sum())
        return gated

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


class PendingRewards:
    """Rewards to come, of rows that were handed in together."""

    def __init__(
        self,
        reward: CompositeReward,
        rows: Sequence[RewardInput],
        weights: Mapping[str, float],
        pending: PendingVerdicts | None,
        judged: dict[str, dict[int, Verdict]],
    ) -> None:
        self.rows = rows
        self._reward, self._weights, self._pending, self._judged = reward, weights, pending, judged

    def result(self) -> RewardResult:
        """The rewards, once all are there; rewards of whole batches are judged now.

        Raises:
          ValueError: the pool's workers cannot build the rewards.
          PoolClosed: the pool was closed before.
        """
        judged = dict(self._judged)
        for name, reward in self._reward.batch_rewards.items():
            judged[name] = dict(enumerate(_judged_together(reward, self.rows)))
        if self._pending is not None:
            judged |= {name: judged.get(name, {}) | verdicts for name, verdicts in self._pending.result().items()}
        columns = {name: [verdicts[row] for row in range(len(self.rows))] for name, verdicts in judged.items()}
        return self._reward.combine(self.rows, columns, self._weights)


def _judged_here(reward: Any, row: RewardInput) -> Verdict:
    if is_awaited(reward):
        return asyncio.run(awaited_verdict(reward, row, None))
    return verdict(reward, row)


def _judged_together(reward: BatchReward, rows: Sequence[RewardInput]) -> list[Verdict]:
    try:
        values = list(reward.judge_batch(rows)) if rows else []
        if len(values) != len(rows):
            raise ValueError(f"judge_batch returned {len(values)} rewards for {len(rows)} rows; it must return one for each")
    except Exception as error:
        return [raised(error)] * len(rows)
    return [verdict_of_value(value) for value in values]


def _shown(row: RewardInput) -> str:
    try:
        return repr(row)[:2000]
    except Exception as error:  # what a record holds can be nested without end
        return f"whose completion is {row.completion[:1000]!r} (its record cannot be shown: {type(error).__name__})"


def _report(rows: Sequence[RewardInput], failures: Sequence[RewardFailure]) -> None:
    """One report a batch and reward: one that fails on every row would bury the log."""
    by_component: dict[str, list[RewardFailure]] = {}
    for failure in failures:
        by_component.setdefault(failure.component, []).append(failure)
    for name, those in by_component.items():
        first = those[0]
        what = first.failure.replace("_", " ")
        _log.warning("reward %r %s on row %d, %s: %s", name, what, first.row, _shown(rows[first.row]), first.report)
        if len(those) > 1:
            _log.warning("reward %r failed on %d of %d rows", name, len(those), len(rows))


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
