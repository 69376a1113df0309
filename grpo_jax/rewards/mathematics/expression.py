"""Parses the mathematics of an answer into a tree of plain tuples: a closed grammar that evaluates nothing.

Answers come from a policy that is paid for whatever scores, so their text never reaches `eval` or sympy's own parser
(which is built on it). What this grammar does not know (words, equations, attribute access) is unparsable,
and powers and factorials whose value would not fit in a few thousand bits are refused before anything computes them.
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

MAX_ARGUMENT = 500
"""Bound on what a factorial or a binomial coefficient is taken of."""

FUNCTIONS = frozenset(
    (
        *("sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        *("ln", "log", "exp"),
    )
)
SYMBOL_COMMANDS = frozenset(
    (
        *("alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho", "phi", "psi", "omega"),
        *("sigma", "tau"),
    )
)
_BRACKET_COMMANDS = {"lfloor": "rfloor", "lceil": "rceil"}
_OTHER_COMMANDS = frozenset(("pi", "frac", "binom", *_BRACKET_COMMANDS, *_BRACKET_COMMANDS.values()))
_NAMES = FUNCTIONS | SYMBOL_COMMANDS | _OTHER_COMMANDS

Tree = tuple
"""("number", "p/q") · ("symbol", name) · ("constant", "pi", "e" or "i") · (op, Tree, Tree) · ("call", function, Tree, …).
op is one of "add", "multiply", "divide", "power"; functions besides `FUNCTIONS`: "abs", "floor", "ceiling", "factorial",
"binomial" and "log_base" (base, argument)."""

_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|\\?([A-Za-z]+)|([-+*/^(){}\[\]_!|]))")

_REWRITES = (
    (re.compile(r"\\left\b|\\right\b|\\[,;!: ]"), " "),
    (re.compile(r"\\text ?\{ *([A-Za-z]) *\}"), r" \1 "),
    (re.compile(r"\\[dt]frac\b"), r"\\frac"),
    (re.compile(r"\\frac\s*([0-9])\s*([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\cdot\b|\\times\b|·|×"), "*"),
    (re.compile(r"\\div\b|÷"), "/"),
    (re.compile(r"−"), "-"),
    (re.compile(r"π"), r" \\pi "),
    (re.compile(r"√ *([0-9]+)"), r" \\sqrt{\1}"),
    (re.compile(r"√"), r" \\sqrt "),
    (re.compile(r"\\sqrt\s*([0-9])(?=[0-9])"), r"\\sqrt{\1}*"),  # LaTeX takes one digit
)


_TOWER = re.compile(r"\^\s*-?(?:[0-9.]+|[A-Za-z]|\\[A-Za-z]+|\{[^{}]*\})\s*\^")


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
    if _TOWER.search(text):
        raise Unparsable("a power of a power without braces")
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
        if name is None or name in _NAMES:
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
        self.bars = 0

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
            elif self.starts_factor(token):
                after_number = _is_number(self.tokens[self.position - 1])
                right = self.power()
                if after_number and token == "frac" and right[1][0] == right[2][0] == "number":
                    raise Unparsable("a mixed number within an expression")
                tree = ("multiply", tree, right)
            else:
                return tree

    def starts_factor(self, token: str) -> bool:
        """Whether `token`, after a factor and without a sign between, begins another."""
        if token == "|":
            return self.bars == 0  # inside bars, the next bar closes them
        return token in ("(", "{") or (token.isalpha() and token not in _BRACKET_COMMANDS.values())

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
        if self.peek() == "!":
            self.take()
            tree = ("call", "factorial", tree)
            if self.peek() == "!":
                raise Unparsable("a double factorial")
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
        if token in ("frac", "binom"):
            top = self.argument()
            return ("divide", top, self.argument()) if token == "frac" else ("call", "binomial", top, self.argument())
        if token in _BRACKET_COMMANDS:
            return ("call", "floor" if token == "lfloor" else "ceiling", self.enclosed_rest(_BRACKET_COMMANDS[token]))
        if token == "|":
            self.bars += 1
            inner = self.sum()
            self.take("|")
            self.bars -= 1
            return ("call", "abs", inner)
        if token == "sqrt" and self.peek() == "[":
            self.take()
            degree = self.enclosed_rest("]")
            return ("power", self.argument(), ("divide", ("number", "1"), degree))
        if token in FUNCTIONS:
            return self.function(token)
        return self.letter(token)

    def letter(self, token: str) -> Tree:
        if token == "pi" or (token in "ei" and self.peek() != "_"):
            return ("constant", token)
        if not token.isalpha() or token in _OTHER_COMMANDS or token in FUNCTIONS:
            raise Unparsable(f"unexpected {token!r}")
        if self.peek() != "_":
            return ("symbol", token)
        self.take()
        return ("symbol", f"{token}_{self.subscript()}")

    def subscript(self) -> str:
        token = self.take()
        parts = [token]
        if token == "{":
            parts = []
            while self.peek() != "}":
                parts.append(self.take())
            self.take("}")
        if not parts or not all(part.isascii() and part.isalnum() for part in parts):
            raise Unparsable("a subscript that is not made of letters and digits")
        return "".join(parts)

    def function(self, name: str) -> Tree:
        """A function's call: \\log_2 8, \\sin^2 x and \\sin 2x besides \\sin(x)."""
        base: Tree | None = None
        power: Tree | None = None
        if name == "log" and self.peek() == "_":
            self.take()
            base = self.argument()
        if name != "sqrt" and self.peek() == "^":
            self.take()
            power = self.argument()
            if power[0] != "number" or Fraction(power[1]) <= 0:
                raise Unparsable("a function to a power that is not a number above 0: an inverse, or a reciprocal")
        inner = self.argument() if name == "sqrt" or self.peek() in ("(", "{") else self.monomial()
        tree = ("call", name, inner) if base is None else ("call", "log_base", base, inner)
        return tree if power is None else ("power", tree, power)

    def monomial(self) -> Tree:
        """What a function without brackets applies to: numbers, letters and fractions side by side, as in \\sin 2x."""
        tree = self.power_of_letter()
        while (token := self.peek()) in ("pi", "frac") or (token.isalpha() and token not in _NAMES - SYMBOL_COMMANDS):
            tree = ("multiply", tree, self.power_of_letter())
        return tree

    def power_of_letter(self) -> Tree:
        tree = self.atom() if self.peek() == "frac" else self.argument()
        if self.peek() == "^":
            self.take()
            tree = ("power", tree, self.signed())
        return tree

    def argument(self) -> Tree:
        """What a command applies to: something enclosed, or one number or letter."""
        token = self.take()
        if token in ("(", "{"):
            return self.enclosed_rest(")" if token == "(" else "}")
        if _is_number(token):
            return ("number", str(Fraction(token)))
        return self.letter(token)

    def enclosed_rest(self, close: str) -> Tree:
        bars, self.bars = self.bars, 0
        tree = self.sum()
        self.take(close)
        self.bars = bars
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
        if tree[1] in ("factorial", "binomial"):
            return _combinatorial_bits(tree)
        return sum(map(_bits, tree[2:]))
    if kind == "power":
        return max(_bits(tree[1]) * _exponent_bound(tree[2]), _bits(tree[2]))
    # a/b + c/d has denominator bd; products multiply both parts.
    return _bits(tree[1]) + _bits(tree[2]) + 1


