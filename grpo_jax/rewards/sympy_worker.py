"""The sympy worker: reads pairs of trees, one JSON line each, and writes "equal" or "different" for each.

Run as a script with the time limit of one question in seconds of processor time; imports the standard library and sympy
only. Builds expressions from the closed grammar of expression.py by calling sympy's constructors, so no text is ever
evaluated.
"""

import contextlib
import json
import math
import os
import resource
import select
import signal
import sys
from fractions import Fraction

import sympy

MEMORY_LIMIT = 2 << 30
PARENT_CHECK_SECONDS = 5.0

_BINARY = {
    "add": sympy.Add,
    "multiply": sympy.Mul,
    "divide": lambda top, bottom: sympy.Mul(top, sympy.Pow(bottom, -1)),
    "power": sympy.Pow,
}
_FUNCTIONS = {
    "sqrt": sympy.sqrt,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "ln": sympy.log,
    "log": sympy.Function("log10"),  # the base differs between textbooks, so only what holds for any base holds here
}
_PROBES = (sympy.Rational(7, 5), sympy.Rational(17, 11), sympy.Rational(31, 13))


def build(tree):
    """The sympy expression of a tree."""
    kind = tree[0]
    if kind == "number":
        value = Fraction(tree[1])
        return sympy.Rational(value.numerator, value.denominator)
    if kind == "symbol":
        return sympy.Symbol(tree[1])
    if kind == "constant":
        return sympy.pi
    if kind == "call":
        return _FUNCTIONS[tree[1]](build(tree[2]))
    return _BINARY[kind](build(tree[1]), build(tree[2]))


def equal(left_tree, right_tree):
    """Whether sympy proves two trees equal. Numbers at fixed points settle most pairs; only a proof says yes."""
    left, right = build(left_tree), build(right_tree)
    if any(side.has(sympy.zoo, sympy.nan, sympy.oo, -sympy.oo) for side in (left, right)):
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


def main():
    """Answers questions until the input ends or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    for limit, value in ((resource.RLIMIT_AS, MEMORY_LIMIT), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    seconds = float(sys.argv[1])
    parent = os.getppid()
    # Loads what sympy loads at first use, which would otherwise count against the time of the first question.
    equal(("call", "sqrt", ("symbol", "x")), ("power", ("symbol", "x"), ("number", "1/2")))
    sympy.simplify(sympy.sin(sympy.Symbol("x")) ** 2 + sympy.sqrt(12))
    _reply("ready")
    pending = b""
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
            # SIGPROF is left to its default, which is that the system ends the process, even inside one long
            # multiplication. It counts processor time, so a busy machine does not turn right answers into wrong ones.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                verdict = equal(*json.loads(line))
            except Exception:  # whatever sympy cannot do proves nothing
                verdict = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            _reply("equal" if verdict else "different")


def _reply(line):
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main()
