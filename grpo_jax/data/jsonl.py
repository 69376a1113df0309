"""A task from records: one problem each, split into training and held-out problems that never meet."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.data.source import Row, SourceConfig, plain, text_field
from grpo_jax.data.task import Problem, Split, question_key
from grpo_jax.data.template import PromptTemplate

SINGLE_STAGE = "all"
"""The stage of every problem in a file that has no stage field."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonlConfig(SourceConfig):
    """Where the problems are and what their fields are called.

    Attributes:
      path: JSONL file of the problems; one whose name ends in .gz is unpacked as it is read.
      heldout_path: second JSONL file whose problems are held out; None holds out a share of `path`.
      heldout_fraction: share to hold out where there is no second source of held-out problems, in (0, 1).
      hub: data set of the Hugging Face Hub in the place of `path`, such as "openai/gsm8k"; needs the extra `hf`.
      hub_name: its configuration, such as "main"; None where it has one alone.
      hub_split: its split of training problems.
      hub_heldout_split: its split of held-out problems; None holds out a share of `hub_split`.
      question: field with the question.
      answer: field with the reference answer, text or a number; None where metadata alone decides, the reference is "".
      solution: field with a full completion to imitate in SFT, None where there is none.
      stage: field with the stage's name, None puts all problems into one. Stages are ordered as they first appear.
      metadata: fields that the reward reads, as a list of names or as {name that the reward reads: field}.
    """

    question: str = "question"
    answer: str | None = "answer"
    solution: str | None = None
    stage: str | None = None
    metadata: Mapping[str, str] | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("question", "answer"):
            if getattr(self, field) == "":
                raise ValueError(f"{field} must not be empty")
        names = [] if self.metadata is None else [*self.metadata]
        fields = list(self.metadata.values()) if isinstance(self.metadata, Mapping) else names
        if isinstance(self.metadata, str) or not all(isinstance(name, str) and name for name in (*names, *fields)):
            raise ValueError(
                f"metadata is {self.metadata!r}, but it must be a list of fields or a mapping from the reward's names to "
                "fields, none of them empty"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"metadata is {self.metadata!r}, but it must name each field once")

    @property
    def metadata_fields(self) -> dict[str, str]:
        """{name that the reward reads: field of the record}."""
        if self.metadata is None:
            return {}
        return dict(self.metadata) if isinstance(self.metadata, Mapping) else {name: name for name in self.metadata}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadCounts:
    """What became of the lines.

    Attributes:
      duplicates: training problems removed because the same question is held out.
      long_prompts: problems removed by `limit_length` for their prompt.
      long_solutions: training problems removed by `limit_length` for their solution.
    """

    duplicates: int = 0
    long_prompts: int = 0
    long_solutions: int = 0

    def __str__(self) -> str:
        """What was left out and why, or "" where nothing was."""
        reasons = {
            "because their question is held out": self.duplicates,
            "for a prompt that is too long": self.long_prompts,
            "for a solution that is too long": self.long_solutions,
        }
        return ", ".join(f"{count} problems left out {reason}" for reason, count in reasons.items() if count)


