"""Grade-school word problems in the format of GSM8K (Cobbe et al. 2021, arXiv:2110.14168).

A line is {"question": …, "answer": "working\\n#### final"}; the working carries calculator annotations `<<48/2=24>>`.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from grpo_jax.data.jsonl import JsonlTask, build_task
from grpo_jax.data.source import Row, SourceConfig, text_field
from grpo_jax.data.task import Problem, question_key

STAGE = "gsm8k"
FINAL_MARK = "####"

_ANNOTATION = re.compile(r"<<[^<>]*>>")
_GROUPED_NUMBER = re.compile(r"\$? ?([+-]?)\$? ?([0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)")


def _tagged(working: str, final: str) -> str:
    return f"<think>{working}</think><answer>{final}</answer>"


def _marked(working: str, final: str) -> str:
    return f"{working}\n{FINAL_MARK} {final}"


SOLUTION_FORMATS: dict[str, Callable[[str, str], str]] = {"think_answer": _tagged, "marked": _marked}
"""How (working, final answer) become a completion: inside tags, or as GSM8K writes it with "####"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GSM8KConfig(SourceConfig):
    """Where the problems are and how their solutions are written.

    Attributes:
      path: JSONL file of the problems; one whose name ends in .gz is unpacked as it is read.
      heldout_path: second JSONL file whose problems are held out; None holds out a share of `path`.
      heldout_fraction: share to hold out where there is no second source of held-out problems, in (0, 1).
      hub: data set of the Hugging Face Hub in the place of `path`, "openai/gsm8k"; needs the extra `hf`.
      hub_name: its configuration, "main".
      hub_split: its split of training problems.
      hub_heldout_split: its split of held-out problems; None holds out a share of `hub_split`.
      solution_format: "think_answer" or "marked", see `SOLUTION_FORMATS`.
    """

    solution_format: str = "think_answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solution_format not in SOLUTION_FORMATS:
            raise ValueError(f"solution_format is one of {sorted(SOLUTION_FORMATS)}; got {self.solution_format!r}")


def split_answer(text: str) -> tuple[str, str]:
    """(working without annotations, final answer without commas and dollar sign) of an answer field.

    Raises:
      ValueError: nothing follows the last "####", or there is none.
    """
    working, mark, final = text.rpartition(FINAL_MARK)
    final = final.strip()
    if not mark or not final:
        raise ValueError(f"a GSM8K answer ends with '{FINAL_MARK} final'; got …{text[-60:]!r}")
    number = _GROUPED_NUMBER.fullmatch(final)
    if number:
        final = number.group(1) + number.group(2).replace(",", "")
    return _ANNOTATION.sub("", working).strip(), final


def gsm8k_task(**options: Any) -> JsonlTask:
    """The task described by `GSM8KConfig(**options)`: one stage, "gsm8k".

    Raises:
      ValueError: a file, line or option breaks a rule; names it.
    """
    config = GSM8KConfig(**options)
    form = SOLUTION_FORMATS[config.solution_format]

    def parse(where: str, row: Row) -> Problem:
        prompt = text_field(where, row, "question")
        answer = text_field(where, row, "answer")
        try:
            working, final = split_answer(answer)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        return Problem(prompt=prompt, answer=final, stage=STAGE, key=question_key(prompt), solution=form(working, final))

    return build_task(parse, config)