def _combinatorial_bits(tree: Tree) -> float:
    arguments = [_magnitude(argument) for argument in tree[2:]]
    if max(arguments) > MAX_ARGUMENT:
        raise Unparsable(f"{tree[1]} of more than {MAX_ARGUMENT}")
    # n! < n^n, and a binomial coefficient of n is below 2^n; a fraction's would be a quotient of such products.
    return sum(map(_bits, tree[2:])) + sum(size * math.log2(size + 2) for size in arguments)


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
    if kind == "call" and tree[1] in ("sqrt", "abs", "floor", "ceiling"):
        return max(_magnitude(tree[2]), 1.0) + (tree[1] == "ceiling")
    if kind == "call" and tree[1] == "factorial" and (size := _magnitude(tree[2])) <= MAX_ARGUMENT:
        return math.exp(min(math.lgamma(size + 2), 100.0))
    if kind == "power" and (tree[1][0] == "symbol" or (tree[1][0] == "number" and abs(Fraction(tree[1][1])) >= 1)):
        # At least 1, so that a larger exponent bounds a smaller one; in logarithms, so that it cannot overflow.
        return math.exp(min(_exponent_bound(tree[2]) * math.log(_magnitude(tree[1])), 100.0))
    raise Unparsable("an exponent that is not a sum or product of numbers and letters")
