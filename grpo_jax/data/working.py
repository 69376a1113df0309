"""Worked solutions, digit by digit: every step is a fact about one- or two-digit numbers that a small model can learn.

`47+85` becomes `47+85:7+5=12,4+8+1=13=132`: a header that restates the operation, the column steps with their carries or
borrows, and the result. A chain of operations is a chain of such lines in the order in which they are evaluated.
A working may contain one slip (a step whose result is wrong); everything after it follows from the wrong number.
"""

from __future__ import annotations

import numpy as np

from grpo_jax.data.expression import Expression, Operation


class _Steps:
    """Counts the facts stated and falsifies the one at `slip_at`."""

    def __init__(self, rng: np.random.Generator | None, slip_at: int | None) -> None:
        self.rng, self.slip_at, self.count = rng, slip_at, 0

    def fact(self, statement: str, result: int) -> tuple[str, int]:
        if self.count == self.slip_at and self.rng is not None:
            near = [result + slip for slip in (-2, -1, 1, 2)]
            result = int(self.rng.choice([wrong for wrong in near if len(str(wrong)) == len(str(result))]))
        self.count += 1
        return f"{statement}={result}", result


def _digits(number: int) -> list[int]:
    return [int(character) for character in reversed(str(number))]


def _add(a: int, b: int, steps: _Steps) -> tuple[list[str], int]:
    """Column addition, units first: 4+8+1=13 carries the 1."""
    lines, total, carry, place = [], 0, 0, 1
    first, second = _digits(a), _digits(b)
    width = max(len(first), len(second))
    for i in range(width):
        terms = [column[i] for column in (first, second) if i < len(column)] + [carry] * (carry > 0)
        if len(terms) == 1:
            result = terms[0]
        else:
            line, result = steps.fact("+".join(map(str, terms)), sum(terms))
            lines.append(line)
        carry = result // 10 if i < width - 1 else 0
        total += (result - 10 * carry) * place
        place *= 10
    return lines, total


def _subtract(a: int, b: int, steps: _Steps) -> tuple[list[str], int]:
    """Column subtraction of b from a >= b, units first; a borrowed column shows its digit with the ten added."""
    lines, total, borrow, place = [], 0, 0, 1
    second = _digits(b)
    for i, digit in enumerate(_digits(a)):
        digit, taken = digit - borrow, second[i] if i < len(second) else 0
        borrow = int(digit < taken)
        line, result = steps.fact(f"{digit + 10 * borrow}-{taken}", digit + 10 * borrow - taken)
        lines.append(line)
        total += result * place
        place *= 10
    return lines, total


def _multiply(a: int, b: int, steps: _Steps) -> tuple[list[str], int]:
    """Short multiplication of a by the single digit b: each column's product, then the carry, added in columns."""
    lines, total, carry, place = [], 0, 0, 1
    columns = _digits(a)
    for i, digit in enumerate(columns):
        line, result = steps.fact(f"{digit}*{b}", digit * b)
        lines.append(line)
        if carry:
            added, result = _add(result, carry, steps)
            lines += added
        carry = result // 10 if i < len(columns) - 1 else 0
        total += (result - 10 * carry) * place
        place *= 10
    return lines, total


def _operate(operator: str, a: int, b: int, steps: _Steps) -> tuple[str, int]:
    """One operation on numbers: its line of working and its result."""
    head = f"{a}{operator}{b}"
    if max(a, b) <= 9:
        exact = a + b if operator == "+" else a - b if operator == "-" else a * b
        size = steps.fact(head, abs(exact))[1]
        result = -size if exact < 0 else size
        return f"{head}={result}", result
    if operator == "+":
        lines, result = _add(a, b, steps)
    elif operator == "*":
        lines, result = _multiply(max(a, b), min(a, b), steps)
    elif a >= b:
        lines, result = _subtract(a, b, steps)
    else:
        head = f"-({b}-{a})"
        lines, result = _subtract(b, a, steps)
        result = -result
    return f"{head}:{','.join(lines)}={result}", result


def _walk(expression: Expression, steps: _Steps) -> tuple[list[str], int]:
    if isinstance(expression, int):
        return [], expression
    assert isinstance(expression, Operation)
    left_lines, left = _walk(expression.left, steps)
    right_lines, right = _walk(expression.right, steps)
    line, result = _operate(expression.operator, left, right, steps)
    return [*left_lines, *right_lines, line], result


def work(expression: Expression, slip: np.random.Generator | None = None) -> tuple[str, int]:
    """The working and the result it arrives at.

    Args:
      expression: operands that are not negative; a product has one side of a single digit, and only the last
        operation may have a negative result.
      slip: falsify one step, drawn uniformly with this generator; the result is then usually wrong.

    Returns:
      (working, result); without a slip the result is the expression's value.
    """
    steps = _Steps(None, None)
    lines, result = _walk(expression, steps)
    if slip is not None:
        lines, result = _walk(expression, _Steps(slip, int(slip.integers(steps.count))))
    return ";".join(lines), result
