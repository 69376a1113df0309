"""Arithmetic expressions: a small tree, its text, its value, its operations, and a key that ignores the order of sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

PRECEDENCE = {"+": 1, "-": 1, "*": 2}


@dataclasses.dataclass(frozen=True)
class Operation:
    """`left operator right`, where a side is a number or another operation."""

    operator: str
    left: Expression
    right: Expression


Expression = int | Operation


def text(expression: Expression) -> str:
    """The expression as written, with the fewest parentheses that keep its meaning."""
    if isinstance(expression, int):
        return str(expression)
    level = PRECEDENCE[expression.operator]

    def side(child: Expression, is_right: bool) -> str:
        loose = isinstance(child, Operation) and (
            PRECEDENCE[child.operator] < level or (is_right and PRECEDENCE[child.operator] == level)
        )
        return f"({text(child)})" if loose else text(child)

    return f"{side(expression.left, False)}{expression.operator}{side(expression.right, True)}"


def value(expression: Expression) -> int:
    """The exact result."""
    if isinstance(expression, int):
        return expression
    left, right = value(expression.left), value(expression.right)
    if expression.operator == "+":
        return left + right
    if expression.operator == "-":
        return left - right
    return left * right


def operations(expression: Expression) -> Iterator[Operation]:
    """The operations on two numbers that evaluate the expression, in their order: `7*5+42` is `7*5`, then `35+42`."""
    if isinstance(expression, Operation):
        yield from operations(expression.left)
        yield from operations(expression.right)
        yield Operation(expression.operator, value(expression.left), value(expression.right))


def canonical_key(expression: Expression) -> str:
    """Equal for problems that differ only in the order of an operation's two sides.

    `47+85` and `85+47` have one key, and so have `58-23` and `23-58`, whose workings state the same facts.
    """
    if isinstance(expression, int):
        return str(expression)
    left, right = sorted(canonical_key(side) for side in (expression.left, expression.right))
    return f"({left}{expression.operator}{right})"


def parse(problem: str) -> Expression:
    """The tree of a problem's text: numbers, `+ - *` and parentheses, the usual precedence, left to right."""
    position = 0

    def peek() -> str:
        return problem[position] if position < len(problem) else ""

    def atom() -> Expression:
        nonlocal position
        if peek() == "(":
            position += 1
            inside = chain(1)
            if peek() != ")":
                raise ValueError(f"missing ')' at character {position} of {problem!r}")
            position += 1
            return inside
        start = position
        while peek().isdigit():
            position += 1
        if start == position:
            raise ValueError(f"expected a number at character {position} of {problem!r}")
        return int(problem[start:position])

    def chain(level: int) -> Expression:
        nonlocal position
        left = chain(level + 1) if level < 2 else atom()
        while peek() and PRECEDENCE.get(peek()) == level:
            operator = peek()
            position += 1
            left = Operation(operator, left, chain(level + 1) if level < 2 else atom())
        return left

    tree = chain(1)
    if position != len(problem):
        raise ValueError(f"unexpected {peek()!r} at character {position} of {problem!r}")
    return tree
