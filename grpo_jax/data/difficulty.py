"""How hard stages and problems are for the policy, and how much a group of their completions can teach.

With success rate p, the rewards of a group's completions have variance p (1 − p). A group that is all right or all wrong
has advantages of 0 and no gradient, so problems near p = 1/2 carry the signal; 4 p (1 − p) is that signal, scaled to at
most 1. DAPO (2503.14476) discards groups without signal after they were sampled, and Foster et al. (2502.12272) choose
questions by p (1 − p) before.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from grpo_jax.data.task import Problem

__all__ = ["Difficulty", "averaged", "signal", "stage_accuracy"]


class Difficulty(TypedDict):
    """What the training rollouts of a phase have shown; plain JSON.

    `stages`, `problems`: moving averages of accuracy, in [0, 1], by stage and by `Problem.key`; what was never judged is
    absent. `problems` stays empty for a task without a list of problems, where hardly one is met twice. `places`: places of
    the stage's epochs behind the last problem drawn, the passed-over included; empty for such a task too.
    """

    stages: dict[str, float]
    problems: dict[str, float]
    places: dict[str, int]


def signal(p: float | None, floor: float) -> float:
    """max(floor, 4 p (1 − p)), in [floor, 1]; what was never judged (None) counts as p = 1/2."""
    return 1.0 if p is None else max(floor, 4.0 * p * (1.0 - p))


def averaged(
    averages: Mapping[str, float], keys: Sequence[str], values: Sequence[float], smoothing: float
) -> dict[str, float]:
    """New averages: for each key and value in turn, smoothing × old + (1 − smoothing) × value. A first value is the average.

    Args:
      averages: so far, by key; left as it is.
      keys: what was measured.
      values: what was measured of it; NaN changes nothing.
      smoothing: weight of the old average, in [0, 1).
    """
    new = dict(averages)
    for key, value in zip(keys, values, strict=True):
        if not math.isnan(value):
            new[key] = smoothing * new[key] + (1.0 - smoothing) * value if key in new else value
    return new


def stage_accuracy(problems: Sequence[Problem], accuracy: Sequence[float]) -> dict[str, float]:
    """Mean accuracy of the problems of each stage; a stage is absent where none is known."""
    known: dict[str, list[float]] = {}
    for problem, value in zip(problems, accuracy, strict=True):
        if not math.isnan(value):
            known.setdefault(problem.stage, []).append(value)
    return {stage: math.fsum(values) / len(values) for stage, values in known.items()}
