"""Structure against texts that imitate it."""

import time

import pytest

from grpo_jax.rewards.format import boxed_last, count_tags, format_reward, nothing_after_answer
from grpo_jax.rewards.protocol import RewardInput
from grpo_jax.rewards.registry import resolve_reward

THINK_ANSWER = format_reward(("think", "answer"))
GOOD = "<think>1+1</think><answer>2</answer>"


def row(completion):
    return RewardInput(prompt="1+1", completion=completion, reference="2", ids=(), end="eos")


LOOKALIKES = {
    "other case": "<Answer>",
    "space inside": "<answer >",
    "space before": "< answer>",
    "line end": "<answer\n>",
    "closing with space": "</ answer>",
    "attribute": '<answer class="final">',
    "self-closing": "<answer/>",
    "full-width": "＜answer＞",
    "full-width letters": "<ａnswer>",
    "zero-width space": "<ans\u200bwer>",
    "soft hyphen": "<answ\u00ader>",
    "right-to-left mark": "<\u200fanswer>",
    "entities": "&lt;answer&gt;",
    "numeric entities": "&#60;answer&#x3e;",
    "entities of a full-width sign": "&#xff1c;answer>",
    "other case of think": "<THINK>",
    "entities of think": "&lt;/think&gt;",
}


@pytest.mark.parametrize("mark", LOOKALIKES.values(), ids=LOOKALIKES)
@pytest.mark.parametrize("place", ["<think>{}</think><answer>2</answer>", "<think>1</think><answer>2{}</answer>"])
def test_a_mark_that_looks_like_a_tag_counts_as_one_more(mark, place):
    assert THINK_ANSWER(row(place.format(" "))) == 1
    assert THINK_ANSWER(row(place.format(mark))) == 0


@pytest.mark.parametrize("mark", LOOKALIKES.values(), ids=LOOKALIKES)
def test_a_look_alike_is_no_tag_either(mark):
    # Extraction reads the exact tags alone, so a completion made of others has no answer.
    assert THINK_ANSWER(row(f"<think>1</think>{mark}2</answer>")) == 0


@pytest.mark.parametrize("text", ["a < b > c", "<thinking>", "<answers>", "<b>", "x<answer", "1 < think of it", "answer>"])
def test_what_is_not_a_tag_may_stand_in_the_text(text):
    assert THINK_ANSWER(row(f"<think>{text}</think><answer>2</answer>")) == 1


def test_an_answer_that_shows_nothing_is_empty():
    for blank in ("", " \n", "\u200b", "\u2060\ufeff ", "\u00ad", "\u3164"):
        assert THINK_ANSWER(row(f"<think>1</think><answer>{blank}</answer>")) == 0
        assert nothing_after_answer(row(f"so <answer>{blank}</answer>")) == 0
        assert boxed_last(row(f"so \\boxed{{{blank}}}")) == 0


def test_invisible_characters_outside_are_something_outside():
    assert THINK_ANSWER(row(GOOD + "\u200b")) == 0
    assert THINK_ANSWER(row(GOOD + "\n")) == 1


def test_counted_tags_are_named_by_their_plain_form():
    assert count_tags("<Think>&lt;/answer&gt;<answer x='1'>", ("think", "answer")) == {
        "<think>": 1,
        "</answer>": 1,
        "<answer>": 1,
    }


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("so it is <answer>2</answer>", 1),
        (GOOD + "\n", 1),
        ("<answer>2</answer>.", 0),
        ("<answer>2</answer> or 3", 0),
        ("<answer>2</answer><answer>2</answer>", 0),
        ("<answer>1<answer>2</answer>", 0),
        ("</answer>2<answer></answer>", 0),
        ("</answer><answer>2", 0),
        ("<answer>2", 0),
        ("2</answer>", 0),
        ("", 0),
    ],
)
def test_any_text_may_stand_before_the_answer_and_none_after_it(text, score):
    assert nothing_after_answer(row(text)) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"so it is $\boxed{2}$.", 1),
        (r"so it is \boxed{2}", 1),
        (r"\[\boxed{\frac{1}{2}}\]", 1),
        (r"\(\boxed{\left\{ 1, 2 \right\}}\).", 1),
        (r"$\boxed{\}}$", 1),
        (r"$\boxed{2}$ I hope", 0),
        (r"\boxed{2} or 3", 0),
        (r"\boxed{1} \boxed{2}", 0),
        (r"\fbox{1} \boxed{2}", 0),
        (r"\boxed 1 \boxed{2}", 0),
        (r"\fbox{2}", 0),
        (r"\boxed{2", 0),
        (r"\boxed{ }", 0),
        (r"\boxed{2}}", 0),
        ("2", 0),
        ("", 0),
    ],
)
def test_one_box_and_nothing_but_the_end_of_its_formula_behind_it(text, score):
    assert boxed_last(row(text)) == score


@pytest.mark.parametrize(
    "text",
    [
        *("<" * 200_000, "<answer" * 50_000, "<" + " " * 200_000, "< / " * 50_000, "<answer" + " /" * 100_000),
        *("&lt;" * 50_000, "&" * 200_000, "\\boxed{" * 50_000, "\\boxed{" + "{" * 200_000, "\u200b" * 200_000),
        "<think>" + "<\t" * 100_000 + "</think><answer>2</answer>",
        "<think><" + " " * 200_000 + "x</think><answer>2</answer>",
    ],
    ids=range(12),
)
def test_a_very_long_text_takes_linear_time(text):
    start = time.perf_counter()
    for reward in (THINK_ANSWER, nothing_after_answer, boxed_last):
        reward(row(text))
    assert time.perf_counter() - start < 10.0


@pytest.mark.parametrize("nothing", ["\x00", "\x07", "\u0301", "\u0600", "\ud800", "\u200b \t"])
def test_an_answer_of_characters_that_show_nothing_is_empty(nothing):
    assert resolve_reward("think_answer")(row(f"<think>1+1</think><answer>{nothing}</answer>")) == 0
    assert resolve_reward("nothing_after_answer")(row(f"It is <answer>{nothing}</answer>")) == 0
    assert resolve_reward("hash_mark_once")(row(f"1+1\n#### {nothing}")) == 0


@pytest.mark.parametrize("box", [r"\,", "{}", r"\text{}", "$", r"\quad", r"\;\!"])
def test_a_box_of_spacing_is_empty(box):
    assert resolve_reward("boxed_last")(row(rf"so \boxed{{{box}}}")) == 0
    assert resolve_reward("boxed_last")(row(rf"so \boxed{{{box}7}}")) == 1


@pytest.mark.parametrize("line", ["####", "#####", "##### 5"])
def test_a_bare_or_longer_mark_is_none(line):
    assert resolve_reward("hash_mark_once")(row(f"1+1\n{line}")) == 0
