"""What math-verify's reader may see."""

import pytest

from grpo_jax.rewards.mathematics.screen import MAX_LENGTH, needed, passes


@pytest.mark.parametrize(
    "text",
    [
        r"\overline{AB}",
        r"\vec{v}+2\vec{w}",
        r"\max(a,b)",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"x^{12}+\sqrt{\frac{1}{2}}",
        "2^x",
    ],
)
def test_known_bounded_tokens_pass(text):
    assert passes(text)


@pytest.mark.parametrize(
    "text",
    [
        r"\sum_{k=1}^{10}k",
        r"\int x",
        r"\lim x",
        r"\prod x",
        r"\binom{5}{2}",
        r"\operatorname{x}",
        r"\text{x}",
        "5!",
        "2^{999}",
        "2^{x+1}",
        "2^2^2",
        "(2^9)^9",
        "{2^9}^9",
        "9" * 10,
        "0.5",
        "1 2",
        r"2\frac{1}{2}",
        "x=1",
        "x<1",
        "import",
        "__",
        "x_1",
        "f'",
        "'x'",
        "x;y",
        "$",
        "(",
        ")(",
        "(" * 9 + ")" * 9,
        "x+" * MAX_LENGTH + "x",
        "x^2" * 7,
        "х",
        "\n",
    ],
)
def test_everything_else_does_not(text):
    assert not passes(text)


def test_only_what_the_grammar_does_not_know_needs_that_reader():
    assert needed(r"\overline{AB}") and needed(r"\max(1,2)")
    assert not needed("x+1") and not needed(r"\maximum") and not needed(r"\frac12")