class JsonlTask:
    """Problems held in memory, as a `FiniteTask`.

    Args:
      train: training problems.
      heldout: held-out problems, in the order in which `heldout` gives them.
      source: where they come from, for messages.
      counts: what became of the lines.

    Raises:
      ValueError: a stage has no training or no held-out problem, or a question stands on both sides.
    """

    def __init__(
        self, train: Sequence[Problem], heldout: Sequence[Problem], *, source: str, counts: LoadCounts | None = None
    ) -> None:
        self.source = source
        self.counts = LoadCounts() if counts is None else counts
        self._stages = tuple(dict.fromkeys(problem.stage for problem in (*train, *heldout)))
        self._sides: dict[str, dict[str, list[Problem]]] = {"train": {}, "heldout": {}}
        for split, problems in (("train", train), ("heldout", heldout)):
            for stage in self._stages:
                chosen = [problem for problem in problems if problem.stage == stage]
                if not chosen:
                    raise ValueError(
                        f"{source}: stage {stage!r} has no {split} problem; every stage needs one of each side. "
                        f"Give it more problems, another heldout_fraction, or a heldout_path that covers it"
                    )
                self._sides[split][stage] = chosen
        shared = {problem.key for problem in train} & {problem.key for problem in heldout}
        if shared:
            raise ValueError(f"{source}: {len(shared)} questions stand on both sides of the split")

    @property
    def stages(self) -> tuple[str, ...]:
        return self._stages

    def _side(self, split: Split, stage: str) -> list[Problem]:
        if split not in self._sides:
            raise ValueError(f"unknown split {split!r}; the splits are {list(self._sides)}")
        if stage not in self._sides[split]:
            raise ValueError(f"unknown stage {stage!r}; the stages of {self.source} are {list(self._stages)}")
        return self._sides[split][stage]

    def sample(self, rng: np.random.Generator, stage: str, n: int, split: Split = "train") -> list[Problem]:
        """`n` problems drawn with replacement."""
        problems = self._side(split, stage)
        return [problems[index] for index in rng.integers(len(problems), size=n)]

    def heldout(self, stage: str, n: int) -> list[Problem]:
        """The first `n` held-out problems, or all where there are fewer."""
        return self._side("heldout", stage)[:n]

    def demonstration(self, problem: Problem, rng: np.random.Generator) -> str:
        """The problem's own solution.

        Raises:
          ValueError: the problem has none.
        """
        if problem.solution is None:
            raise ValueError(
                f"{self.source}: problem {problem.key} ({problem.prompt[:60]!r}) has no solution to imitate; SFT needs "
                f"one. Name the field that holds it (option `solution`) or set the SFT steps to 0"
            )
        return problem.solution

    def train_size(self, stage: str) -> int:
        return len(self._side("train", stage))

    def train_problem(self, stage: str, index: int) -> Problem:
        return self._side("train", stage)[index]

    def limit_length(self, template: PromptTemplate, max_prompt: int, max_completion: int | None = None) -> "JsonlTask":
        """This task without the problems that would not fit a row; `counts` of the result says how many went.

        Args:
          template: encodes the prompts.
          max_prompt: longest prompt kept, in tokens.
          max_completion: longest solution of a training problem kept, in tokens with its eos; None keeps all. Nobody
            imitates a held-out problem's.

        Raises:
          ValueError: a stage would be left with no training or no held-out problem.
        """
        long = {"long_prompts": 0, "long_solutions": 0}
        shortest = None

        def fits(problem: Problem, split: Split) -> bool:
            nonlocal shortest
            length = len(template.encode_prompt(problem))
            shortest = length if shortest is None else min(shortest, length)
            if length > max_prompt:
                long["long_prompts"] += 1
                return False
            if split == "heldout" or max_completion is None or problem.solution is None:
                return True
            if len(template.encode_completion(problem.solution)) > max_completion:
                long["long_solutions"] += 1
                return False
            return True

        splits: tuple[Split, ...] = ("train", "heldout")
        kept = {
            split: [problem for stage in self._stages for problem in self._sides[split][stage] if fits(problem, split)]
            for split in splits
        }
        for stage in self._stages:
            for split, problems in kept.items():
                if not any(problem.stage == stage for problem in problems):
                    raise ValueError(
                        f"{self.source}: no {split} problem of stage {stage!r} fits a prompt of {max_prompt} tokens"
                        + (f" and a solution of {max_completion}" if max_completion is not None else "")
                        + f" ({long['long_prompts']} prompts and {long['long_solutions']} solutions were too long, the "
                        f"shortest prompt has {shortest} tokens); raise the limits"
                    )
        counts = dataclasses.replace(
            self.counts,
            long_prompts=self.counts.long_prompts + long["long_prompts"],
            long_solutions=self.counts.long_solutions + long["long_solutions"],
        )
        return JsonlTask(kept["train"], kept["heldout"], source=self.source, counts=counts)


def build_task(parse: Callable[[str, Row], Problem], config: SourceConfig) -> JsonlTask:
    """Reads the records of one or two sources and splits them.

    Without a second source a problem is held out when the hash of its question falls below `heldout_fraction`, so its
    side depends neither on the order of the records nor on the other problems; the smallest hash of a stage is held out
    in any case, so that every stage can be tested. Held-out problems are ordered by hash, so that the first n are a
    fair sample.

    Args:
      parse: makes a `Problem` of (place for messages, record).
      config: the sources.
    """
    problems = [parse(where, row) for where, row in config.rows()]
    if not problems:
        raise ValueError(f"{config.name} holds no problem; give a JSONL file with one JSON object a line")
    rows = config.heldout_rows()
    if rows is None:
        lowest: dict[str, str] = {}
        for problem in problems:
            lowest[problem.stage] = min(lowest.get(problem.stage, problem.key), problem.key)
        limit = config.heldout_fraction * 16**16
        heldout_keys = {p.key for p in problems if int(p.key, 16) < limit or p.key == lowest[p.stage]}
        heldout = list({p.key: p for p in problems if p.key in heldout_keys}.values())
        train = [p for p in problems if p.key not in heldout_keys]
        return JsonlTask(train, sorted(heldout, key=lambda p: p.key), source=config.name)
    heldout = list({p.key: p for p in (parse(where, row) for where, row in rows)}.values())
    if not heldout:
        raise ValueError(f"{config.heldout_name} holds no problem; give a JSONL file with one JSON object a line")
    keys = {p.key for p in heldout}
    train = [p for p in problems if p.key not in keys]
    return JsonlTask(
        train,
        sorted(heldout, key=lambda p: p.key),
        source=f"{config.name} and {config.heldout_name}",
        counts=LoadCounts(duplicates=len(problems) - len(train)),
    )


def jsonl_task(**options: Any) -> JsonlTask:
    """The task described by `JsonlConfig(**options)`.

    Raises:
      ValueError: a file, line or option breaks a rule; names it.
    """
    config = JsonlConfig(**options)
    metadata = config.metadata_fields

    def parse(where: str, row: Row) -> Problem:
        prompt = text_field(where, row, config.question)
        missing = [field for field in metadata.values() if field not in row]
        if missing:
            raise ValueError(f"{where}: metadata names the field {missing[0]!r}; this row has {sorted(row)}")
        return Problem(
            prompt=prompt,
            answer="" if config.answer is None else text_field(where, row, config.answer, numbers=True),
            stage=SINGLE_STAGE if config.stage is None else text_field(where, row, config.stage, numbers=True),
            key=question_key(prompt),
            solution=None if config.solution is None else text_field(where, row, config.solution),
            metadata={name: plain(where, field, row[field]) for name, field in metadata.items()},
        )

    return build_task(parse, config)
