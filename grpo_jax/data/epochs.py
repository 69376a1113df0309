"""The endless sequence of shuffled epochs of one stage of a `FiniteTask`, taken whole or by chance.

Every problem of the stage stands once in each epoch. The order of an epoch, and the number in [0, 1) that decides whether
the problem at a place is taken, depend on (seed, stage, epoch) alone.
"""

from collections.abc import Callable

import numpy as np

from grpo_jax.data.task import FiniteTask, Problem

__all__ = ["accepted_problems", "epoch_problems"]

# Second word of every generator's key; the curriculum's own draws have 1 and 2.
_EPOCH_STREAM, _ACCEPTANCE_STREAM = 3, 4


def _order(seed: int, index: int, epoch: int, size: int) -> np.ndarray:
    return np.random.default_rng([seed, _EPOCH_STREAM, index, epoch]).permutation(size)


def epoch_problems(task: FiniteTask, stage: str, seed: int, index: int, start: int, n: int) -> list[Problem]:
    """The problems at places `start` … `start + n − 1` of the sequence.

    Args:
      task: has the list.
      stage: a stage of it.
      seed: seed of the phase.
      index: the stage's index.
      start: first place.
      n: number of problems, at least 1.
    """
    size = task.train_size(stage)
    chosen: list[Problem] = []
    for epoch in range(start // size, (start + n - 1) // size + 1):
        low, high = max(start - epoch * size, 0), min(start + n - epoch * size, size)
        chosen.extend(task.train_problem(stage, int(at)) for at in _order(seed, index, epoch, size)[low:high])
    return chosen


def accepted_problems(
    task: FiniteTask, stage: str, seed: int, index: int, start: int, n: int, chance: Callable[[Problem], float]
) -> tuple[list[Problem], int]:
    """The first `n` problems from place `start` on that are taken, and the place after the last of them.

    It ends where the chances are bounded away from 0: with a least chance of f, it looks at n/f places on average or fewer.

    Args:
      task: has the list.
      stage: a stage of it.
      seed: seed of the phase.
      index: the stage's index.
      start: first place looked at.
      n: number of problems, 0 or more.
      chance: probability that a problem is taken, above 0.
    """
    size = task.train_size(stage)
    accepted: list[Problem] = []
    place = start
    while len(accepted) < n:
        epoch, low = divmod(place, size)
        draws = np.random.default_rng([seed, _ACCEPTANCE_STREAM, index, epoch]).random(size)
        order = _order(seed, index, epoch, size)
        for at in range(low, size):
            problem = task.train_problem(stage, int(order[at]))
            place += 1
            if draws[at] < chance(problem):
                accepted.append(problem)
                if len(accepted) == n:
                    break
    return accepted, place
