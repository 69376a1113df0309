"""The generated puzzles of the package reasoning-gym (arXiv:2505.24760), of the extra `gym`, as a task without an end.

An entry's side of the split is a hash of its question, so training and held-out problems share no question, whatever
the seeds and however long a run. An entry goes to the reward as part of a problem's metadata, written in JSON: it cannot
be generated again there, because some generators walk through sets, whose order differs from process to process.
"""

import dataclasses
import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.data.task import Problem, Split, question_key

_HELDOUT_STREAM = 11
_SEEDS = 2**31
_PATIENCE = 50
"""Expected number of problems of a side without a new one before it counts as exhausted: by chance, once in e^50."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReasoningGymConfig:
    """What is generated.

    Attributes:
      datasets: the stages, easiest first: a list of names of data sets, or {stage: options}, where the options are those
        of the data set's own config and `dataset`, its name, which may be left out where the stage has that name.
      heldout_fraction: share of all questions that is held out, in (0, 1). Held-out problems cost the generator 1/share as
        many draws: for a slow generator 0.5 is cheaper.
      seed: of the held-out problems; those of training come from the run's own generator.
    """

    datasets: Sequence[str] | Mapping[str, Mapping[str, Any] | None]
    heldout_fraction: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.datasets, str) or not self.datasets:
            raise ValueError(
                f"datasets is {self.datasets!r}, but it must be a list of names, or a mapping from stages to options, with "
                "at least one of them"
            )
        if len(set(self.datasets)) < len(self.datasets):
            raise ValueError(
                f"datasets is {list(self.datasets)}, but it must name each once. Give stages of one data set as a mapping"
            )
        if not 0 < self.heldout_fraction < 1:
            raise ValueError(f"heldout_fraction lies between 0 and 1, both excluded; got {self.heldout_fraction}")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, but it must be 0 or more")
        for stage, (_, options) in self.stages.items():
            taken = sorted({"seed", "size"} & set(options))
            if taken:
                raise ValueError(
                    f"datasets[{stage!r}] has {taken}, but it must leave seed and size to the task, which draws without end"
                )

    @property
    def stages(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """{stage: (name of the data set, options of its config)}."""
        if not isinstance(self.datasets, Mapping):
            return {name: (name, {}) for name in self.datasets}
        stages = {}
        for stage, options in self.datasets.items():
            rest = dict(options or {})
            stages[stage] = (rest.pop("dataset", stage), rest)
        return stages


class ReasoningGymTask:
    """Problems of reasoning-gym.

    The reference is the entry's answer, "" where a puzzle has many and names none. The metadata is what the reward
    `reasoning_gym` reads: `dataset`, `config`, and `entry`, in the form of `encode`.

    Args:
      options: fields of `ReasoningGymConfig`.

    Raises:
      ValueError: the package is not installed, it has no such data set, or a data set refuses its options.
    """

    def __init__(self, **options: Any) -> None:
        self.config = ReasoningGymConfig(**options)
        self._gym = _package()
        self._heldout: dict[str, list[Problem]] = {stage: [] for stage in self.stages}
        self._heldout_draws: dict[str, Iterator[Problem]] = {}
        known = importlib.import_module("reasoning_gym.factory").DATASETS
        for stage, (name, _) in self.config.stages.items():
            if name not in known or name == "composite":
                raise ValueError(
                    f"datasets[{stage!r}] is of {name!r}, but it must be of one of "
                    f"{sorted(set(known) - {'composite'})}. Stages take the place of composite"
                )
            self._dataset(stage, seed=0, size=1)

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(self.config.stages)

    def sample(self, rng: np.random.Generator, stage: str, n: int, split: Split = "train") -> list[Problem]:
        """`n` problems of a stage from one side of the split, generated from seeds that `rng` draws.

        Raises:
          ValueError: the generator gives no problem of that side.
        """
        share = self.config.heldout_fraction if split == "heldout" else 1 - self.config.heldout_fraction
        chosen: list[Problem] = []
        missed = 0
        for problem in self._draw(stage, rng, int(n / share) + 4):
            if problem is not None and self._is_heldout(problem) == (split == "heldout"):
                chosen.append(problem)
                missed = 0
                if len(chosen) >= n:
                    break
            missed += 1
            if missed * share > _PATIENCE:
                raise ValueError(
                    f"datasets[{stage!r}] gave no {split} problem in {missed} draws: it has too few different questions. "
                    "Widen its options, or change heldout_fraction"
                )
        return chosen[:n]

    def heldout(self, stage: str, n: int) -> list[Problem]:
        """The first `n` distinct held-out problems of a stage (fewer where there are fewer)."""
        known = self._heldout[self._known(stage)]
        if stage not in self._heldout_draws:
            self._heldout_draws[stage] = self._distinct_heldout(stage)
        known.extend(itertools.islice(self._heldout_draws[stage], max(n - len(known), 0)))
        return known[:n]

    def demonstration(self, problem: Problem, rng: np.random.Generator) -> str:
        """The bare answer in tags: reasoning-gym has no worked solutions.

        Raises:
          ValueError: the puzzle names no answer.
        """
        if problem.solution is None:
            raise ValueError(
                f"datasets[{problem.stage!r}] names no answer to imitate; SFT needs one. Set the SFT steps to 0, or leave "
                "the stage out"
            )
        return problem.solution

    def _known(self, stage: str) -> str:
        if stage not in self._heldout:
            raise ValueError(f"unknown stage {stage!r}; the stages are {list(self.stages)}")
        return stage

    def _dataset(self, stage: str, *, seed: int, size: int) -> Any:
        name, options = self.config.stages[self._known(stage)]
        try:
            return self._gym.create_dataset(name, **options, seed=seed, size=size)
        except (TypeError, AssertionError, ValueError) as error:
            raise ValueError(f"datasets[{stage!r}]: {name} refuses its options {options}: {error}") from error

    def _draw(self, stage: str, rng: np.random.Generator, size: int) -> Iterator[Problem | None]:
        """Problems without end, None for an entry that makes none, from data sets of `size` entries and seeds of `rng`."""
        while True:
            dataset = self._dataset(stage, seed=int(rng.integers(_SEEDS)), size=size)
            for index in range(len(dataset)):
                yield self._problem(stage, dataset[index])

    def _distinct_heldout(self, stage: str) -> Iterator[Problem]:
        rng = np.random.default_rng([self.config.seed, _HELDOUT_STREAM, self.stages.index(stage)])
        keys: set[str] = set()
        missed = 0
        for problem in self._draw(stage, rng, 64):
            missed += 1
            if problem is not None and self._is_heldout(problem) and problem.key not in keys:
                keys.add(problem.key)
                missed = 0
                yield problem
            if missed * self.config.heldout_fraction > _PATIENCE:
                return

    def _is_heldout(self, problem: Problem) -> bool:
        return int(problem.key, 16) < self.config.heldout_fraction * 16**16

    def _problem(self, stage: str, entry: Mapping[str, Any]) -> Problem | None:
        """The problem of an entry, None where its answer is an empty text, which no completion can give."""
        name, options = self.config.stages[stage]
        answer = entry["answer"]
        if answer is not None and not str(answer).strip():
            return None
        return Problem(
            prompt=entry["question"],
            answer="" if answer is None else str(answer),
            stage=stage,
            key=question_key(entry["question"]),
            solution=None if answer is None else f"<think></think><answer>{answer}</answer>",
            metadata={"dataset": name, "config": options, "entry": encode(entry, name)},
        )


def encode(value: Any, name: str) -> Any:
    """`value` in JSON's types, without loss: a tuple is {"tuple": [...]}, a mapping {"dict": [[key, value], ...]}.

    Args:
      value: an entry of a data set, or a part of one.
      name: the data set, for messages.

    Raises:
      ValueError: it holds a type that has no such form.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)  # also numpy's own str
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [encode(item, name) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item, name) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key, name), encode(item, name)] for key, item in value.items()]}
    raise ValueError(f"datasets: an entry of {name} holds a {type(value).__name__}, which cannot be handed to the reward")


def _package() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ValueError(
            "data.task is 'reasoning_gym', but the package reasoning-gym is not installed: pip install 'grpo_jax[gym]'"
        ) from error
