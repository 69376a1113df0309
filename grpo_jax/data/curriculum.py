"""The curriculum: which stage each training problem comes from, and which problem of that stage it is.

Draws are numbered from 0 through a training phase: step s of n problems makes draws s·n … s·n + n − 1. The draw number
and the state alone decide a problem, so a resumed run needs only its step and this state to see exactly the problems
that it would have seen.

Stages are dealt from blocks that hold each in exact proportion to its weight, shuffled by seed and block number. That
keeps every batch near the weights, and makes the number of problems drawn from a stage so far a closed form, which is
the position in the stage's epochs.

Mode difficulty follows what the policy got right in training. `observe` folds each step into the state, which then
begins at the next draw: between two calls the shares stand still, so the same rule holds.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from jaxtyping import Float

from grpo_jax.data.difficulty import Difficulty, averaged, signal, stage_accuracy
from grpo_jax.data.epochs import accepted_problems, epoch_problems
from grpo_jax.data.task import FiniteTask, Problem, Task

__all__ = [
    "MODES",
    "CurriculumConfig",
    "CurriculumState",
    "Mode",
    "advance",
    "initial_state",
    "observe",
    "sample_problems",
    "stage_weights",
]

RESOLUTION = 1000
"""A block has at most about this many draws; a positive weight gets at least one of them."""

# Second word of every generator's key, so that no two kinds of draw share their noise; epochs have 3 and 4.
_BLOCK_STREAM, _PROBLEM_STREAM = 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """How stages share the training problems.

    An option that is null takes the default of its mode; one that the mode has no use for must be null (weights: empty).

    Attributes:
      mode: "mixed" draws from all stages at all times; "sequential" trains one stage after another; "difficulty" prefers
        the stages and problems that the policy sometimes gets right in GRPO, and is "mixed" with equal shares in SFT.
      weights: mixed: share of each stage, in any unit; empty means equal shares.
      advance_at: sequential: accuracy of the current stage, in (0, 1], at which the next one begins; null is 0.9.
      replay: sequential: share of draws, in [0, 1), that goes to the earlier stages, so that they are not forgotten; null
        is 0.25.
      floor: difficulty: least weight of a stage and least chance of a problem, in [0.01, 1), where one of success rate 1/2
        has 1; null is 0.1.
      smoothing: difficulty: weight of the past, in [0, 1), in the moving averages of success rates; null is 0.7.
    """

    mode: str = "mixed"
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    advance_at: float | None = None
    replay: float | None = None
    floor: float | None = None
    smoothing: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}, but it must be one of {', '.join(MODES)}")
        for name, (holds, rule) in _RANGES.items():
            value = getattr(self, name)
            if value is None or value == {}:
                continue
            if name not in MODES[self.mode].options:
                users = ", ".join(mode for mode in MODES if name in MODES[mode].options)
                raise ValueError(
                    f"{name} is {value!r}, but the mode {self.mode} has no use for it; leave it "
                    f"{'empty' if name == 'weights' else 'null'}, or choose one of {users}"
                )
            if not holds(value):
                raise ValueError(f"{name} is {value!r}, but it must be {rule}")

    def option(self, name: str) -> float:
        """The number in force for an option of the mode: the one given, or the mode's default."""
        value = getattr(self, name)
        return MODES[self.mode].options[name] if value is None else value


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "weights": (
        lambda value: all(0 <= weight < math.inf for weight in value.values()) and any(value.values()),
        "finite, not negative and not all 0",
    ),
    "advance_at": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "replay": (lambda value: 0 <= value < 1, "0 or more and below 1"),
    "floor": (
        # Every draw looks at up to 1/floor problems; at 1 nothing would be preferred.
        lambda value: 0.01 <= value < 1,
        "at least 0.01 and below 1",
    ),
    "smoothing": (lambda value: 0 <= value < 1, "0 or more and below 1"),
}


class CurriculumState(TypedDict):
    """The part of the run state that belongs to the curriculum; plain JSON.

    `level`: the current stage's index (0 but in sequential mode). `since`: the draw from which on the shares are what they
    are. `drawn`: problems drawn from each stage before `since`. `difficulty`: what mode difficulty has observed, absent
    before it has; no other mode writes it.
    """

    level: int
    since: int
    drawn: dict[str, int]
    difficulty: NotRequired[Difficulty]


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
    raw = MODES[config.mode].weights(config, state)
    total = sum(raw.values())
    return {stage: weight / total for stage, weight in raw.items()}


