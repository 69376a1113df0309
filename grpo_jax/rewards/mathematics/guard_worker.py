"""The guard's worker: reads claims, one JSON line each, and writes "proved" or "open" and the seconds each took.

Run as a script with its owner's process id; imports the standard library, sympy and math-verify only. Builds expressions
from the closed grammar of expression.py by calling sympy's constructors, and gives math-verify's LaTeX reader only what
screen.py lets pass, so no text is ever evaluated as code.
"""

import contextlib
import ctypes
import json
import math
import os
import resource
import select
import signal
import sys
import time
from fractions import Fraction

import sympy

MEMORY_LIMIT = 2 << 30
PARENT_CHECK_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1

_BINARY = {
    "add": sympy.Add,
    "multiply": sympy.Mul,
    "divide": lambda top, bottom: sympy.Mul(top, sympy.Pow(bottom, -1)),
    "power": sympy.Pow,
}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}
_FUNCTIONS = {
    **{
        name: getattr(sympy, name)
        for name in [
            "sqrt",
            "sin",
            "cos",
            "tan",
            "cot",
            "sec",
            "csc",
            "sinh",
            "cosh",
            "tanh",
            "exp",
            "factorial",
            "binomial",
        ]
    },
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "abs": sympy.Abs,
    "floor": sympy.floor,
    "ceiling": sympy.ceiling,
    "ln": sympy.log,
    "log": sympy.Function("log10"),  # the base differs between textbooks, so only what holds for any base holds here
    "log_base": lambda base, argument: sympy.log(argument) / sympy.log(base),
}
_PROBES = (sympy.Rational(7, 5), sympy.Rational(17, 11), sympy.Rational(31, 13))
_NOT_FINITE = (sympy.zoo, sympy.nan, sympy.oo, -sympy.oo)


def build(tree):
    """The sympy expression of a tree."""
    kind = tree[0]
    if kind == "number":
        value = Fraction(tree[1])
        return sympy.Rational(value.numerator, value.denominator)
    if kind == "symbol":
        return sympy.Symbol(tree[1])
    if kind == "constant":
        return _CONSTANTS[tree[1]]
    if kind == "call":
        return _FUNCTIONS[tree[1]](*map(build, tree[2:]))
    return _BINARY[kind](build(tree[1]), build(tree[2]))


def equal(left, right):
    """Whether two expressions are equal. Numbers at fixed points settle most pairs; only a proof says yes."""
    if any(side.has(*_NOT_FINITE) for side in (left, right)):
        return False
    difference = left - right
    if difference == 0:
        return True
    symbols = sorted(difference.free_symbols, key=str)
    for probe in _PROBES[: 3 if symbols else 1]:
        point = {symbol: probe + index for index, symbol in enumerate(symbols)}
        size, scale = (_magnitude(side, point) for side in (difference, left))
        if math.isfinite(size) and math.isfinite(scale) and size > 1e-12 * (1 + scale):
            return False
    return sympy.expand(difference) == 0 or sympy.simplify(difference) == 0


def _magnitude(expression, point):
    try:
        return float(abs(complex(expression.evalf(30, subs=point))))
    except (TypeError, ValueError, OverflowError):
        return math.nan


def proportional(left, right, positive):
    """Whether left = k · right for a number k that is not 0, or above 0: what makes two equations, or inequalities, one.

    Sides without a letter, and sides that are 0 whatever the letters are, say nothing and are proportional to nothing.
    """
    if any(side.has(*_NOT_FINITE) or not side.free_symbols for side in (left, right)):
        return False
    if left.free_symbols != right.free_symbols or equal(left, sympy.S.Zero) or equal(right, sympy.S.Zero):
        return False
    symbols = sorted(left.free_symbols, key=str)
    point = {symbol: _PROBES[0] + index for index, symbol in enumerate(symbols)}
    below = right.subs(point)
    if below == 0:
        return False
    factor = sympy.simplify(left.subs(point) / below)
    if not factor.is_number or factor.has(*_NOT_FINITE) or factor.is_zero is not False:
        return False
    if positive and not factor.is_positive:
        return False
    return equal(left, factor * right)


def equal_latex(left, right):
    """Whether math-verify's reader finds one expression or one matrix in each text, and the two are equal."""
    import math_verify

    # Its own time limits are signal handlers; its other readers evaluate text; its fallback is the text itself.
    reader = [math_verify.LatexExtractionConfig(normalization_config=_normalization())]
    sides = []
    for text in (left, right):
        found = math_verify.parse(f"${text}$", reader, fallback_mode="no_fallback", parsing_timeout=None)
        if len(found) != 1:
            return False
        sides.append(found[0])
    if all(isinstance(side, sympy.Expr) and not side.has(sympy.Float) for side in sides):
        return equal(*(side.doit() for side in sides))
    if all(isinstance(side, sympy.MatrixBase) for side in sides):
        left, right = sides
        return left.shape == right.shape and all(equal(*pair) for pair in zip(left.flat(), right.flat(), strict=True))
    return False


def _normalization():
    from latex2sympy2_extended import NormalizationConfig

    # It may drop nothing: neither units nor what it takes for slips.
    return NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=False, nits=False, boxed="none", equations=False
    )


_CLAIMS = {
    "equal": lambda left, right: equal(build(left), build(right)),
    "equation": lambda left, right: proportional(build(left), build(right), positive=False),
    "relation": lambda left, right: proportional(build(left), build(right), positive=True),
    "latex": equal_latex,
}


def main():
    """Answers claims until the input ends or the parent is gone."""
    parent = int(sys.argv[1])
    if sys.argv[2] == "killed" and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    for limit, value in ((resource.RLIMIT_AS, MEMORY_LIMIT), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    # Loads what sympy loads at first use, which would otherwise count against the time of the first claim.
    x = sympy.Symbol("x")
    equal(sympy.sqrt(x), x ** sympy.Rational(1, 2))
    sympy.simplify(sympy.sin(x) ** 2 + sympy.sqrt(12))
    _reply("ready")
    pending = b""
    latex = False
    while True:
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_SECONDS)
        if os.getppid() != parent:
            return
        if not readable:
            continue
        part = os.read(0, 65536)
        if not part:
            return
        pending += part
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            claim, left, right, seconds = json.loads(line)
            if claim == "latex" and not latex:
                latex = True
                with contextlib.suppress(Exception):  # its import is not the answer's time
                    equal_latex("x", "x")
            started = time.process_time()
            # SIGPROF is left to its default, which is that the system ends the process, even inside one long
            # multiplication. It counts processor time, so a busy machine does not turn right answers into wrong ones.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                proved = bool(_CLAIMS[claim](left, right))
            except Exception:  # whatever sympy cannot do proves nothing
                proved = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            _reply(f"{'proved' if proved else 'open'} {time.process_time() - started:.6f}")


def _reply(line):
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main()
