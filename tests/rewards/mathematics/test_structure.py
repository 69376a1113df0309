"""What kind of thing an answer is."""

import pytest

from grpo_jax.rewards.mathematics.structure import MAX_DEPTH, MAX_ITEMS, read


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("5", "number"),
        ("1,234", "number"),
        ("1, 234", "set"),
        (r"1 \and 2", "set"),
        (r"\{1\}", "set"),
        ("(1,2)", "()"),
        ("[1,2)", "[)"),
        ("(1)", "expression"),
        ("x>2", "()"),
        (r"1\le x<3", "[)"),
        (r"x\ne 2", "union"),
        ("y>2x", "inequality"),
        ("1<x<3<4", "expression"),
        ("1<x>0", "expression"),
        ("1<2", "inequality"),
        ("x=5", "equation"),
        ("x=5=6", "expression"),
        (r"(0,1)\cup(2,3)", "union"),
        (r"\pm 2", "set"),
        (r"1\pm 2\pm 3", "expression"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "matrix"),
        (r"\begin{pmatrix}1&2\\3\end{pmatrix}", "expression"),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "expression"),
        (r"x\begin{pmatrix}1\end{pmatrix}", "expression"),
        ("101_2", "based"),
        ("102_2", "expression"),
        ("3:30", "time"),
        ("3:2", "ratio"),
        ("east", "word"),
        ("abc", "expression"),
        (r"\text{abc}", "word"),
        ("x+1", "expression"),
        (r"\infty", "infinity"),
    ],
)
def test_kinds(text, kind):
    assert read(text).kind == kind


def test_containers_are_bounded():
    assert read(",".join("x" * MAX_ITEMS)).kind == "set"
    assert read(",".join("x" * (MAX_ITEMS + 1))).kind == "expression"
    assert read(r"\begin{pmatrix}" + "&".join("x" * (MAX_ITEMS + 1)) + r"\end{pmatrix}").kind == "expression"
    assert read(r"\begin{pmatrix}" + r"\\".join("x" * (MAX_ITEMS + 1)) + r"\end{pmatrix}").kind == "expression"
    node = read(r"\{" * 50 + "x" + r"\}" * 50)
    for _ in range(MAX_DEPTH):
        assert node.kind == "set"
        (node,) = node.items
    assert node.kind == "expression"
