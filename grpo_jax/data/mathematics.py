"""Competition mathematics in the format of MATH (Hendrycks et al. 2021, arXiv:2103.03874) and its redistributions.

A line has the question in `question` or `problem`, and its answer in one of three ways: a bare `answer`, perhaps with a
`solution`; an `answer` that is a solution and ends in "The answer is: X"; or a `solution` alone, whose last box is the
answer.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from grpo_jax.data.jsonl import JsonlTask, build_task
from grpo_jax.data.source import Row, SourceConfig, text_field
from grpo_jax.data.task import Problem, question_key

STAGE = "math"
FINAL_MARK = "The answer is:"
_BOXES = ("\\boxed", "\\fbox")


def _tagged(working: str, answer: str) -> str:
    return f"<think>{working}</think><answer>{answer}</answer>"


def _boxed(working: str, answer: str) -> str:
    return working if last_box(working) == answer else f"{working}\n\n\\boxed{{{answer}}}"


SOLUTION_FORMATS: dict[str, Callable[[str, str], str]] = {"think_answer": _tagged, "boxed": _boxed}
"""How (working, answer) become a completion: inside tags, or as MATH writes it, with the answer in the last box."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MathConfig(SourceConfig):
    """Where the problems are and how their solutions are written.

    Attributes:
      path: JSONL file of the problems; one whose name ends in .gz is unpacked as it is read.
      heldout_path: second JSONL file whose problems are held out; None holds out a share of `path`.
      heldout_fraction: share to hold out where there is no second source of held-out problems, in (0, 1).
      hub: data set of the Hugging Face Hub in the place of `path`, such as "HuggingFaceH4/MATH-500"; needs the extra `hf`.
      hub_name: its configuration; None where it has one alone.
      hub_split: its split of training problems.
      hub_heldout_split: its split of held-out problems; None holds out a share of `hub_split`.
      stage: field with the stage's name, such as "level"; None puts all problems into one stage, "math".
      solution_format: "think_answer" or "boxed", see `SOLUTION_FORMATS`.
    """

    stage: str | None = None
    solution_format: str = "think_answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stage == "":
            raise ValueError("stage must not be empty; null puts all problems into one stage")
        if self.solution_format not in SOLUTION_FORMATS:
            raise ValueError(f"solution_format is one of {sorted(SOLUTION_FORMATS)}; got {self.solution_format!r}")


def last_box(text: str) -> str | None:
    """What the last `\\boxed{…}` or `\\fbox{…}` encloses, braces balanced, or what `\\boxed ` stands before up to a "$"."""
    start, mark = max((text.rfind(mark), mark) for mark in _BOXES)
    if start < 0:
        return None
    rest = text[start + len(mark) :]
    if not rest.startswith("{"):
        return rest.partition("$")[0].strip() if rest.startswith(" ") else None
    depth = 0
    for index, character in enumerate(rest):
        # An escaped brace is a character of the answer: \left\{ 1 \right\} has no partner to balance.
        if index and rest[index - 1] == "\\" and rest[index - 2 : index] != "\\\\":
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:index].strip()
    return None


def split_row(where: str, row: Row) -> tuple[str | None, str]:
    """(working or None, reference answer) of a record.

    Raises:
      ValueError: no answer is found; names the place.
    """
    solution = text_field(where, row, "solution") if row.get("solution") else None
    if row.get("answer") is not None:
        text = text_field(where, row, "answer", numbers=True)
        working, mark, final = text.rpartition(FINAL_MARK)
        if not mark:
            return solution, text
        answer: str | None = final.strip() or last_box(working)
        solution = solution or working.strip()
    else:
        text = solution or ""
        answer = last_box(text)
    if not answer:
        raise ValueError(
            f"{where}: an answer is a bare 'answer', an 'answer' that ends in {FINAL_MARK!r} and the answer itself, or the "
            f"last box of a 'solution'; got …{text[-60:]!r}, fields {sorted(row)}"
        )
    return solution or None, answer


def math_task(**options: Any) -> JsonlTask:
    """The task described by `MathConfig(**options)`.

    Raises:
      ValueError: a file, line or option breaks a rule; names it.
    """
    config = MathConfig(**options)
    form = SOLUTION_FORMATS[config.solution_format]

    def parse(where: str, row: Row) -> Problem:
        prompt = text_field(where, row, "problem" if "question" not in row and "problem" in row else "question")
        working, answer = split_row(where, row)
        return Problem(
            prompt=prompt,
            answer=answer,
            stage=STAGE if config.stage is None else text_field(where, row, config.stage, numbers=True),
            key=question_key(prompt),
            solution=None if working is None else form(working, answer),
        )

    return build_task(parse, config)
