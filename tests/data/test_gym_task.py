"""reasoning-gym's puzzles as a task: sides, determinism, what is handed to the reward."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from grpo_jax.data import FiniteTask, make_task
from grpo_jax.data.reasoning_gym import encode
from grpo_jax.rewards.reasoning_gym import decode

gym_factory = pytest.importorskip("reasoning_gym.factory")
gym_dataset = pytest.importorskip("reasoning_gym.dataset")


def task(datasets, **options):
    return make_task("reasoning_gym", {"datasets": datasets, **options})


def test_stages_are_data_sets_with_their_options_in_order():
    made = task(
        {"chain_sum": {"min_terms": 2, "max_terms": 2}, "long": {"dataset": "chain_sum", "min_terms": 5}, "gcd": None}
    )
    assert made.stages == ("chain_sum", "long", "gcd")
    assert not isinstance(made, FiniteTask)
    rng = np.random.default_rng(0)
    terms = {
        stage: {p.prompt.count("+") + p.prompt.count("-") for p in made.sample(rng, stage, 30)} for stage in made.stages
    }
    assert terms["chain_sum"] == {1} and min(terms["long"]) >= 4
    assert task(["gcd", "chain_sum"]).stages == ("gcd", "chain_sum")


def test_training_and_heldout_problems_never_share_a_key():
    # About 1,800 different questions, so that both sides are drawn many times over.
    made = task({"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}, heldout_fraction=0.3)
    rng = np.random.default_rng(0)
    train = {p.key for p in made.sample(rng, "chain_sum", 2000)}
    heldout = {p.key for p in made.heldout("chain_sum", 10**6)}
    assert not train & heldout
    assert not train & {p.key for p in made.sample(rng, "chain_sum", 500, "heldout")}
    assert len(heldout) > 20 and 0.15 < len(heldout) / len(train | heldout) < 0.45


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_sampling_is_decided_by_the_generator(split):
    made, other = task(["leg_counting", "gcd"]), task(["leg_counting", "gcd"], seed=5)
    first = made.sample(np.random.default_rng(3), "gcd", 20, split)
    assert len(first) == 20
    assert first == other.sample(np.random.default_rng(3), "gcd", 20, split)
    assert first != made.sample(np.random.default_rng(4), "gcd", 20, split)


def test_heldout_problems_are_distinct_and_the_first_are_the_same_at_every_call():
    made = task(["gcd"])
    few, many = made.heldout("gcd", 5), made.heldout("gcd", 40)
    assert many[:5] == few == task(["gcd"]).heldout("gcd", 5)
    assert len({p.key for p in many}) == 40
    assert task(["gcd"], seed=1).heldout("gcd", 5) != few


def test_the_problems_are_the_same_in_another_process():
    code = (
        "import numpy as np; from grpo_jax.data import make_task; t = make_task('reasoning_gym', {'datasets': ['maze']});"
        "print([p.key for p in (*t.heldout('maze', 3), *t.sample(np.random.default_rng(1), 'maze', 3))])"
    )
    made = task(["maze"])
    keys = [p.key for p in (*made.heldout("maze", 3), *made.sample(np.random.default_rng(1), "maze", 3))]
    environment = os.environ | {"PYTHONHASHSEED": "17"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip().splitlines()[-1] == str(keys)


def test_a_generator_without_enough_questions_ends_and_says_so():
    narrow = {"gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 2}}
    made = task(narrow)
    sides = {"train": False, "heldout": False}
    for side in sides:
        try:
            made.sample(np.random.default_rng(0), "gcd", 2, side)
            sides[side] = True
        except ValueError as error:
            assert f"datasets['gcd'] gave no {side} problem in" in str(error)
    assert sorted(sides.values()) == [False, True]
    assert len(made.heldout("gcd", 3)) == (1 if sides["heldout"] else 0)


@pytest.mark.parametrize("name", ["arc_1d", "arc_agi", "codeio", "graph_color", "knights_knaves", "quantum_lock"])
def test_an_entry_comes_through_json_without_loss(name):
    import reasoning_gym

    entry = reasoning_gym.create_dataset(name, seed=5, size=1)[0]
    written = json.dumps(encode(entry, name))
    back = decode(json.loads(written))
    assert back == entry
    assert repr(back).replace("np.str_(", "").replace(")", "") == repr(entry).replace("np.str_(", "").replace(")", "")


def test_a_type_that_json_cannot_have_is_refused_by_name():
    assert encode(np.int64(3), "x") == 3 and encode(np.float64(0.5), "x") == 0.5
    with pytest.raises(ValueError, match="an entry of maze holds a set"):
        encode({"a": {1, 2}}, "maze")


def test_a_puzzle_of_many_answers_has_no_reference_and_cannot_be_demonstrated():
    made = task(["gcd", "graph_color"])
    rng = np.random.default_rng(0)
    (many,) = made.sample(rng, "graph_color", 1)
    assert many.answer == ""
    with pytest.raises(ValueError, match=r"datasets\['graph_color'\] names no answer to imitate"):
        made.demonstration(many, rng)
    (one,) = made.sample(rng, "gcd", 1)
    assert made.demonstration(one, rng) == f"<think></think><answer>{one.answer}</answer>"


def test_entries_with_an_empty_answer_are_left_out():
    @dataclasses.dataclass
    class Config:
        seed: int = 0
        size: int = 10

    class Blanks(gym_dataset.ProceduralDataset):
        def __init__(self, config):
            super().__init__(config, seed=config.seed, size=config.size)

        def __getitem__(self, index):
            return {"question": f"{self.seed + index}?", "answer": " " if index % 2 else "yes", "metadata": {}}

    gym_factory.register_dataset("blanks", Blanks, Config)
    try:
        made = task(["blanks"])
        drawn = [*made.sample(np.random.default_rng(0), "blanks", 50), *made.heldout("blanks", 20)]
        assert len(drawn) == 70 and all(problem.answer == "yes" for problem in drawn)
    finally:
        del gym_factory.DATASETS["blanks"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": []}, "datasets is"),
        ({"datasets": "gcd"}, "datasets is 'gcd'"),
        ({"datasets": ["gcd", "gcd"]}, "must name each once"),
        ({"datasets": ["gcds"]}, r"datasets\['gcds'\] is of 'gcds', but it must be of one of .*'gcd'"),
        ({"datasets": ["composite"]}, "Stages take the place of composite"),
        ({"datasets": {"gcd": {"seed": 3}}}, r"datasets\['gcd'\] has \['seed'\]"),
        ({"datasets": {"gcd": {"size": 3}}}, r"datasets\['gcd'\] has \['size'\]"),
        ({"datasets": {"gcd": {"max_numbr": 3}}}, r"datasets\['gcd'\]: gcd refuses its options .*max_numbr"),
        ({"datasets": {"gcd": {"min_numbers": -3}}}, r"datasets\['gcd'\]: gcd refuses its options"),
        ({"datasets": ["gcd"], "heldout_fraction": 1.0}, "heldout_fraction"),
        ({"datasets": ["gcd"], "seed": -1}, "seed is -1"),
    ],
)
def test_impossible_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        make_task("reasoning_gym", options)


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="unknown stage 'algebra'"):
        task(["gcd"]).heldout("algebra", 1)
    with pytest.raises(ValueError, match="unknown stage 'algebra'"):
        task(["gcd"]).sample(np.random.default_rng(0), "algebra", 1)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"pip install 'grpo_jax\[gym\]'"):
        task(["gcd"])
