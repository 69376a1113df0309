"""Tasks from JSON-lines files: fields, the split, and errors that name file and line."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from grpo_jax.data import CharacterTokenizer, FiniteTask, JsonlTask, Problem, PromptTemplate, fingerprint, jsonl_task


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(n, start=0):
    return [{"question": f"{i}+1", "answer": str(i + 1)} for i in range(start, start + n)]


def keys(task, split):
    if split == "heldout":
        return {p.key for stage in task.stages for p in task.heldout(stage, 10**6)}
    return {task.train_problem(s, i).key for s in task.stages for i in range(task.train_size(s))}


def test_fields_have_the_names_that_the_user_gives(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"q": f"{i}?", "a": i, "s": f"it is {i}", "level": 1 + i % 2} for i in range(8)])
    task = jsonl_task(path=path, question="q", answer="a", solution="s", stage="level")
    assert isinstance(task, FiniteTask)
    assert task.stages == ("2", "1") or task.stages == ("1", "2")
    problem = task.heldout("1", 1)[0]
    assert problem.solution == f"it is {problem.answer}"
    assert task.demonstration(problem, np.random.default_rng(0)) == problem.solution


def test_a_number_keeps_the_text_it_was_written_in(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "a", "answer": 2.50}\n{"question": "b", "answer": 1e400}\n')
    task = jsonl_task(path=str(path))
    assert {p.answer for p in [task.heldout("all", 1)[0], task.train_problem("all", 0)]} == {"2.50", "1E+400"}


def test_training_and_heldout_problems_are_disjoint_and_complete(tmp_path):
    task = jsonl_task(path=write(tmp_path / "p.jsonl", rows(400)))
    train, heldout = keys(task, "train"), keys(task, "heldout")
    assert not train & heldout
    assert len(train) + len(heldout) == 400
    assert 15 <= len(heldout) <= 80


def test_a_problem_keeps_its_side_when_lines_are_shuffled_or_added(tmp_path):
    short = jsonl_task(path=write(tmp_path / "a.jsonl", rows(200)))
    long = jsonl_task(path=write(tmp_path / "b.jsonl", list(reversed(rows(400)))))
    assert keys(short, "heldout") <= keys(long, "heldout")
    assert keys(short, "train") <= keys(long, "train")


def test_the_split_is_the_same_in_another_process(tmp_path):
    path = write(tmp_path / "p.jsonl", rows(50))
    code = f"from grpo_jax.data import jsonl_task; print([p.key for p in jsonl_task(path={path!r}).heldout('all', 99)])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str([p.key for p in jsonl_task(path=path).heldout("all", 99)])


def test_the_first_heldout_problems_are_the_same_whatever_number_is_asked_for(tmp_path):
    task = jsonl_task(path=write(tmp_path / "p.jsonl", rows(400)))
    assert task.heldout("all", 20)[:5] == task.heldout("all", 5)
    assert len(task.heldout("all", 10**6)) == len(keys(task, "heldout"))


def test_the_smallest_file_still_has_both_sides(tmp_path):
    task = jsonl_task(path=write(tmp_path / "p.jsonl", rows(2)))
    assert (task.train_size("all"), len(task.heldout("all", 9))) == (1, 1)


def test_a_question_asked_twice_is_never_on_both_sides(tmp_path):
    twice = [{"question": f"  {i}+1 " if copy else f"{i}+1", "answer": "x"} for i in range(100) for copy in (0, 1)]
    task = jsonl_task(path=write(tmp_path / "p.jsonl", twice))
    assert not keys(task, "train") & keys(task, "heldout")


def test_training_problems_that_the_second_file_holds_out_are_removed_and_counted(tmp_path):
    train = write(tmp_path / "train.jsonl", rows(30))
    heldout = write(tmp_path / "test.jsonl", rows(10, start=25))
    task = jsonl_task(path=train, heldout_path=heldout)
    assert task.counts.duplicates == 5
    assert task.train_size("all") == 25
    assert len(task.heldout("all", 99)) == 10
    assert not keys(task, "train") & keys(task, "heldout")


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_sampling_is_decided_by_the_generator_and_stays_on_its_side(tmp_path, split):
    task = jsonl_task(path=write(tmp_path / "p.jsonl", rows(100)))
    first = task.sample(np.random.default_rng(3), "all", 50, split)
    assert first == task.sample(np.random.default_rng(3), "all", 50, split)
    assert first != task.sample(np.random.default_rng(4), "all", 50, split)
    assert {p.key for p in first} <= keys(task, split)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("{oops", "a line is one JSON object"),
        ("[1, 2]", "a line is one JSON object; got list"),
        ("[" * 100_000, "a line is one JSON object"),
        ('{"answer": "3"}', "a row has the field 'question'"),
        ('{"question": "", "answer": "3"}', "field 'question' holds text, not empty"),
        ('{"question": 7, "answer": "3"}', "field 'question' holds text"),
        ('{"question": "a", "answer": true}', "field 'answer' holds text or a number"),
        ('{"question": "a", "answer": null}', "field 'answer' holds text or a number"),
        ('{"question": "a", "answer": NaN}', "NaN is not JSON"),
    ],
)
def test_a_malformed_line_is_named_with_file_line_and_rule(tmp_path, line, rule):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\n\n' + line + "\n")
    with pytest.raises(ValueError) as caught:
        jsonl_task(path=str(path))
    assert f"{path}:3: " in str(caught.value)
    assert rule in str(caught.value)


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"question": "\xff", "answer": "1"}\n')
    with pytest.raises(ValueError, match=r"p\.jsonl:1: a line is UTF-8 text; byte 14"):
        jsonl_task(path=str(path))


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_no_errors(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "a", "answer": "1"}\r\n\r\n{"question": "b\xe2\x80\xa8c", "answer": "1"}')
    assert len(keys(jsonl_task(path=str(path)), "train") | keys(jsonl_task(path=str(path)), "heldout")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heldout_fraction": 0.0}, "heldout_fraction"),
        ({"heldout_fraction": 1.0}, "heldout_fraction"),
        ({"question": ""}, "question must not be empty"),
        ({"path": "no/such/file.jsonl"}, "cannot read the problems in no/such/file.jsonl"),
    ],
)
def test_impossible_options_are_refused_by_name(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        jsonl_task(**{"path": write(tmp_path / "p.jsonl", rows(3)), **options})


def test_an_empty_file_and_a_stage_with_one_problem_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no problem"):
        jsonl_task(path=write(tmp_path / "p.jsonl", []))
    with pytest.raises(ValueError, match="stage 'all' has no train problem"):
        jsonl_task(path=write(tmp_path / "p.jsonl", rows(1)))


def test_a_problem_without_a_solution_cannot_be_demonstrated(tmp_path):
    task = jsonl_task(path=write(tmp_path / "p.jsonl", rows(3)))
    with pytest.raises(ValueError, match="has no solution to imitate"):
        task.demonstration(task.heldout("all", 1)[0], np.random.default_rng(0))


def test_an_unknown_stage_or_split_is_refused(tmp_path):
    task = jsonl_task(path=write(tmp_path / "p.jsonl", rows(3)))
    with pytest.raises(ValueError, match="unknown stage 'algebra'"):
        task.heldout("algebra", 1)
    with pytest.raises(ValueError, match="unknown split 'test'"):
        task.sample(np.random.default_rng(0), "all", 1, "test")


def problem(prompt, solution=None):
    return Problem(prompt=prompt, answer="1", stage="all", key=prompt, solution=solution)


TEMPLATE = PromptTemplate(CharacterTokenizer("ab"))


def test_problems_that_fit_no_row_are_dropped_and_counted():
    task = JsonlTask(
        [problem("a"), problem("aaaa"), problem("b", "bb"), problem("ab", "bbbbb")], [problem("bb")], source="test"
    )
    short = task.limit_length(TEMPLATE, max_prompt=5, max_completion=4)
    assert [short.train_problem("all", i).prompt for i in range(short.train_size("all"))] == ["a", "b"]
    assert (short.counts.long_prompts, short.counts.long_solutions) == (1, 1)
    assert str(short.counts) == (
        "1 problems left out for a prompt that is too long, 1 problems left out for a solution that is too long"
    )
    assert str(task.counts) == ""


def test_a_heldout_problem_stays_however_long_its_solution():
    task = JsonlTask([problem("a", "b")], [problem("b", "bbbbbbbb")], source="test")
    assert len(task.limit_length(TEMPLATE, max_prompt=5, max_completion=4).heldout("all", 9)) == 1


def test_a_prompt_of_exactly_the_limit_stays():
    task = JsonlTask([problem("aaa")], [problem("bbb")], source="test")
    assert task.limit_length(TEMPLATE, max_prompt=5).train_size("all") == 1


def test_dropping_every_problem_is_an_error_that_says_how_long_they_are():
    task = JsonlTask([problem("aaa")], [problem("b")], source="test")
    with pytest.raises(ValueError, match=r"no train problem .* fits a prompt of 3 tokens.*shortest prompt has 3 tokens"):
        task.limit_length(TEMPLATE, max_prompt=3)


def test_metadata_keeps_the_types_of_json(tmp_path):
    path = tmp_path / "p.jsonl"
    record = '{"question": "%s", "answer": 1, "tests": ["a", 2, 2.50, true, null, {"x": [1e2]}], "n": 3, "name": "f"}\n'
    path.write_text(record % "a" + record % "b")
    task = jsonl_task(path=str(path), metadata=["tests", "n", "name"])
    metadata = task.train_problem("all", 0).metadata
    assert metadata == {"tests": ["a", 2, 2.5, True, None, {"x": [100.0]}], "n": 3, "name": "f"}
    assert json.loads(json.dumps(metadata)) == metadata
    assert [type(value) for value in metadata["tests"]] == [str, int, float, bool, type(None), dict]
    assert jsonl_task(path=str(path)).train_problem("all", 0).metadata == {}


def test_metadata_can_be_given_the_names_that_the_reward_reads(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"question": f"q{i}", "answer": 1, "test": "t", "prompt": " p"} for i in range(3)])
    task = jsonl_task(path=path, metadata={"tests": "test", "preamble": "prompt"})
    assert task.train_problem("all", 0).metadata == {"tests": "t", "preamble": " p"}


def test_without_an_answer_field_the_reference_is_empty(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"question": f"q{i}", "tests": "t"} for i in range(3)])
    assert jsonl_task(path=path, answer=None, metadata=["tests"]).train_problem("all", 0).answer == ""


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"question": "c", "answer": 1}', r"p\.jsonl:2: metadata names the field 'tests'; this row has \['answer', 'quest"),
        ('{"question": "c", "answer": 1, "tests": [1e400]}', r"p\.jsonl:2: field 'tests' is metadata, .* finite numbers"),
    ],
)
def test_metadata_that_is_missing_or_no_json_is_named_with_its_line(tmp_path, record, message):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "a", "answer": 1, "tests": null}\n' + record + "\n")
    with pytest.raises(ValueError, match=message):
        jsonl_task(path=str(path), metadata=["tests"])


def test_metadata_is_part_of_the_fingerprint(tmp_path):
    def task(tests):
        path = write(tmp_path / "p.jsonl", [{"question": f"q{i}", "answer": 1, "tests": tests} for i in range(3)])
        return jsonl_task(path=path, metadata=["tests"])

    assert fingerprint(task("a")) != fingerprint(task("b"))


@pytest.mark.parametrize("metadata", ["tests", [""], ["a", "a"], {"a": ""}, {"": "a"}, [3]])
def test_impossible_metadata_is_refused_by_name(tmp_path, metadata):
    with pytest.raises(ValueError, match="metadata is"):
        jsonl_task(path=write(tmp_path / "p.jsonl", rows(3)), metadata=metadata)


def test_a_packed_file_gives_the_problems_of_the_plain_one(tmp_path):
    plain = write(tmp_path / "p.jsonl", rows(30))
    packed = tmp_path / "p.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "p.jsonl").read_bytes()))
    assert fingerprint(jsonl_task(path=str(packed))) == fingerprint(jsonl_task(path=plain))


@pytest.mark.parametrize("content", [b"{}", gzip.compress(b'{"question": "a", "answer": 1}' * 99)[:-9], b""])
def test_a_packed_file_that_is_broken_is_named(tmp_path, content):
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"p\.jsonl\.gz"):
        jsonl_task(path=str(path))
