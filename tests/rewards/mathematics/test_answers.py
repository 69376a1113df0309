"""Where the answer stands in a completion."""

import pytest

from grpo_jax.rewards import EXTRACTORS

tag, boxed, mark, number = (EXTRACTORS[name] for name in ("answer_tag", "boxed", "hash_mark", "last_number"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>x</think><answer>42</answer>", "42"),
        ("<answer>1</answer> no: <answer>2</answer>", "2"),
        ("<answer>1</answer><answer>2", "1"),
        ("<answer><answer>3</answer>", "3"),
        ("<answer></answer>", ""),
        ("<answer>5", None),
        ("5</answer>", None),
        ("</answer><answer>", None),
        ("", None),
    ],
)
def test_the_last_complete_answer_tag_counts(text, answer):
    assert tag(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{1", None),
        ("1", None),
    ],
)
def test_the_last_box_counts_with_its_braces_balanced(text, answer):
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [("working\n#### 72\nmore", "72"), ("#### 1 #### 2", "2"), ("####\n5", "5"), ("72", None)],
)
def test_the_line_after_the_last_hash_mark_counts(text, answer):
    assert mark(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I have 3 apples and 1,234,567 pears.", "1234567"),
        ("It costs $5.50.", "5.50"),
        ("10-5", "5"),
        ("= -5", "-5"),
        ("(3)-2", "2"),
        ("1,23", "23"),
        ("50%", "50"),
        ("٤٢ and none", None),
    ],
)
def test_the_last_number_is_written_in_ascii_digits(text, answer):
    assert number(text) == answer
