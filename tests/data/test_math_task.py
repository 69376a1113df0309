"""MATH-format files: where the answer is found, and solutions."""

import json

import pytest

from grpo_jax.data import make_task
from grpo_jax.data.mathematics import last_box

WORKING = "We have $1+1 = \\boxed{2}.$"


def task(tmp_path, records, **options):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return make_task("math", {"path": str(path), **options})


@pytest.mark.parametrize(
    ("record", "answer", "solution"),
    [
        ({"answer": "\\frac{1}{2}"}, "\\frac{1}{2}", None),
        ({"answer": 2}, "2", None),
        ({"answer": WORKING + "The answer is: 2"}, "2", f"<think>{WORKING}</think><answer>2</answer>"),
        ({"answer": "2", "solution": WORKING}, "2", f"<think>{WORKING}</think><answer>2</answer>"),
        ({"solution": WORKING}, "2", f"<think>{WORKING}</think><answer>2</answer>"),
        ({"answer": "The answer is: odd, I say. The answer is: 3"}, "3", None),
    ],
)
@pytest.mark.parametrize("field", ["question", "problem"])
def test_the_answer_is_found_in_each_form_of_the_data(tmp_path, record, answer, solution, field):
    problem = task(tmp_path, [{field: f"q{i}", **record} for i in range(3)]).train_problem("math", 0)
    assert problem.answer == answer
    if solution is not None:
        assert problem.solution == solution


def test_a_solution_can_keep_its_box(tmp_path):
    records = [{"problem": f"q{i}", "solution": WORKING, "answer": "2"} for i in range(3)]
    assert task(tmp_path, records, solution_format="boxed").train_problem("math", 0).solution == WORKING
    other = [{"problem": f"q{i}", "solution": "so it is", "answer": "2"} for i in range(3)]
    assert task(tmp_path, other, solution_format="boxed").train_problem("math", 0).solution.endswith("\n\n\\boxed{2}")


def test_stages_come_from_a_field(tmp_path):
    records = [{"problem": f"q{i}", "answer": "2", "level": 1 + i % 2} for i in range(20)]
    assert set(task(tmp_path, records, stage="level").stages) == {"1", "2"}
    assert task(tmp_path, records).stages == ("math",)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"$\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{1} or \fbox{3}", "3"),
        (r"$\boxed{\left\{ 1 \right\}}$", r"\left\{ 1 \right\}"),
        (r"$\boxed{(1,\infty)\}}$", r"(1,\infty)\}"),
        (r"$\boxed 7$.", "7"),
        (r"\boxed{1", None),
        ("none", None),
    ],
)
def test_the_last_box_is_read_with_its_braces_balanced(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize("record", [{}, {"solution": "no box"}, {"answer": "no box. The answer is:"}, {"answer": None}])
def test_a_record_without_an_answer_is_named_with_its_line(tmp_path, record):
    with pytest.raises(ValueError, match=r"p\.jsonl:1: an answer is a bare 'answer'"):
        task(tmp_path, [{"question": "q", **record}])


@pytest.mark.parametrize(("options", "message"), [({"solution_format": "xml"}, "solution_format"), ({"stage": ""}, "stage")])
def test_impossible_options_are_refused_by_name(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        task(tmp_path, [{"question": "q", "answer": "1"}] * 3, **options)
