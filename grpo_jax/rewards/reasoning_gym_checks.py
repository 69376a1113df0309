"""What must hold of an answer besides reasoning-gym's own score, by data set, as of its version 0.1.25.

Three reasons: the scorer evaluates the answer as Python or sympy code; it gives a wrong answer its full score; or it
expands a short answer into a huge one.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Check = Callable[[str, Mapping[str, Any]], bool]

MAX_EXPRESSION = 1_000
"""Longest expression that is read, in characters."""
MAX_EXPONENT = 50

_FUNCTIONS = {
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "exp",
    "log",
    "ln",
    "sqrt",
    "Abs",
}
_NAMES = _FUNCTIONS | {"pi"}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_PLAIN_NUMBER = re.compile(r"[-+]?[0-9]{1,20}(?:\.[0-9]{0,20})?(?:/[0-9]{1,20})?")


def _same(answer: str, entry: Mapping[str, Any]) -> bool:
    """The answer is the entry's, but for case and white space."""
    return " ".join(answer.casefold().split()) == " ".join(entry["answer"].casefold().split())


def _never(answer: str, entry: Mapping[str, Any]) -> bool:
    """Only the entry's own text counts, and that has been compared before."""
    return False


def _one_of_the_boards(answer: str, entry: Mapping[str, Any]) -> bool:
    return answer in entry["metadata"]["valid_answers"]


def _near_fraction(answer: str, entry: Mapping[str, Any]) -> bool:
    if not _PLAIN_NUMBER.fullmatch(answer):
        return False
    return abs(_fraction(answer) - _fraction(entry["answer"])) <= Fraction(1, 10**4)


def _fraction(text: str) -> Fraction:
    above, _, below = text.partition("/")
    return Fraction(above) / Fraction(below or "1")


def _sorted_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    """Number by number the entry's own: the scorer's tolerance is a whole unit."""
    given, gold = (list(map(float, json.loads(text.replace("'", '"')))) for text in (answer, entry["answer"]))
    return len(given) == len(gold) and all(abs(a - b) < 1e-6 for a, b in zip(given, gold, strict=True))


def _short_moves(answer: str, entry: Mapping[str, Any]) -> bool:
    """The scorer writes R90000000 as so many turns."""
    return re.search(r"[0-9]{3}", answer) is None


def _expression(text: str) -> ast.expr:
    """The syntax tree of an arithmetic expression.

    Raises:
      ValueError: it is too long, or anything but an expression.
    """
    if len(text) > MAX_EXPRESSION:
        raise ValueError("the expression is too long")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("this is no expression") from error


def _harmless(answer: str, entry: Mapping[str, Any]) -> bool:
    """Numbers, variables of one letter, + - * / **, and functions by name: nothing that sympy would run or blow up."""
    return _is_harmless(_expression(answer), powers=0)


def _antiderivative(answer: str, entry: Mapping[str, Any]) -> bool:
    """Harmless, in the integral's own variable and a constant: what is in another variable would be a constant too."""
    tree = _expression(answer)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return _is_harmless(tree, powers=0) and names <= _NAMES | {entry["metadata"]["variable"], "C"}


def _is_harmless(node: ast.expr, powers: int) -> bool:
    match node:
        case ast.Constant(value=int() | float() as number):
            return abs(number) < 1e15
        case ast.Name(id=name):
            return name in _NAMES or (len(name) == 1 and name.isalpha())
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_harmless(operand, powers)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in _FUNCTIONS and _is_harmless(argument, powers)
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            # Powers of powers grow beyond any bound with a few characters.
            return powers < 2 and _is_harmless(base, powers + 1) and _is_small(exponent)
        case ast.BinOp(op=operator, left=left, right=right):
            if isinstance(operator, ast.Div) and _is_zero(right):
                return False
            return isinstance(operator, _OPERATORS) and _is_harmless(left, powers) and _is_harmless(right, powers)
    return False


def _is_zero(node: ast.expr) -> bool:
    try:
        return _value(node) == 0
    except ValueError:
        return False
    except ZeroDivisionError:
        return True


def _is_small(node: ast.expr) -> bool:
    try:
        return abs(_value(node)) <= MAX_EXPONENT
    except (ValueError, ZeroDivisionError):
        # A variable in the exponent stays one: x and 2*x, but not a sum that would cancel it.
        match node:
            case ast.Name(id=name):
                return len(name) == 1
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _is_small(operand)
            case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=int() as number), right=ast.Name(id=name)):
                return abs(number) <= MAX_EXPONENT and len(name) == 1
        return False


def _value(node: ast.expr) -> Fraction:
    """The exact value of an expression of whole numbers and + - * /.

    Raises:
      ValueError: there is anything else in it.
      ZeroDivisionError: it divides by zero.
    """
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(op=operator, left=left, right=right):
            a, b = _value(left), _value(right)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
    raise ValueError("this is more than whole numbers and + - * /")


def _makes(answer: str, entry: Mapping[str, Any], target: int) -> bool:
    """It has exactly the value asked for and uses every number given, once each."""
    if not re.fullmatch(r"[0-9+\-*/() ]+", answer):
        return False
    used = sorted(map(int, re.findall(r"[0-9]+", answer)))
    return used == sorted(entry["metadata"]["numbers"]) and _value(_expression(answer)) == target


def _makes_24(answer: str, entry: Mapping[str, Any]) -> bool:
    return _makes(answer, entry, 24)


def _makes_target(answer: str, entry: Mapping[str, Any]) -> bool:
    return _makes(answer, entry, entry["metadata"]["target"])


CHECKS: dict[str, Check] = {
    # eval on the answer, for a part of the score that does not count here
    "binary_matrix": _never,
    "n_queens": _one_of_the_boards,
    "spiral_matrix": _never,
    "string_insertion": _never,
    # sympy's parse_expr on the answer, which is eval too
    "countdown": _makes_target,  # and takes a value near the target
    "intermediate_integration": _antiderivative,
    "polynomial_multiplication": _harmless,
    "puzzle24": _makes_24,  # and takes any four numbers in range, and 24.9 for 24
    "simple_integration": _antiderivative,
    # a full score for a wrong answer
    "coin_flip": _near_fraction,  # any first digits, such as 0
    "game_of_life_halting": _same,  # any text
    "letter_jumble": _same,  # any text behind the answer
    "number_sorting": _sorted_numbers,  # each number wrong by up to 1
    "spell_backward": _same,  # any text behind the answer
    # an answer that grows
    "rubiks_cube": _short_moves,
}
"""Data set to what must hold of an answer other than the entry's own text."""
