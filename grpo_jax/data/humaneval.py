"""Python functions to complete, in the format of HumanEval (Chen et al. 2021, arXiv:2107.03374).

A line is {"prompt": signature and docstring, "test": source that defines check(candidate), "entry_point": the function's
name, "canonical_solution": its body}.
"""

from typing import Any

from grpo_jax.data.jsonl import JsonlTask, build_task
from grpo_jax.data.source import Row, SourceConfig, text_field
from grpo_jax.data.task import Problem, question_key

STAGE = "humaneval"


def _source(where: str, row: Row, field: str) -> str:
    """Python source as it is written: white space at its ends can be indentation."""
    text_field(where, row, field)
    return row[field]


def humaneval_task(**options: Any) -> JsonlTask:
    """The task described by `SourceConfig(**options)`: one stage, "humaneval".

    The metadata of a problem is what a reward for code reads: `tests`, `entry_point`, and `preamble`, the source that the
    completion goes on from. The reference is "". A problem with a `canonical_solution` has the whole function in a fence
    as its solution.

    Raises:
      ValueError: a file, line or option breaks a rule; names it.
    """

    def parse(where: str, row: Row) -> Problem:
        preamble = _source(where, row, "prompt")
        solution = None
        if row.get("canonical_solution") is not None:
            body = _source(where, row, "canonical_solution").rstrip()
            solution = f"```python\n{preamble}{body}\n```"
        return Problem(
            prompt=preamble.strip(),
            answer="",
            stage=STAGE,
            key=question_key(preamble),
            solution=solution,
            metadata={
                "preamble": preamble,
                "tests": _source(where, row, "test"),
                "entry_point": text_field(where, row, "entry_point"),
            },
        )

    return build_task(parse, SourceConfig(**options))
