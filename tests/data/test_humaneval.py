"""HumanEval-format files: what the reward for code gets."""

import json

import pytest

from grpo_jax.data import make_task

RECORD = {
    "task_id": "T/0",
    "prompt": 'import math\n\ndef double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "\n\ndef check(candidate):\n    assert candidate(2) == 4\n",
}


def task(tmp_path, records):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return make_task("humaneval", {"path": str(path)})


def problems(records):
    return [{**record, "prompt": record["prompt"] + f"    # {i}\n"} for i, record in enumerate(records)]


def test_the_metadata_holds_the_source_as_it_is_written(tmp_path):
    records = problems([RECORD] * 3)
    made = task(tmp_path, records)
    problem = made.train_problem("humaneval", 0)
    record = next(record for record in records if record["prompt"].strip() == problem.prompt)
    assert problem.metadata == {"preamble": record["prompt"], "tests": RECORD["test"], "entry_point": "double"}
    assert problem.answer == ""


def test_a_solution_is_the_whole_function_in_a_fence_and_passes_its_tests(tmp_path):
    problem = task(tmp_path, problems([RECORD] * 3)).train_problem("humaneval", 0)
    assert problem.solution.startswith("```python\nimport math") and problem.solution.endswith("return 2 * x\n```")
    names: dict = {}
    exec(problem.solution.removeprefix("```python\n").removesuffix("```") + problem.metadata["tests"], names)
    names["check"](names["double"])


def test_a_record_without_a_solution_has_none(tmp_path):
    records = [{k: v for k, v in r.items() if k != "canonical_solution"} for r in problems([RECORD] * 3)]
    assert task(tmp_path, records).train_problem("humaneval", 0).solution is None


@pytest.mark.parametrize("field", ["prompt", "test", "entry_point"])
def test_a_missing_field_is_named_with_its_line(tmp_path, field):
    with pytest.raises(ValueError, match=rf"p\.jsonl:1: a row has the field '{field}'"):
        task(tmp_path, [{k: v for k, v in RECORD.items() if k != field}])
