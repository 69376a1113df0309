"""The five-stage arithmetic curriculum: generated, seeded, and split so that no held-out problem is ever trained on.

Stages: two-digit addition; subtraction with negative results; multiplication; two operations with precedence; three
operations with parentheses. A problem's side of the split is a hash of its canonical form, in which `47+85` and `85+47`
are one problem: the held-out set is disjoint from training by construction, for any seed and any length of run. Nor is
a longer problem trained on when one step of it is a held-out problem: `7*5+42` is left out where `35+42` is held out.

Demonstrations are of mixed quality on purpose: a share skips the working and states the right answer, and a share slips
in one step. A model fine-tuned on them knows how to work and does so only sometimes, which leaves GRPO groups
with both right and wrong answers; demonstrations that are all clean leave groups all right or all wrong, and no signal.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np

from grpo_jax.data import expression as ex
from grpo_jax.data.expression import Expression, Operation
from grpo_jax.data.task import Problem, Split
from grpo_jax.data.working import work

ALPHABET = "0123456789+-*()=:;,"
HELDOUT_ONE_IN = 8

Rng = np.random.Generator


TWO_DIGITS = range(10, 100)
FACTORS = range(2, 10)


def _one_of(rng: Rng, numbers: range) -> int:
    return int(rng.integers(numbers.start, numbers.stop))


def _addition(rng: Rng) -> Expression:
    return Operation("+", _one_of(rng, TWO_DIGITS), _one_of(rng, TWO_DIGITS))


def _subtraction(rng: Rng) -> Expression:
    return Operation("-", _one_of(rng, TWO_DIGITS), _one_of(rng, TWO_DIGITS))


def _multiplication(rng: Rng) -> Expression:
    sides = [_one_of(rng, TWO_DIGITS), _one_of(rng, FACTORS)]
    rng.shuffle(sides)
    return Operation("*", *sides)


def _precedence(rng: Rng) -> Expression:
    product = Operation("*", _one_of(rng, FACTORS), _one_of(rng, FACTORS))
    other = _one_of(rng, TWO_DIGITS)
    shape = _one_of(rng, range(4))
    if shape == 0:
        return Operation("+", other, product)
    if shape == 1:
        return Operation("-", other, product)
    return Operation("+" if shape == 2 else "-", product, other)


def _parentheses(rng: Rng) -> Expression:
    total, part = _one_of(rng, FACTORS), _one_of(rng, range(1, 9))
    part = min(part, total - 1)
    group: Expression = Operation("+", part, total - part) if rng.integers(2) else Operation("-", total, part)
    factor = _one_of(rng, FACTORS)
    product = Operation("*", group, factor) if rng.integers(2) else Operation("*", factor, group)
    other = _one_of(rng, TWO_DIGITS)
    operator = "+" if rng.integers(2) else "-"
    return Operation(operator, product, other) if rng.integers(2) else Operation(operator, other, product)


STAGES: dict[str, Callable[[Rng], Expression]] = {
    "addition": _addition,
    "subtraction": _subtraction,
    "multiplication": _multiplication,
    "precedence": _precedence,
    "parentheses": _parentheses,
}


def is_heldout(expression: Expression) -> bool:
    """One problem in eight, by a hash of its canonical form."""
    digest = hashlib.blake2b(ex.canonical_key(expression).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELDOUT_ONE_IN == 0


def is_trainable(expression: Expression) -> bool:
    """Neither held out, nor with a step that is a held-out problem of a stage of one operation."""
    steps = filter(_is_stage_of_one_operation, ex.operations(expression))
    return not is_heldout(expression) and not any(map(is_heldout, steps))


def _is_stage_of_one_operation(operation: Operation) -> bool:
    small, large = sorted(map(ex.value, (operation.left, operation.right)))
    return large in TWO_DIGITS and small in (FACTORS if operation.operator == "*" else TWO_DIGITS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArithmeticTask:
    """The generated curriculum.

    Attributes:
      skip_rate: share of demonstrations that leave the working out and state the right answer.
      slip_rate: share of the other demonstrations in which one step is wrong.
    """

    skip_rate: float = 0.5
    slip_rate: float = 0.15

    def __post_init__(self) -> None:
        for name in ("skip_rate", "slip_rate"):
            rate = dataclasses.asdict(self)[name]
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"{name} must lie between 0 and 1, got {rate}")

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(STAGES)

    def sample(self, rng: Rng, stage: str, n: int, split: Split = "train") -> list[Problem]:
        """`n` problems of a stage from one side of the split, drawn with replacement."""
        return [self._problem(stage, self._draw(rng, stage, heldout=split == "heldout")) for _ in range(n)]

    def heldout(self, stage: str, n: int) -> list[Problem]:
        """The first `n` distinct held-out problems of a stage (fewer where there are fewer), the same at every call."""
        rng = np.random.default_rng([list(STAGES).index(stage), 7])
        chosen: dict[str, Expression] = {}
        for _ in range(100 * n):
            expression = self._draw(rng, stage, heldout=True)
            chosen.setdefault(ex.canonical_key(expression), expression)
            if len(chosen) == n:
                break
        return [self._problem(stage, expression) for expression in chosen.values()]

    def demonstration(self, problem: Problem, rng: Rng) -> str:
        """A completion to imitate: `<think>working</think><answer>result</answer>`, of mixed quality (see the module)."""
        expression = ex.parse(problem.prompt)
        if rng.random() < self.skip_rate:
            return f"<think></think><answer>{problem.answer}</answer>"
        working, result = work(expression, slip=rng if rng.random() < self.slip_rate else None)
        return f"<think>{working}</think><answer>{result}</answer>"

    def _draw(self, rng: Rng, stage: str, heldout: bool) -> Expression:
        belongs = is_heldout if heldout else is_trainable
        while not belongs(expression := STAGES[stage](rng)):
            pass
        return expression

    def _problem(self, stage: str, expression: Expression) -> Problem:
        working, result = work(expression)
        return Problem(
            prompt=ex.text(expression),
            answer=str(result),
            stage=stage,
            solution=f"<think>{working}</think><answer>{result}</answer>",
            key=ex.canonical_key(expression),
        )