def advance(
    config: CurriculumConfig, state: CurriculumState, accuracy: Mapping[str, float], draws: int, seed: int
) -> CurriculumState:
    """The state after `accuracy` was measured; the same object where nothing changes.

    Sequential mode moves to the next stage when the current one's accuracy reaches `advance_at`; an accuracy that was
    not measured (absent or NaN) never advances. The other modes do not change here.

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
    if not accuracy.get(stages[state["level"]], math.nan) >= config.option("advance_at"):
        return state
    return {"level": state["level"] + 1, "since": draws, "drawn": _drawn(config, state, seed, draws)}


def observe(
    task: Task,
    config: CurriculumConfig,
    state: CurriculumState,
    problems: Sequence[Problem],
    accuracy: Sequence[float] | Float[np.ndarray, " P"],
    draws: int,
    seed: int,
) -> CurriculumState:
    """The state after a training step was judged; the same object in modes other than difficulty.

    The problems may be those of `sample_problems` with `seed` and any more that other seeds gave. All of them are learnt
    from. What the epochs have used up is computed anew from the state, so that only the draws of `seed` count.

    Args:
      task: where problems come from.
      config: the curriculum.
      state: the state that the step's problems were sampled with.
      problems: the P problems judged, in the same order on every host.
      accuracy: [P] mean accuracy of each problem's completions, in [0, 1]; NaN where it is not known.
      draws: problems drawn so far in this phase, with the step: steps done × problems a step.
      seed: the seed given to `sample_problems`.

    Raises:
      ValueError: the lengths differ, an accuracy is none, or `draws` precedes the state.
    """
    if config.mode != "difficulty":
        return state
    values = [float(value) for value in accuracy]
    if len(values) != len(problems):
        raise ValueError(f"accuracy has {len(values)} numbers for {len(problems)} problems; give one of each problem")
    for value in values:
        if not (math.isnan(value) or 0 <= value <= 1):
            raise ValueError(
                f"accuracy is {value!r}, but the mode difficulty takes it for a success rate: it must be 0 or more and at "
                "most 1. Choose another mode, or an accuracy reward in [0, 1]"
            )
    if draws < state["since"]:
        raise ValueError(f"draws is {draws}, but the state begins at draw {state['since']}; count all draws of the phase")
    old = _difficulty(state)
    drawn = _drawn(config, state, seed, draws)
    smoothing = config.option("smoothing")
    by_stage = stage_accuracy(problems, values)
    new: Difficulty = {
        "stages": averaged(old["stages"], list(by_stage), list(by_stage.values()), smoothing),
        "problems": {},
        "places": {},
    }
    if isinstance(task, FiniteTask):
        new["problems"] = averaged(old["problems"], [problem.key for problem in problems], values, smoothing)
        for index, stage in enumerate(drawn):
            used = drawn[stage] - state["drawn"][stage]
            new["places"][stage] = _deal(task, config, state, seed, index, used)[1]
    return {"level": state["level"], "since": draws, "drawn": drawn, "difficulty": new}


def sample_problems(
    task: Task, config: CurriculumConfig, state: CurriculumState, seed: int, step: int, n: int
) -> list[Problem]:
    """The `n` training problems of `step`, a pure function of its arguments.

    A `FiniteTask` gives every problem of a stage once per epoch, in an order shuffled by (seed, stage, epoch). In mode
    difficulty an epoch offers every problem once, and some are passed over until the next one. Other tasks draw theirs
    from a generator keyed by (seed, step, stage).

    Another seed gives other problems of the same step: other orders, from the places that the state has reached.

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
            earlier = before[stage] - state["drawn"][stage]
            chosen = _deal(task, config, state, seed, index, slots.size, earlier)[0]
        else:
            rng = np.random.default_rng([seed, _PROBLEM_STREAM, step, index])
            chosen = task.sample(rng, stage, slots.size, "train")
        for slot, problem in zip(slots, chosen, strict=True):
            problems[slot] = problem
    return [problem for problem in problems if problem is not None]


def _mixed(config: CurriculumConfig, state: CurriculumState) -> dict[str, float]:
    stages = tuple(state["drawn"])
    unknown = sorted(set(config.weights) - set(stages))
    if unknown:
        raise ValueError(f"weights name stages {unknown} that the task does not have; its stages are {list(stages)}")
    if not config.weights:
        return dict.fromkeys(stages, 1.0)
    return {stage: config.weights.get(stage, 0.0) for stage in stages}


def _sequential(config: CurriculumConfig, state: CurriculumState) -> dict[str, float]:
    stages, level, replay = tuple(state["drawn"]), state["level"], config.option("replay")
    weights = dict.fromkeys(stages, 0.0)
    for earlier in stages[:level]:
        weights[earlier] = replay / level
    weights[stages[level]] = 1.0 - replay if level else 1.0
    return weights


def _by_difficulty(config: CurriculumConfig, state: CurriculumState) -> dict[str, float]:
    averages, floor = _difficulty(state)["stages"], config.option("floor")
    return {stage: signal(averages.get(stage), floor) for stage in state["drawn"]}


class Mode(NamedTuple):
    """A way to share the draws.

    Attributes:
      weights: (config, state) -> weight of each stage.
      options: the fields of the config that it has a use for, with their defaults; weights have none.
    """

    weights: Callable[[CurriculumConfig, CurriculumState], dict[str, float]]
    options: Mapping[str, float]


MODES: dict[str, Mode] = {
    "mixed": Mode(_mixed, {"weights": math.nan}),
    "sequential": Mode(_sequential, {"advance_at": 0.9, "replay": 0.25}),
    # 0.7: a stage's average rests on (1 + 0.7)/(1 − 0.7), about six, steps, enough to even out the luck of a few groups;
    # and a problem that was out of reach and is solved since weighs less than half after six visits.
    "difficulty": Mode(_by_difficulty, {"floor": 0.1, "smoothing": 0.7}),
}
"""Mode name to what it does."""


def _difficulty(state: CurriculumState) -> Difficulty:
    """What was observed. Before anything was, every problem drawn was taken."""
    if "difficulty" in state:
        return state["difficulty"]
    return {"stages": {}, "problems": {}, "places": state["drawn"]}


def _deal(
    task: FiniteTask, config: CurriculumConfig, state: CurriculumState, seed: int, index: int, n: int, earlier: int = 0
) -> tuple[list[Problem], int]:
    """`n` problems of a stage after the `earlier` first ones since the state began, and the place behind them."""
    stage = tuple(state["drawn"])[index]
    if config.mode == "difficulty" and "difficulty" in state:
        seen, floor = state["difficulty"]["problems"], config.option("floor")
        start = state["difficulty"]["places"][stage]
        chosen, stop = accepted_problems(
            task, stage, seed, index, start, earlier + n, lambda problem: signal(seen.get(problem.key), floor)
        )
        return chosen[earlier:], stop
    start = state["drawn"][stage] + earlier
    return epoch_problems(task, stage, seed, index, start, n) if n else [], start + n


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
