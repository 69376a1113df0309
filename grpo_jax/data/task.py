"""Problems, the `Task` protocol, and the table that finds a task by name or dotted path."""

import dataclasses
import difflib
import hashlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

Split = Literal["train", "heldout"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One question with its reference answer.

    Attributes:
      prompt: the question as the user would type it; the prompt template adds everything around it.
      answer: the reference that the accuracy reward compares with.
      stage: the curriculum stage it belongs to, one of its task's `stages`.
      key: identity of the question; two problems that ask the same thing have the same key.
      solution: a full completion to imitate, without the eos token; None where the data has none.
      metadata: what else a reward judges by (unit tests, for example), in JSON's types.
    """

    prompt: str
    answer: str
    stage: str
    key: str
    solution: str | None = None
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def question_key(prompt: str) -> str:
    """Sixteen hex digits of the sha256 of `prompt` with case and white space folded: the identity of a question."""
    return hashlib.sha256(" ".join(prompt.casefold().split()).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@runtime_checkable
class Task(Protocol):
    """A source of problems in named stages, easiest first. Training and held-out problems never share a key."""

    @property
    def stages(self) -> tuple[str, ...]: ...

    def sample(self, rng: np.random.Generator, stage: str, n: int, split: Split = "train") -> list[Problem]:
        """`n` problems of `stage`, decided by `rng` alone."""
        ...

    def heldout(self, stage: str, n: int) -> list[Problem]:
        """The first `n` held-out problems of `stage` (fewer where there are fewer): the same list at every call."""
        ...

    def demonstration(self, problem: Problem, rng: np.random.Generator) -> str:
        """A completion to imitate in SFT, without the eos token."""
        ...


@runtime_checkable
class FiniteTask(Task, Protocol):
    """A task whose training problems can be counted, so that an epoch uses each exactly once."""

    def train_size(self, stage: str) -> int:
        """Number of training problems of `stage`, at least 1."""
        ...

    def train_problem(self, stage: str, index: int) -> Problem:
        """The training problem of `stage` at 0 <= index < train_size(stage)."""
        ...


def fingerprint(task: Task) -> str:
    """A hash of all problems of a `FiniteTask`, which come from a file that may change; "" for a task without a list."""
    if not isinstance(task, FiniteTask):
        return ""
    digest = hashlib.sha256()
    for stage in task.stages:
        size = task.train_size(stage)
        for problem in (*(task.train_problem(stage, index) for index in range(size)), *task.heldout(stage, size)):
            parts = dataclasses.astuple(problem)
            digest.update(repr(parts if problem.metadata else parts[:-1]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


TASKS: dict[str, str] = {
    "arithmetic": "grpo_jax.data.arithmetic:ArithmeticTask",
    "gsm8k": "grpo_jax.data.gsm8k:gsm8k_task",
    "humaneval": "grpo_jax.data.humaneval:humaneval_task",
    "jsonl": "grpo_jax.data.jsonl:jsonl_task",
    "math": "grpo_jax.data.mathematics:math_task",
    "reasoning_gym": "grpo_jax.data.reasoning_gym:ReasoningGymTask",
}
"""Task name to the dotted path of its factory; a factory takes keyword options and returns a `Task`."""


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """Builds the task called `name` in `TASKS`, or the one that the factory at dotted path "package.module:name" makes.

    Args:
      name: a key of `TASKS` or a dotted path with one colon.
      options: keyword arguments for the factory.

    Raises:
      ValueError: the name is unknown, the path leads nowhere, the factory does not take an option, or what it returns
        is no task.
    """
    if name not in TASKS and ":" not in name:
        close = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"unknown task {name!r}: give one of {sorted(TASKS)} or a dotted path 'package.module:factory'{hint}"
        )
    path = TASKS.get(name, name)
    try:
        factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"task {name!r} cannot be loaded from {path!r}: {error}; is it importable?") from error
    if not callable(factory):
        raise ValueError(f"task {name!r}: {path!r} is a {type(factory).__name__}, not a factory that can be called")
    options = dict(options or {})
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        known = list(inspect.signature(factory).parameters)
        raise ValueError(f"task {name!r}: {error}; got {sorted(options)}, its options are {known}") from error
    try:
        task = factory(**options)
    except TypeError as error:
        raise ValueError(f"task {name!r} cannot be made with options {options}: {error}") from error
    if not isinstance(task, Task):
        missing = [part for part in ("stages", "sample", "heldout", "demonstration") if not hasattr(task, part)]
        raise ValueError(f"task {name!r} made a {type(task).__name__}, which lacks {missing} of the Task protocol")
    return task
