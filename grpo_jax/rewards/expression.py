"""Parses the mathematics of an answer into a tree of plain tuples: a closed grammar that evaluates nothing.

Answers come from a policy that is paid for whatever scores, so their text never reaches `eval` or sympy's own parser
(which is built on it). What this grammar does not know (names, factorials, equations, attribute access) is unparsable,
and powers whose value would not fit in a few thousand bits are refused before anything computes them.
"""

import math
import re
from collections.abc import Iterator
from fractions import Fraction

MAX_LENGTH = 256
MAX_DEPTH = 24
MAX_BITS = 4096
"""Bound on the size in bits of any integer that evaluating a tree can produce."""
MAX_EXPONENT = 64

FUNCTIONS = frozenset({"sqrt", "sin", "cos", "tan", "ln", "log"})
SYMBOL_COMMANDS = frozenset({"alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "phi", "omega", "sigma", "infty"})

Tree = tuple
"""("number", "p/q") · ("symbol", name) · ("constant", "pi") · (op, Tree, Tree) · ("call", function, Tree),
op one of "add", "multiply", "divide", "power"."""

_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|\\?([A-Za-z]+)|([-+*/^(){}\[\]]))")

_REWRITES = (
    (re.compile(r"\\left\b|\\right\b|\\[,;!: ]"), " "),
    (re.compile(r"\\[dt]frac\b"), r"\\frac"),
    (re.compile(r"\\frac\s*([0-9])\s*([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\cdot\b|\\times\b|·|×"), "*"),
    (re.compile(r"\\div\b|÷"), "/"),
    (re.compile(r"−"), "-"),
    (re.compile(r"π"), r" \\pi "),
    (re.compile(r"√"), r" \\sqrt "),
)


class Unparsable(ValueError):
    """The text is outside the grammar or its bounds."""


def parse(text: str) -> Tree:
    """The tree of an expression in plain or LaTeX notation.

    Raises:
      Unparsable: the text is longer than `MAX_LENGTH`, nests deeper than `MAX_DEPTH`, is outside the grammar, or would
        produce integers of more than `MAX_BITS` bits.
    """
    if len(text) > MAX_LENGTH:
        raise Unparsable(f"more than {MAX_LENGTH} characters")
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    parser = _Parser(list(_tokens(text)))
    tree = parser.sum()
    if parser.peek() != "":
        raise Unparsable(f"unexpected {parser.peek()!r}")
    if _bits(tree) > MAX_BITS:
        raise Unparsable(f"integers of more than {MAX_BITS} bits")
    return tree


def _tokens(text: str) -> Iterator[str]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unparsable(f"unexpected {text[position]!r}")
        position = match.end()
        number, name, operator = match.groups()
        if name is None or name in FUNCTIONS or name in SYMBOL_COMMANDS or name in ("pi", "frac"):
            yield number or name or operator
        elif len(name) <= 2:
            # Two letters are a product, as in 2xy; longer runs are words, and a word is not the product of its letters.
            yield from name
        else:
            raise Unparsable(f"unknown name {name!r}")


class _Parser:
    """Recursive descent over the tokens; "" stands for the end."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]
        self.position = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.position]

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token == "" or (expected is not None and token != expected):
            raise Unparsable(f"expected {expected or 'a value'}, found {token or 'the end'}")
        self.position += 1
        return token

    def sum(self) -> Tree:
        tree = self.product()
        while self.peek() in ("+", "-"):
            negative = self.take() == "-"
            right = self.product()
            tree = ("add", tree, _negated(right) if negative else right)
        return tree

    def product(self) -> Tree:
        tree = self.signed()
        while True:
            token = self.peek()
            if token in ("*", "/"):
                self.take()
                tree = ("multiply" if token == "*" else "divide", tree, self.signed())
            elif token and token not in "+-)]}^" and not _is_number(token):
                tree = ("multiply", tree, self.power())
            else:
                return tree

    def signed(self) -> Tree:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        tree = self.power()
        return _negated(tree) if negative else tree

    def power(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unparsable(f"nested deeper than {MAX_DEPTH}")
        tree = self.atom()
        if self.peek() == "^":
            self.take()
            tree = ("power", tree, self.signed())
        self.depth -= 1
        return tree

    def atom(self) -> Tree:
        token = self.take()
        if _is_number(token):
            return ("number", str(Fraction(token)))
        if token in ("(", "{"):
            return self.enclosed_rest(")" if token == "(" else "}")
        if token == "frac":
            top = self.argument()
            return ("divide", top, self.argument())
        if token == "sqrt" and self.peek() == "[":
            self.take()
            degree = self.enclosed_rest("]")
            return ("power", self.argument(), ("divide", ("number", "1"), degree))
        if token in FUNCTIONS:
            return ("call", token, self.argument())
        if token == "pi":
            return ("constant", "pi")
        if token.isalpha():
            return ("symbol", token)
        raise Unparsable(f"unexpected {token!r}")

    def argument(self) -> Tree:
        """What a function or \\frac applies to: something enclosed, or one number or letter."""
        token = self.take()
        if token in ("(", "{"):
            return self.enclosed_rest(")" if token == "(" else "}")
        if _is_number(token):
            return ("number", str(Fraction(token)))
        if token == "pi":
            return ("constant", "pi")
        if token.isalpha() and token not in FUNCTIONS and token != "frac":
            return ("symbol", token)
        raise Unparsable(f"unexpected {token!r}")

    def enclosed_rest(self, close: str) -> Tree:
        tree = self.sum()
        self.take(close)
        return tree


def _is_number(token: str) -> bool:
    return token[:1].isdigit() or token[:1] == "."


def _negated(tree: Tree) -> Tree:
    return ("multiply", ("number", "-1"), tree)


def _bits(tree: Tree) -> float:
    """Upper bound of log2 of the numerators and denominators that evaluating `tree` can produce."""
    kind = tree[0]
    if kind == "number":
        value = Fraction(tree[1])
        return math.log2(max(abs(value.numerator), value.denominator))
    if kind in ("symbol", "constant"):
        return 1
    if kind == "call":
        return _bits(tree[2])
    if kind == "power":
        return max(_bits(tree[1]) * _exponent_bound(tree[2]), _bits(tree[2]))
    # a/b + c/d has denominator bd; products multiply both parts.
    return _bits(tree[1]) + _bits(tree[2]) + 1


def _exponent_bound(tree: Tree) -> float:
    """Upper bound of |exponent|, at least 1; symbols count 1, for they stay as they are."""
    bound = _magnitude(tree)
    if bound > MAX_EXPONENT:
        raise Unparsable(f"an exponent beyond {MAX_EXPONENT}")
    return max(bound, 1.0)


def _magnitude(tree: Tree) -> float:
    kind = tree[0]
    if kind == "number":
        return abs(float(Fraction(tree[1])))
    if kind in ("symbol", "constant"):
        return 1.0 if kind == "symbol" else 4.0
    if kind == "add":
        return _magnitude(tree[1]) + _magnitude(tree[2])
    if kind == "multiply":
        return _magnitude(tree[1]) * _magnitude(tree[2])
    if kind == "divide" and tree[2][0] == "number" and Fraction(tree[2][1]) != 0:
        return _magnitude(tree[1]) / abs(float(Fraction(tree[2][1])))
    if kind == "call" and tree[1] == "sqrt":
        return max(_magnitude(tree[2]), 1.0)
    if kind == "power" and (tree[1][0] == "symbol" or (tree[1][0] == "number" and abs(Fraction(tree[1][1])) >= 1)):
        # At least 1, so that a larger exponent bounds a smaller one; in logarithms, so that it cannot overflow.
        return math.exp(min(_exponent_bound(tree[2]) * math.log(_magnitude(tree[1])), 100.0))
    raise Unparsable("an exponent that is not a sum or product of numbers and letters")
