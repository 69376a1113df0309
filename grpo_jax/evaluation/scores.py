"""What a test on held-out problems measured, stage by stage."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageScore:
    """One stage's score in one test. Shares are in [0, 1].

    Attributes:
        sampled_accuracy: share of right answers among sampled completions, all samples of all problems alike.
        greedy_accuracy: share of right answers among greedy completions.
        mean_length: mean length of the sampled completions in tokens, the end token included.
        termination_rate: share of the sampled completions that ended by themselves and not by the limit on length.
    """

    sampled_accuracy: float
    greedy_accuracy: float
    mean_length: float
    termination_rate: float


Scores = Mapping[str, StageScore]
"""The scores of one test by stage, in the order of the stages."""

FIELDS = tuple(field.name for field in dataclasses.fields(StageScore))


def overall(scores: Scores) -> StageScore:
    """The mean over stages, every stage counting alike."""
    return StageScore(**{name: sum(vars(score)[name] for score in scores.values()) / len(scores) for name in FIELDS})


def to_metrics(scores: Scores) -> dict[str, float]:
    """Flat metrics named `STAGE/FIELD`, for the log."""
    return {f"{stage}/{name}": value for stage, score in scores.items() for name, value in vars(score).items()}


def from_record(record: Mapping[str, Any]) -> dict[str, StageScore]:
    """The scores that `to_metrics` turned into a record of the log."""
    stages = dict.fromkeys(key.rpartition("/")[0] for key in record if key.rpartition("/")[2] in FIELDS and "/" in key)
    return {stage: StageScore(**{name: record[f"{stage}/{name}"] for name in FIELDS}) for stage in stages}
