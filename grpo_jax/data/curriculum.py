"""The curriculum: which stage each training problem comes from, and which problem of that stage it is.

Draws are numbered from 0 through a training phase: step s of n problems makes draws s·n … s·n + n − 1. The draw number
and the state alone decide a problem, so a resumed run needs only its step and this state to see exactly the problems
that it would have seen.

Stages are dealt from blocks that hold each in exact proportion to its weight, shuffled by seed and block number. That
keeps every batch near the weights, and makes the number of problems drawn from a stage so far a closed form, which is
the position in the stage's epochs.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np

from grpo_jax.data.task import FiniteTask, Problem, Task

RESOLUTION = 1000
"""A block has at most about this many draws; a positive weight gets at least one of them."""

# Second word of every generator's key, so that no two kinds of draw share their noise.
_BLOCK_STREAM, _PROBLEM_STREAM, _EPOCH_STREAM = 1, 2, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """How stages share the training problems.

    Attributes:
      mode: "mixed" draws from all stages at all times; "sequential" trains one stage after another.
      weights: mixed: share of each stage, in any unit; empty means equal shares.
      advance_at: sequential: accuracy of the current stage, in (0, 1], at which the next one begins.
      replay: sequential: share of draws, in [0, 1), that goes to the earlier stages, so that they are not forgotten.
    """

    mode: str = "mixed"
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    advance_at: float = 0.9
    replay: float = 0.25

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is one of {sorted(MODES)}; got {self.mode!r}")
        if not 0 < self.advance_at <= 1:
            raise ValueError(f"advance_at lies in (0, 1]; got {self.advance_at}")
        if not 0 <= self.replay < 1:
            raise ValueError(f"replay lies in [0, 1); got {self.replay}")
        if self.mode == "mixed":
            for field in ("advance_at", "replay"):
                value, default = vars(self)[field], vars(CurriculumConfig)[field]
                if value != default:
                    raise ValueError(
                        f"{field} belongs to mode 'sequential'; got {value} with mode 'mixed'. Leave it at {default}"
                    )
        if self.weights and self.mode == "sequential":
            raise ValueError(f"weights belong to mode 'mixed'; got {dict(self.weights)} with mode 'sequential'")
        bad = {stage: weight for stage, weight in self.weights.items() if not (0 <= weight < math.inf)}
        if bad or (self.weights and not any(self.weights.values())):
            raise ValueError(f"weights are finite, not negative and not all 0; got {dict(self.weights)}")


class CurriculumState(TypedDict):
    """The part of the run state that belongs to the curriculum; plain JSON.

    `level`: the current stage's index (always 0 in mixed mode). `since`: the draw at which it became current. `drawn`:
    problems drawn from each stage before `since`.
    """

    level: int
    since: int
    drawn: dict[str, int]


def initial_state(stages: Sequence[str]) -> CurriculumState:
    """The state before the first draw."""
    if not stages:
        raise ValueError("a task has at least one stage, got none")
    return {"level": 0, "since": 0, "drawn": dict.fromkeys(stages, 0)}


def stage_weights(config: CurriculumConfig, state: CurriculumState) -> dict[str, float]:
    """Share of each stage in the draws from `state["since"]` on; the shares sum to 1.

    Raises:
      ValueError: the config weighs a stage that the task does not have.
    """
    raw = MODES[config.mode](config, tuple(state["drawn"]), state["level"])
    total = sum(raw.values())
    return {stage: weight / total for stage, weight in raw.items()}


def advance(
    config: CurriculumConfig, state: CurriculumState, accuracy: Mapping[str, float], draws: int, seed: int
) -> CurriculumState:
    """The state after `accuracy` was measured; the same object where nothing changes.

    Sequential mode moves to the next stage when the current one's accuracy reaches `advance_at`; an accuracy that was
    not measured (absent or NaN) never advances. Mixed mode never changes.

    Args:
      config: the curriculum.
      state: the state so far.
      accuracy: accuracy per stage, in [0, 1].
      draws: problems drawn so far in this phase: steps done × problems a step.
      seed: the seed given to `sample_problems`.
    """
    stages = tuple(state["drawn"])
    if config.mode != "sequential" or state["level"] + 1 >= len(stages):
        return state
    if not accuracy.get(stages[state["level"]], math.nan) >= config.advance_at:
        return state
    return {"level": state["level"] + 1, "since": draws, "drawn": _drawn(config, state, seed, draws)}


def sample_problems(
    task: Task, config: CurriculumConfig, state: CurriculumState, seed: int, step: int, n: int
) -> list[Problem]:
    """The `n` training problems of `step`, a pure function of its arguments.

    A `FiniteTask` gives every problem of a stage once per epoch, in an order shuffled by (seed, stage, epoch). Other
    tasks draw theirs from a generator keyed by (seed, step, stage).

    Args:
      task: where problems come from.
      config: the curriculum.
      state: its state at this step.
      seed: seed of the phase.
      step: step of the phase, from 0.
      n: problems a step, the same at every step of a phase.

    Raises:
      ValueError: the state belongs to other stages, or `step` precedes the state.
    """
    stages = tuple(state["drawn"])
    if stages != tuple(task.stages):
        raise ValueError(
            f"the curriculum state is of stages {list(stages)}, the task has {list(task.stages)}; "
            f"resume with the task that the run was started with"
        )
    if step * n < state["since"]:
        raise ValueError(
            f"step {step} of {n} problems is draw {step * n}, but the state begins at draw {state['since']}; "
            f"keep the number of problems a step while a phase lasts"
        )
    choices = _stage_indices(config, state, seed, step * n, step * n + n)
    before = _drawn(config, state, seed, step * n)
    problems: list[Problem | None] = [None] * n
    for index, stage in enumerate(stages):
        slots = np.flatnonzero(choices == index)
        if slots.size == 0:
            continue
        if isinstance(task, FiniteTask):
            chosen = _epoch_problems(task, stage, seed, index, before[stage], slots.size)
        else:
            rng = np.random.default_rng([seed, _PROBLEM_STREAM, step, index])
            chosen = task.sample(rng, stage, slots.size, "train")
        for slot, problem in zip(slots, chosen, strict=True):
            problems[slot] = problem
    return [problem for problem in problems if problem is not None]


def _mixed(config: CurriculumConfig, stages: tuple[str, ...], level: int) -> dict[str, float]:
    unknown = sorted(set(config.weights) - set(stages))
    if unknown:
        raise ValueError(f"weights name stages {unknown} that the task does not have; its stages are {list(stages)}")
    if not config.weights:
        return dict.fromkeys(stages, 1.0)
    return {stage: config.weights.get(stage, 0.0) for stage in stages}


def _sequential(config: CurriculumConfig, stages: tuple[str, ...], level: int) -> dict[str, float]:
    weights = dict.fromkeys(stages, 0.0)
    for earlier in stages[:level]:
        weights[earlier] = config.replay / level
    weights[stages[level]] = 1.0 - config.replay if level else 1.0
    return weights


MODES: dict[str, Callable[[CurriculumConfig, tuple[str, ...], int], dict[str, float]]] = {
    "mixed": _mixed,
    "sequential": _sequential,
}
"""Mode name to (config, stages, level) -> weight of each stage."""


def _block_counts(weights: Mapping[str, float]) -> np.ndarray:
    """Draws of each stage in one block: `RESOLUTION` shared out by largest remainder, in lowest terms."""
    shares = np.array(list(weights.values())) * RESOLUTION
    counts = np.floor(shares + 1e-9).astype(np.int64)
    leftover = int(RESOLUTION - counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:leftover]] += 1
    counts[(shares > 0) & (counts == 0)] = 1
    return counts // np.gcd.reduce(counts)


def _block(counts: np.ndarray, seed: int, since: int, block: int) -> np.ndarray:
    rng = np.random.default_rng([seed, _BLOCK_STREAM, since, block])
    return rng.permutation(np.repeat(np.arange(counts.size), counts))


def _stage_indices(config: CurriculumConfig, state: CurriculumState, seed: int, start: int, stop: int) -> np.ndarray:
    """Stage index of each draw in [start, stop)."""
    counts = _block_counts(stage_weights(config, state))
    size = int(counts.sum())
    first, last = start - state["since"], stop - state["since"]
    blocks = [_block(counts, seed, state["since"], block) for block in range(first // size, -(-last // size))]
    offset = first // size * size
    return np.concatenate(blocks)[first - offset : last - offset]


def _drawn(config: CurriculumConfig, state: CurriculumState, seed: int, draws: int) -> dict[str, int]:
    """Problems drawn from each stage in the first `draws` draws of the phase."""
    counts = _block_counts(stage_weights(config, state))
    whole, rest = divmod(draws - state["since"], int(counts.sum()))
    partial = np.bincount(_block(counts, seed, state["since"], whole)[:rest], minlength=counts.size)
    return {
        stage: state["drawn"][stage] + int(whole * counts[index] + partial[index])
        for index, stage in enumerate(state["drawn"])
    }


def _epoch_problems(task: FiniteTask, stage: str, seed: int, index: int, start: int, n: int) -> list[Problem]:
    """Problems `start` … `start + n − 1` of the endless sequence of shuffled epochs of a stage."""
    size = task.train_size(stage)
    chosen: list[Problem] = []
    for epoch in range(start // size, (start + n - 1) // size + 1):
        order = np.random.default_rng([seed, _EPOCH_STREAM, index, epoch]).permutation(size)
        low, high = max(start - epoch * size, 0), min(start + n - epoch * size, size)
        chosen.extend(task.train_problem(stage, int(position)) for position in order[low:high])
    return chosen
