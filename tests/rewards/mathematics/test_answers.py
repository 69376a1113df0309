"""Where the answer stands in a completion."""

import pytest

from grpo_jax.rewards import EXTRACTORS

tag, boxed, mark, number, combined = (
    EXTRACTORS[name] for name in ("answer_tag", "boxed", "hash_mark", "last_number", "math")
)


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
        (r"\boxed{1}. No, it is \boxed{2}", "2"),
        (r"\boxed{1", None),
        (r"\boxed{1} and \boxed{2", None),
        (r"{ \boxed{1}", "1"),
        (r"\boxed{1 and then \boxed{2}", "2"),
        (r"\fbox{3}", "3"),
        (r"\boxed {4}", "4"),
        (r"\boxed 4.", "4"),
        (r"\boxed{4} = \boxed5", "5"),
        (r"\boxed 45", None),
        (r"\boxed{}", ""),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a\\}", r"a\\"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{18 \boxed{19}}", r"18 \boxed{19}"),
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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"$\boxed{3}$ and $\boxed{5}$", "3, 5"),
        (r"\boxed{3},\boxed{4}, \boxed{5}", "3, 4, 5"),
        (r"\boxed{x=3} or \boxed{x=5}", "x=3 or x=5"),
        (r"\boxed{3}\text{ and }\boxed{5}", "3, 5"),
        (r"\boxed{3}\boxed{5}", "3, 5"),
        (r"\boxed{3} / \boxed{5}", "3, 5"),
        (r"\boxed{5}. \boxed{5}", "5"),
        (r"\boxed{3} is half of \boxed{6}", "6"),
        (r"\boxed{}, \boxed{5}", ", 5"),
    ],
)
def test_boxes_side_by_side_are_one_list(text, answer):
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("p = 3/4.", "3/4"),
        ("It takes 1 1/2 hours.", "1 1/2"),
        ("on 12/25/2024", "2024"),
        ("1.2e3 of them", "1.2e3"),
        (r"about 1.2 \times 10^3", r"1.2 \times 10^3"),
        ("temperature −5", "−5"),
        ("４2", None),
        ("7 and 4２", None),
        ("5e", "5"),
        ("-$18", "-18"),
        ("it is .18", ".18"),
        (f"7 {'x' * 100_000}", "7"),
    ],
)
def test_the_last_number_is_whole(text, answer):
    assert number(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # the order of the places
        (r"\boxed{1} #### 2 <answer>3</answer> The answer is 4. 5", "3"),
        (r"<answer>so \boxed{1}, 2</answer>", "1"),
        ("<answer>#### 1</answer>", "1"),
        ("<answer>Answer: 1</answer>", "1"),
        ("<answer>1 or 2</answer>", "1 or 2"),
        (r"<answer>\boxed{1</answer>", r"\boxed{1"),
        (r"#### 2 \boxed{1} The answer is 4. 5", "1"),
        ("The answer is 4.\n#### 2\n5", "2"),
        ("The answer is 4. Check: 2+2", "4"),
        ("We get 4, so it is 5.", "5"),
        # an empty or broken place is not an invitation to look elsewhere
        ("42 <answer></answer>", ""),
        (r"42 \boxed{}", ""),
        (r"The answer is 42. \boxed{42", None),
        # the phrase
        ("The answer is $x = 5$ because of it.", "x = 5"),
        ("**Answer:** 18", "18"),
        ("Final Answer: **18**", "18"),
        ("the answer is 18 red apples.", "18"),
        ("the answer is therefore 18", "18"),
        ("The answer is:\n\n$$18$$", "18"),
        ("Answer: 3.5. That is it.", "3.5"),
        ("Answer: (B)", "(B)"),
        ("The answer is 18 or 19.", "18 or 19"),
        ("The answer is 18 million.", "18 million"),
        ("The answer is twice 18.", "twice 18"),
        ("Answer: $5$ or $6$", "$5$ or $6$"),
        ("Answer: $5$ hundred", "$5$ hundred"),
        ("**Answer: 18**", "18"),
        (r"The answer is $9 \times 2 = 18$.", "18"),
        ("The answer is option B.", "B"),
        ("The answer is 18. Or 19.", "18. Or 19."),
        ("answer: 17 answer: 18", "17, 18"),
        # two answers side by side, or one twice
        ("<answer>17</answer><answer>18</answer>", "17, 18"),
        ("#### 17\n#### 18", "17, 18"),
        ("#### 18\n#### 18", "18"),
        (r"\boxed{17} or maybe it is \boxed{18}", "17 or 18"),
        # headings and marks of the end
        ("#### Step 1: add\nThe answer is 18.", "18"),
        ("The answer is 18.<|endoftext|>", "18"),
        # the final number, where it stands for itself
        ("So she makes 9 * 2 = $18 every day at the market.", "18"),
        ("3 * 6 = 18.", "18"),
        ("That makes 42.", "42"),
        ("There are 3 + 15 = <<3+15=18>>18 apples.", "18"),
        ("Thus 18 students are in the class.", "18"),
        ("So the answer would be 18.", "18"),
        ("She has 18 eggs left.", "18"),
        ("The cost comes to $18.00.", "18.00"),
        ("(-18)", "-18"),
        ("\u201318", "-18"),
        ("(-3/4)", "-3/4"),
        ("either 18 or 19", None),
        ("18, 19", None),
        ("18 - 19", None),
        ("5 or is it 6", None),
        ("2^10", None),
        ("52_8", None),
        ("5x", None),
        ("no number", None),
        ("", None),
    ],
)
def test_the_combined_convention_takes_the_first_place_there_is(text, answer):
    assert combined(text) == answer
