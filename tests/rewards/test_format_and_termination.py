"""Structure and stopping."""

import pytest

from grpo_jax.rewards import RewardInput, ended_after, format_reward, resolve_reward


def row(completion, end="eos"):
    return RewardInput(prompt="1+1", completion=completion, reference="2", ids=(), end=end)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>1+1</think><answer>2</answer>", 1),
        ("<think></think><answer>2</answer>", 1),
        (" <think>a\nb</think>\n<answer>2</answer>\n", 1),
        ("<think>1</think><answer></answer>", 0),
        ("<think>1</think><answer> \n</answer>", 0),
        ("so <think>1</think><answer>2</answer>", 0),
        ("<think>1</think> so <answer>2</answer>", 0),
        ("<think>1</think><answer>2</answer>.", 0),
        ("<answer>2</answer><think>1</think>", 0),
        ("<think>1<answer>2</answer></think>", 0),
        ("<think><answer>2</think></answer>", 0),
        ("<think>1</think><think>1</think><answer>2</answer>", 0),
        ("<think>1</think><answer>2</answer><answer>2</answer>", 0),
        ("<think>1<think></think><answer>2</answer>", 0),
        ("</think><think><answer>2</answer>", 0),
        ("<think>1</think><answer>2", 0),
        ("<answer>2</answer>", 0),
        ("2", 0),
        ("", 0),
    ],
)
def test_think_then_answer_once_each_and_nothing_outside(text, score):
    assert resolve_reward("think_answer")(row(text)) == score


def test_the_tags_are_the_callers_choice():
    reward = format_reward(("plan", "draft", "result"), filled=("plan", "result"))
    assert reward(row("<plan>p</plan><draft></draft><result>r</result>")) == 1
    assert reward(row("<plan></plan><draft>d</draft><result>r</result>")) == 0
    assert resolve_reward("answer_only")(row("<answer>2</answer>")) == 1


@pytest.mark.parametrize(("tags", "filled"), [((), ()), (("a", "a"), ()), (("a",), ("b",))])
def test_impossible_tags_are_refused(tags, filled):
    with pytest.raises(ValueError, match="tags are distinct"):
        format_reward(tags, filled)


def test_a_box_or_a_hash_mark_counts_once():
    assert resolve_reward("boxed_once")(row(r"it is \boxed{2}")) == 1
    assert resolve_reward("boxed_once")(row(r"\boxed{1} \boxed{2}")) == 0
    assert resolve_reward("hash_mark_once")(row("1+1 is 2\n#### 2\n")) == 1
    assert resolve_reward("hash_mark_once")(row("1+1 is #### 2")) == 0
    assert resolve_reward("hash_mark_once")(row("#### 1\n#### 2")) == 0
    assert resolve_reward("hash_mark_once")(row("#### 2\nand more")) == 0


@pytest.mark.parametrize(
    ("text", "end", "score"),
    [
        ("<answer>2</answer>", "eos", 1),
        ("<answer>2</answer>", "length", 0),
        ("<answer>2</answer> ", "eos", 0),
        ("<answer>2</answer>so", "eos", 0),
        ("<answer>2", "eos", 0),
        ("", "eos", 0),
    ],
)
def test_termination_is_an_eos_straight_after_the_answer(text, end, score):
    assert resolve_reward("eos_after_answer")(row(text, end)) == score


def test_other_endings():
    assert resolve_reward("eos")(row("whatever")) == 1
    assert resolve_reward("eos")(row("whatever", "length")) == 0
    assert ended_after("}")(row(r"\boxed{2}")) == 1
