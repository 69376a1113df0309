"""Where code is found in a completion."""

import time

import pytest

from grpo_jax.rewards.code import extract_code
from grpo_jax.rewards.code.extract import defines

F = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (F, F),
        ("    return x\n", "    return x\n"),
        (f"Here:\n```python\n{F}```\nDone.", F),
        (f"```\n{F}```", F),
        (f"~~~py\n{F}~~~\n", F),
        (f"````python\n{F}````\n", F),
        (f"```python\ndef f(x):\n    pass\n```\nBetter:\n```python\n{F}```", F),
        (f"```python\n{F}```\nUse it:\n```python\nprint(f(1))\n```\n```\n1\n```", F),
        (f"```python\n{F}```\n```text\ndef f(x): it returns\n```", F),
        (f"<think>```python\ndef f(x): 1\n```</think><answer>\n```python\n{F}```\n</answer> ok", F),
        (f"<answer>{F}</answer>", F),
        (f"<answer> </answer>\n```python\n{F}```", F),
        ("```python\nprint(1)\n", "```python\nprint(1)\n"),
        (f"```python\nunclosed\n\n```python\n{F}```", F),
        (f"1. so\n   ```python\n{F}   ```", F),
        ("", ""),
    ],
)
def test_code_is_found(completion, code):
    assert extract_code(completion, "f") == code


def test_without_an_entry_point_the_last_python_block_counts():
    assert extract_code("```python\na = 1\n```\n```python\nb = 2\n```\n```\nc\n```") == "b = 2\n"
    assert extract_code("```\na\n```\n```\nb\n```") == "b\n"


def test_definitions_are_told_from_mentions():
    assert defines("class Solution:\n    pass", "Solution().solve")
    assert defines("async def f(): pass", "f") and defines("f: int = 3", "f") and defines("x = 1\nf = lambda: 0", "f")
    for code in ("f == 3", "def ff(): pass", "  def f(): pass", "g(f)", ""):
        assert not defines(code, "f"), code


@pytest.mark.parametrize(
    "text", ["~" * 60_000 + "`", "```" + "a" * 60_000 + "`", "<answer>" * 9_000, "```\n" * 20_000, "`" * 90_000]
)
def test_any_text_is_searched_in_moments(text):
    started = time.process_time()
    extract_code(text)
    extract_code(text, "f", unit_tests=True)
    assert time.process_time() - started < 1


def test_a_block_that_defines_is_meant_where_functions_are_tested():
    text = "```python\ndef f(x):\n    return 1\n```\nFor example:\n```python\nprint(f(1))\n```\n"
    assert extract_code(text, unit_tests=True) == "def f(x):\n    return 1\n"
    assert extract_code(text) == "print(f(1))\n"


def test_an_indented_block_loses_its_indent_and_an_answer_in_words_is_said_of_a_block():
    assert extract_code("1. Do:\n   ```python\n   def f():\n       return 1\n   ```\n", "f") == "def f():\n    return 1\n"
    assert extract_code("```python\nx = 1\n```\n<answer>See above.</answer>") == "x = 1\n"
    assert extract_code("```python\nx = 1\n```\n<answer>y = 2</answer>") == "y = 2"
