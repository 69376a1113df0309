"""GSM8K-format files: final numbers, annotations, solutions."""

import json

import numpy as np
import pytest

from grpo_jax.data import gsm8k_task
from grpo_jax.data.gsm8k import split_answer
from grpo_jax.rewards import CompositeReward, RewardInput

ANSWER = "She sold 48/2 = <<48/2=24>>24 clips.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        ("72", "72"),
        ("1,234,567", "1234567"),
        ("$1,234.50", "1234.50"),
        ("-5", "-5"),
        ("-$5", "-5"),
        (".5", ".5"),
        ("12 apples", "12 apples"),
        ("3/4", "3/4"),
    ],
)
def test_the_reference_is_the_final_number_without_commas_and_dollars(final, expected):
    assert split_answer(f"working\n#### {final}") == ("working", expected)


def test_annotations_leave_the_working():
    working, final = split_answer(ANSWER)
    assert working == "She sold 48/2 = 24 clips.\nIn all 48+24 = 72."
    assert final == "72"


def write(path, answers):
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": a}) + "\n" for i, a in enumerate(answers)))
    return str(path)


def test_a_solution_in_tags_earns_the_full_reward(tmp_path):
    task = gsm8k_task(path=write(tmp_path / "p.jsonl", [ANSWER] * 4))
    problem = task.heldout("gsm8k", 1)[0]
    text = task.demonstration(problem, np.random.default_rng(0))
    assert text.startswith("<think>She sold 48/2 = 24") and text.endswith("</think><answer>72</answer>")
    row = RewardInput(prompt=problem.prompt, completion=text, reference=problem.answer, ids=(), end="eos")
    result = CompositeReward().score([row])
    assert [float(v[0]) for v in result.components.values()] == [1.0, 1.0, 1.0]


def test_a_solution_can_keep_the_mark_of_the_original(tmp_path):
    task = gsm8k_task(path=write(tmp_path / "p.jsonl", [ANSWER] * 4), solution_format="marked")
    assert task.heldout("gsm8k", 1)[0].solution.endswith("72.\n#### 72")


@pytest.mark.parametrize("answer", ["no mark 72", "working ####", "working ####  \n"])
def test_an_answer_without_a_final_part_is_named_with_its_line(tmp_path, answer):
    path = write(tmp_path / "p.jsonl", [ANSWER, answer])
    with pytest.raises(ValueError, match=r"p\.jsonl:2: a GSM8K answer ends with '#### final'"):
        gsm8k_task(path=path)


def test_an_unknown_solution_format_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"solution_format is one of \['marked', 'think_answer'\]; got 'xml'"):
        gsm8k_task(path=write(tmp_path / "p.jsonl", [ANSWER]), solution_format="xml")
