"""What the composite reward said of a batch of rows."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from grpo_jax.rewards.verdict import Failure


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardFailure:
    """One reward that failed on one row.

    Attributes:
      component: which reward.
      row: the row's number in its batch.
      failure: how: raised, timed_out or died.
      report: what it said of itself.
    """

    component: str
    row: int
    failure: Failure
    report: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardResult:
    """Rewards of B rows.

    Attributes:
      total: [B] composite reward; NaN where a reward failed or none applied.
      components: each reward before its weight and after its gate, [B]; NaN where it is missing. Keys: accuracy, format,
        termination, those of gated_accuracy, overlong, repetition_penalty, language and length that the config gives, and
        the names of the extras.
      weights: the weight of each component in the total.
      missing: rows on which each component did not apply.
      failed: rows on which each component failed, time-outs among them.
      timed_out: rows on which each component took too long that is judged in a process of its own.
      gated: rows on which each gated component's gate was shut.
      failures: every failure.
    """

    total: Float32[np.ndarray, " B"]
    components: dict[str, Float32[np.ndarray, " B"]]
    weights: dict[str, float]
    missing: dict[str, int]
    failed: dict[str, int]
    timed_out: dict[str, int]
    gated: dict[str, int]
    failures: tuple[RewardFailure, ...] = ()

    @property
    def accuracy(self) -> Float32[np.ndarray, " B"]:
        """[B] the accuracy component, which no weight, gate or other reward touches."""
        return self.components["accuracy"]

    def metrics(self) -> dict[str, float]:
        """Mean and population standard deviation of the total and of each component over the rows that have them, and
        the counts of missing, failed, timed out and gated rows."""
        metrics = {}
        for name, values in {"total": self.total, **self.components}.items():
            present = values[~np.isnan(values)].astype(np.float64)
            metrics[f"{name}/mean"] = float(present.mean()) if present.size else math.nan
            metrics[f"{name}/std"] = float(present.std()) if present.size else math.nan
        for what in ("missing", "failed", "timed_out", "gated"):
            metrics |= {f"{name}/{what}": float(count) for name, count in getattr(self, what).items()}
        return metrics


def joined_results(results: Sequence[RewardResult]) -> RewardResult:
    """The result of the rows of several batches, one after the other, that were judged with the same weights."""

    def total(what: str) -> dict[str, int]:
        return {name: sum(getattr(result, what)[name] for result in results) for name in getattr(results[0], what)}

    failures, rows = [], 0
    for result in results:
        failures += [dataclasses.replace(failure, row=failure.row + rows) for failure in result.failures]
        rows += len(result.total)
    return RewardResult(
        total=np.concatenate([result.total for result in results]),
        components={name: np.concatenate([result.components[name] for result in results]) for name in results[0].components},
        weights=results[0].weights,
        missing=total("missing"),
        failed=total("failed"),
        timed_out=total("timed_out"),
        gated=total("gated"),
        failures=tuple(failures),
    )
