"""Tasks by name and by dotted path."""

import pytest

from grpo_jax.data import TASKS, JsonlTask, Problem, Task, fingerprint, make_task, question_key

MODULE = """
from grpo_jax.data import Problem

class Doubling:
    stages = ("doubling",)

    def __init__(self, limit=10):
        self.limit = limit

    def sample(self, rng, stage, n, split="train"):
        return [self.problem(int(x)) for x in rng.integers(self.limit, size=n)]

    def heldout(self, stage, n):
        return [self.problem(self.limit + i) for i in range(n)]

    def demonstration(self, problem, rng):
        return f"<think></think><answer>{problem.answer}</answer>"

    def problem(self, x):
        return Problem(prompt=f"{x}+{x}", answer=str(2 * x), stage="doubling", key=str(x))

def halfway():
    return object()

number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "task_of_a_user.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_task_is_found_by_dotted_path_and_gets_its_options(module):
    task = make_task("task_of_a_user:Doubling", {"limit": 5})
    assert isinstance(task, Task)
    assert task.heldout("doubling", 1) == [Problem(prompt="5+5", answer="10", stage="doubling", key="5")]


def test_a_task_is_found_by_name(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n')
    assert make_task("jsonl", {"path": str(path)}).stages == ("all",)


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(ValueError, match=r"unknown task 'arithmetics'.*'jsonl'.*did you mean 'arithmetic'"):
        make_task("arithmetics")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no_such_module_here:x", {}, "cannot be loaded"),
        ("task_of_a_user:missing", {}, "cannot be loaded"),
        ("task_of_a_user:number", {}, "is a int, not a factory"),
        ("task_of_a_user:Doubling", {"limits": 3}, r"limits.*its options are \['limit'\]"),
        ("task_of_a_user:halfway", {}, "lacks .*'sample'.* of the Task protocol"),
    ],
)
def test_what_is_no_task_is_refused_with_the_reason(module, name, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(name, options)


def test_every_task_in_the_table_names_a_module_and_a_factory():
    assert all(path.count(":") == 1 for path in TASKS.values())


def test_questions_that_differ_in_case_and_space_only_are_one_question():
    assert question_key("How  many\nare LEFT? ") == question_key("how many are left?")
    assert question_key("How many are left?") != question_key("How many were left?")


def test_a_fingerprint_is_that_of_the_problems_and_not_of_the_file():
    def task(train, heldout):
        def problems(answers):
            return [Problem(prompt=f"q{answer}", answer=answer, stage="all", key=f"k{answer}") for answer in answers]

        return JsonlTask(problems(train), problems(heldout), source="test")

    assert fingerprint(task("12", "3")) == fingerprint(task("12", "3"))
    others = {fingerprint(task(*sides)) for sides in (("12", "3"), ("21", "3"), ("124", "3"), ("12", "4"), ("1", "23"))}
    assert len(others) == 5
    assert fingerprint(make_task("arithmetic")) == ""
