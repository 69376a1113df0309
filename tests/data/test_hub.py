"""Data sets of the Hugging Face Hub, by a stand-in of the package that reads them."""

import builtins
import json
import sys

import pytest

from grpo_jax.data import fingerprint, make_task

# Like the package: load_dataset(path, name, split=...) gives rows that can be walked through, and fails in its own ways.
DATASETS = """
import json, pathlib

def load_dataset(path, name=None, *, split):
    file = pathlib.Path(path) / (name or "default") / f"{split}.jsonl"
    if not file.exists():
        raise FileNotFoundError(f"no data set {path}")
    return [json.loads(line) for line in file.read_text().splitlines()]
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Writes records as a split of a data set."""
    (tmp_path / "datasets.py").write_text(DATASETS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.chdir(tmp_path)

    def write(records, name="default", split="train"):
        folder = tmp_path / "owner" / "set" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    yield write
    sys.modules.pop("datasets", None)


def gsm8k(start, stop):
    return [{"question": f"{i}+1", "answer": f"{i}+1\n#### {i + 1}"} for i in range(start, stop)]


RECORDS = {
    "jsonl": [{"question": f"{i}+1", "answer": 1.5} for i in range(20)],
    "gsm8k": gsm8k(0, 20),
    "math": [{"problem": f"{i}+1", "answer": str(i + 1), "solution": "s"} for i in range(20)],
    "humaneval": [{"prompt": f"def f{i}():\n", "test": "t", "entry_point": f"f{i}"} for i in range(20)],
}


@pytest.mark.parametrize("task", RECORDS)
def test_a_data_set_of_the_hub_gives_the_problems_of_the_same_file(hub, tmp_path, task):
    hub(RECORDS[task])
    file = tmp_path / "owner" / "set" / "default" / "train.jsonl"
    assert fingerprint(make_task(task, {"hub": "owner/set"})) == fingerprint(make_task(task, {"path": str(file)}))


def test_configuration_and_splits_are_the_users_choice(hub):
    hub(gsm8k(0, 10), "main", "all")
    hub(gsm8k(8, 12), "main", "test")
    task = make_task("gsm8k", {"hub": "owner/set", "hub_name": "main", "hub_split": "all", "hub_heldout_split": "test"})
    assert (task.train_size("gsm8k"), len(task.heldout("gsm8k", 99)), task.counts.duplicates) == (8, 4, 2)
    assert task.source == "owner/set[all] and owner/set[test]"


def test_a_record_that_breaks_a_rule_is_named_with_data_set_split_and_row(hub):
    hub([*gsm8k(0, 2), {"question": "a"}])
    with pytest.raises(ValueError, match=r"owner/set\[train\]:2: a row has the field 'answer'"):
        make_task("gsm8k", {"hub": "owner/set"})


def test_metadata_must_be_json(hub):
    hub([{"question": "a", "answer": "1", "x": float("nan")}])
    with pytest.raises(ValueError, match=r"owner/set\[train\]:0: field 'x' is metadata"):
        make_task("jsonl", {"hub": "owner/set", "metadata": ["x"]})


def test_a_data_set_that_cannot_be_loaded_is_named_with_the_reason(hub):
    with pytest.raises(ValueError, match=r"hub is 'owner/none'.*None, split 'train', cannot be loaded: FileNotFoundError"):
        make_task("gsm8k", {"hub": "owner/none"})


def test_a_missing_package_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without_datasets(name, *args, **kwargs):
        if name == "datasets":
            raise ImportError("No module named 'datasets'")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(ValueError, match=r"hub is 'owner/set', .* pip install 'grpo_jax\[hf\]'"):
        make_task("gsm8k", {"hub": "owner/set"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path is None, but it must be the path of a JSONL file where hub is null"),
        ({"path": "p", "hub": "h"}, "path is 'p', but .* null where hub"),
        ({"path": ""}, "path must not be empty"),
        ({"hub": ""}, "hub must not be empty"),
        ({"hub": "h", "hub_split": ""}, "hub_split must not be empty"),
        ({"path": "p", "hub_name": "main"}, "hub_name is 'main', but it must be left out"),
        ({"path": "p", "hub_split": "test"}, "hub_split is 'test', but it must be left out"),
        ({"path": "p", "hub_heldout_split": "test"}, "hub_heldout_split is 'test', but it must be left out"),
        ({"hub": "h", "heldout_path": "p"}, "heldout_path is 'p', but it must be null where hub is given"),
        ({"hub": "h", "hub_heldout_split": "train"}, "hub_heldout_split is 'train', but it must be another split"),
    ],
)
@pytest.mark.parametrize("task", RECORDS)
def test_a_source_is_a_file_or_a_data_set_and_no_option_is_ignored(task, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(task, options)
