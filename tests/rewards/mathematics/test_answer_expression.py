"""The grammar of answers, against Python's own arithmetic on texts that both read."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rewards.mathematics.expression import MAX_DEPTH, Unparsable, parse


def evaluate(tree):
    """An evaluator of rational trees that shares nothing with sympy."""
    kind = tree[0]
    if kind == "number":
        return Fraction(tree[1])
    left, right = evaluate(tree[1]), evaluate(tree[2])
    if kind == "add":
        return left + right
    if kind == "multiply":
        return left * right
    if kind == "divide":
        return left / right
    assert kind == "power" and right.denominator == 1
    return left ** int(right)


def texts():
    numbers = st.integers(0, 99).map(str)

    def extend(inner):
        binary = st.tuples(inner, st.sampled_from("+-*"), inner).map("".join)
        power = st.tuples(st.integers(0, 9).map(str), st.sampled_from(["**2", "**3"])).map("".join)
        return binary | power | inner.map("({})".format) | inner.map("-({})".format)

    return st.recursive(numbers, extend, max_leaves=10)


@settings(max_examples=150, deadline=None)
@given(texts())
def test_precedence_and_signs_are_those_of_arithmetic(text):
    if len(text) > 200:
        return
    expected = eval(text)  # a text made by the strategy above: digits and operators
    try:
        tree = parse(text)
    except Unparsable as error:
        assert "bits" in str(error) or "deeper" in str(error)
        return
    assert evaluate(tree) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2^2", -4),
        ("2^-1", Fraction(1, 2)),
        ("6/2*3", 9),
        ("2(3)", 6),
        ("(2)(3)", 6),
        (r"\frac12", Fraction(1, 2)),
        (r"\dfrac{1}{2}+\tfrac{1}{2}", 1),
        (r"2 \cdot 3 \times 4 \div 6", 4),
        ("5−2", 3),
        (r"3\,\left(1+2\right)", 9),
        ("{3}", 3),
    ],
)
def test_notations(text, value):
    assert evaluate(parse(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "+",
        "1+",
        "*1",
        "(1",
        "1)",
        "1 2",
        "x2",
        "1..2",
        "abc",
        "sinx",
        "sqrt",
        r"\frac{1}",
        r"\frac",
        r"\unknown",
        "5!!",
        "501!",
        "((5!)!)!",
        r"\binom{1000000000}{5}",
        "2^{5!}",
        "a_",
        "a_{}",
        "a_{b+1}",
        r"\sin^{-1} x",
        r"2\frac{1}{2}x",
        "x=1",
        "|x",
        "||",
        "1,2",
        "2^65",
        "2^(9^9)",
        "2^(1/(x))",
        "x^(2^(y^65))",
    ],
)
def test_what_is_outside_the_grammar_or_its_bounds(text):
    with pytest.raises(Unparsable):
        parse(text)


def test_depth_and_size_are_bounded():
    deepest = "(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1)
    assert evaluate(parse(deepest)) == 1
    with pytest.raises(Unparsable, match="deeper"):
        parse(f"({deepest})")
    assert evaluate(parse("((2^64)^8)^7")) == 2**3584
    with pytest.raises(Unparsable, match="bits"):
        parse("((2^64)^8)^9")
    with pytest.raises(Unparsable, match="factorial of more than 500"):
        parse("501!")
    with pytest.raises(Unparsable, match="binomial of more than 500"):
        parse(r"\binom{10^9}{5}")
    with pytest.raises(Unparsable, match="characters"):
        parse("1" * 257)
