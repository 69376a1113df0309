"""One notation for what is written in many."""

import pytest

from grpo_jax.rewards.mathematics.notation import clean, split


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (r"\left( 3, \dfrac{\pi}{2} \right)", r"( 3, \frac{\pi}{2} )"),
        ("$3$ and $4$", r"3 \and  4"),
        (r"3 \text{ or } 4", r"3 \or  4"),
        ("10,\\!080", "10,080"),
        ("1{,}234", "1,234"),
        (r"\$18", "$18"),
        (r"50\%", "50%"),
        ("**x = 5**.", "x = 5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{5}+\boxed{6}", r"\boxed{5}+\boxed{6}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\begin{pmatrix}1\\!2\end{pmatrix}", r"\begin{pmatrix}1\\!2\end{pmatrix}"),
        (r"90^{\circ}", r"90^\circ"),
        ("½", r"\frac{1}{2}"),
        ("x**2", "x^2"),
        ("5...", "5..."),
        ("~5", "~5"),
        ("5~cm", "5 cm"),
        ("sand", "sand"),
        ("order", "order"),
    ],
)
def test_synonyms_become_one(text, cleaned):
    assert clean(text) == cleaned


@pytest.mark.parametrize("text", ["４２", "٤٢", "4\u200b2", "\u202e24", "В", "4\x002", "\ud800", "x\u03382", "χ", "𝟒"])
def test_foreign_characters_are_no_notation(text):
    assert clean(text) is None


def test_texts_are_cut_where_no_bracket_is_open():
    comma = frozenset(",")
    assert split("1,(2,3),[4,5)", comma) == (["1", "(2,3)", "[4,5)"], [",", ","])
    assert split(r"\{1,2\},\begin{pmatrix}1,2\end{pmatrix}", comma)[0] == [r"\{1,2\}", r"\begin{pmatrix}1,2\end{pmatrix}"]
    assert split("(1,2", comma) is None
    assert split("1)(2", comma) is None
