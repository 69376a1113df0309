"""The curriculum: shares, epochs, and that a problem depends on its draw alone."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import (
    CurriculumConfig,
    JsonlTask,
    Problem,
    advance,
    initial_state,
    observe,
    sample_problems,
    stage_weights,
)

STAGES = ("one", "two", "three")


def problem(stage, key):
    return Problem(prompt=key, answer="0", stage=stage, key=key)


class Endless:
    """A generated task: the key shows the numbers that its generator drew."""

    stages = STAGES

    def sample(self, rng, stage, n, split="train"):
        return [problem(stage, f"{stage}{rng.integers(2**40)}") for _ in range(n)]

    def heldout(self, stage, n):
        return []

    def demonstration(self, problem, rng):
        return ""


def finite(sizes):
    train = [problem(stage, f"{stage}{i}") for stage, size in sizes.items() for i in range(size)]
    return JsonlTask(train, [problem(stage, f"{stage}h") for stage in sizes], source="test")


def run(task, config, seed, steps, n, state=None, start=0):
    state = initial_state(task.stages) if state is None else state
    return [sample_problems(task, config, state, seed, step, n) for step in range(start, steps)]


MIXED = CurriculumConfig()
SEQUENTIAL = CurriculumConfig(mode="sequential", advance_at=0.8, replay=0.4)


@pytest.mark.parametrize("task", [Endless(), finite({"one": 7, "two": 5, "three": 11})])
def test_a_step_is_the_same_whether_or_not_the_steps_before_it_were_run(task):
    whole = run(task, MIXED, 3, 9, 6)
    assert run(task, MIXED, 3, 9, 6, start=5) == whole[5:]
    assert run(task, MIXED, 4, 9, 6) != whole


def test_two_steps_of_a_generated_task_draw_different_problems():
    keys = [p.key for batch in run(Endless(), MIXED, 0, 20, 8) for p in batch]
    assert len(set(keys)) == len(keys)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 23), n=st.integers(1, 12), seed=st.integers(0, 5))
def test_every_item_is_used_once_per_epoch(size, n, seed):
    task = finite({"one": size})
    steps = -(-3 * size // n)
    keys = [p.key for batch in run(task, MIXED, seed, steps, n) for p in batch]
    for epoch in range(3):
        assert len(set(keys[epoch * size : (epoch + 1) * size])) == size


def test_epochs_are_shuffled_differently():
    keys = [p.key for batch in run(finite({"one": 30}), MIXED, 0, 2, 30) for p in batch]
    assert keys[:30] != keys[30:]
    assert keys[:30] != sorted(keys[:30])


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 9)] * 3),
    weights=st.tuples(*[st.integers(1, 5)] * 3),
    n=st.integers(1, 9),
)
def test_each_stage_has_its_own_epochs_under_any_weights(sizes, weights, n):
    task = finite(dict(zip(STAGES, sizes, strict=True)))
    config = CurriculumConfig(weights=dict(zip(STAGES, map(float, weights), strict=True)))
    drawn = [p for batch in run(task, config, 1, 12, n) for p in batch]
    for stage, size in zip(STAGES, sizes, strict=True):
        keys = [p.key for p in drawn if p.stage == stage]
        for start in range(0, len(keys) - size + 1, size):
            assert len(set(keys[start : start + size])) == size


def test_mixed_stages_have_equal_shares_in_every_batch():
    stages = tuple("abcde")
    task = finite(dict.fromkeys(stages, 4))
    for batch in run(task, MIXED, 0, 10, 20):
        assert set(Counter(p.stage for p in batch).values()) == {4}


def test_weights_are_shares():
    config = CurriculumConfig(weights={"one": 3.0, "two": 1.0})
    drawn = Counter(p.stage for batch in run(Endless(), config, 0, 5, 8) for p in batch)
    assert drawn == {"one": 30, "two": 10}


def test_a_small_positive_weight_is_not_rounded_away():
    config = CurriculumConfig(weights={"one": 1.0, "two": 1e-9})
    drawn = Counter(p.stage for batch in run(Endless(), config, 0, 3, 1001) for p in batch)
    assert drawn["two"] >= 2


def test_sequential_starts_with_the_first_stage_alone():
    assert {p.stage for batch in run(Endless(), SEQUENTIAL, 0, 5, 8) for p in batch} == {"one"}


def test_an_accuracy_at_the_threshold_advances_and_one_below_it_or_unmeasured_does_not():
    state = initial_state(STAGES)
    assert advance(SEQUENTIAL, state, {"one": 0.8}, 40, 0)["level"] == 1
    for accuracy in ({"one": 0.79}, {"one": float("nan")}, {"two": 1.0}, {}):
        assert advance(SEQUENTIAL, state, accuracy, 40, 0) is state


def test_earlier_stages_share_the_replay_and_later_ones_get_nothing():
    state = advance(SEQUENTIAL, initial_state(STAGES), {"one": 1.0}, 40, 0)
    assert stage_weights(SEQUENTIAL, state) == pytest.approx({"one": 0.4, "two": 0.6, "three": 0.0})
    state = advance(SEQUENTIAL, state, {"two": 1.0}, 80, 0)
    assert stage_weights(SEQUENTIAL, state) == pytest.approx({"one": 0.2, "two": 0.2, "three": 0.6})


def test_the_last_stage_and_mixed_mode_never_advance():
    state = initial_state(("one",))
    assert advance(SEQUENTIAL, state, {"one": 1.0}, 8, 0) is state
    state = initial_state(STAGES)
    assert advance(MIXED, state, {"one": 1.0}, 8, 0) is state


def test_epochs_continue_over_an_advance():
    task = finite({"one": 50, "two": 20, "three": 3})
    config = CurriculumConfig(mode="sequential", replay=0.5)
    state = initial_state(task.stages)
    drawn = [p for batch in run(task, config, 2, 4, 7, state) for p in batch]
    state = advance(config, state, {"one": 1.0}, 28, 2)
    drawn += [p for batch in run(task, config, 2, 9, 7, state, start=4) for p in batch]
    first = [p.key for p in drawn if p.stage == "one"][:50]
    assert len(first) > 40
    assert len(set(first)) == len(first)


def test_the_state_survives_json():
    state = advance(SEQUENTIAL, initial_state(STAGES), {"one": 1.0}, 40, 0)
    again = json.loads(json.dumps(state))
    assert run(Endless(), SEQUENTIAL, 0, 12, 8, again, start=5) == run(Endless(), SEQUENTIAL, 0, 12, 8, state, start=5)


def test_a_state_of_other_stages_is_refused():
    with pytest.raises(ValueError, match="resume with the task"):
        sample_problems(Endless(), MIXED, initial_state(("other",)), 0, 0, 4)


def test_a_step_before_the_state_is_refused():
    state = advance(SEQUENTIAL, initial_state(STAGES), {"one": 1.0}, 40, 0)
    with pytest.raises(ValueError, match="step 4 of 8 problems is draw 32, but the state begins at draw 40"):
        sample_problems(Endless(), SEQUENTIAL, state, 0, 4, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "random"}, "mode is 'random', but it must be one of mixed, sequential, difficulty"),
        ({"mode": "sequential", "advance_at": 0.0}, "advance_at is 0.0, but it must be above 0 and at most 1"),
        ({"mode": "sequential", "advance_at": float("nan")}, "advance_at is nan"),
        ({"mode": "sequential", "replay": 1.0}, "replay is 1.0, but it must be"),
        ({"replay": 0.5}, "replay is 0.5, but the mode mixed has no use for it; leave it null, or choose one of sequential"),
        ({"advance_at": 0.9}, "advance_at is 0.9, but the mode mixed has no use"),
        ({"floor": 0.1}, "floor is 0.1, but the mode mixed has no use for it; leave it null, or choose one of difficulty"),
        ({"mode": "sequential", "smoothing": 0.5}, "smoothing is 0.5, but the mode sequential has no use"),
        ({"mode": "difficulty", "advance_at": 0.5}, "advance_at is 0.5, but the mode difficulty has no use"),
        ({"mode": "difficulty", "replay": 0.0}, "replay is 0.0, but the mode difficulty has no use"),
        ({"mode": "difficulty", "weights": {"one": 1.0}}, "weights is .* leave it empty, or choose one of mixed"),
        ({"mode": "difficulty", "floor": 0.0}, "floor is 0.0, but it must be at least 0.01 and below 1"),
        ({"mode": "difficulty", "floor": 1.0}, "floor is 1.0"),
        ({"mode": "difficulty", "smoothing": 1.0}, "smoothing is 1.0, but it must be 0 or more and below 1"),
        ({"weights": {"one": -1.0}}, "weights"),
        ({"weights": {"one": float("nan")}}, "weights"),
        ({"weights": {"one": 0.0}}, "weights"),
        ({"mode": "sequential", "weights": {"one": 1.0}}, "weights is .*, but the mode sequential has no use"),
    ],
)
def test_impossible_curricula_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        CurriculumConfig(**options)


def test_weights_of_unknown_stages_are_refused():
    with pytest.raises(ValueError, match=r"stages \['four'\] that the task does not have"):
        sample_problems(Endless(), CurriculumConfig(weights={"four": 1.0}), initial_state(STAGES), 0, 0, 4)


def test_shares_are_near_the_weights_in_the_long_run():
    config = CurriculumConfig(weights={"one": 0.2, "two": 0.3, "three": 0.5})
    drawn = Counter(p.stage for batch in run(Endless(), config, 0, 25, 40) for p in batch)
    np.testing.assert_allclose([drawn[s] / 1000 for s in STAGES], [0.2, 0.3, 0.5], atol=0.01)


def test_the_defaults_of_sequential_are_its_documented_ones():
    defaults = CurriculumConfig(mode="sequential")
    given = CurriculumConfig(mode="sequential", advance_at=0.9, replay=0.25)
    state = advance(given, initial_state(STAGES), {"one": 0.9}, 40, 0)
    assert advance(defaults, initial_state(STAGES), {"one": 0.9}, 40, 0) == state
    assert advance(defaults, initial_state(STAGES), {"one": 0.89}, 40, 0)["level"] == 0
    assert stage_weights(defaults, state) == stage_weights(given, state) == {"one": 0.25, "two": 0.75, "three": 0.0}


@pytest.mark.parametrize("config", [MIXED, SEQUENTIAL])
def test_modes_without_a_use_for_the_training_accuracy_keep_their_state(config):
    state = initial_state(STAGES)
    problems = sample_problems(Endless(), config, state, 0, 0, 4)
    assert observe(Endless(), config, state, problems, [1.0] * 4, 4, 0) is state


RECORDED = {
    ("equal", "endless"): ["dbd5eae462881f7f", "23b4a36d0731983e", "8dae206f9f6a30c7"],
    ("equal", "finite"): ["99918236cd6768ef", "623465823b4a96a4", "5a06e2c907c63668"],
    ("weights", "endless"): ["18a09ae64d025333", "791efc459a9a8aab", "6e4bd3cdd2e4adb5"],
    ("weights", "finite"): ["378e65720bc62c82", "ddff32b4bf19a6d4", "bacf6d4d895a17d3"],
    ("sequential", "endless"): ["1baf6d761d924982", "93140b8c0a4e3ce5", "e4afade3062e56aa"],
    ("sequential", "finite"): ["d9c8c354d428402f", "f2754e5345eb8d8d", "d7592c2e107a73dd"],
    ("replay", "endless"): ["0be4411eb6c21506", "4cfc4f943f314073", "78eb67adc7d65d1c"],
    ("replay", "finite"): ["2b84760dffca712f", "a0905e68e11abef6", "d488e6e251c0bbd7"],
}
"""First digits of the sha256 of what 30 steps draw with seeds 0, 1 and 7, and of the state behind them."""


@pytest.mark.parametrize(("name", "kind"), RECORDED)
def test_the_draws_of_a_seed_stay_what_they_are_so_that_old_runs_can_be_resumed(name, kind):
    config = {
        "equal": MIXED,
        "weights": CurriculumConfig(weights={"one": 0.2, "three": 0.77}),
        "sequential": CurriculumConfig(mode="sequential"),
        "replay": SEQUENTIAL,
    }[name]
    task = Endless() if kind == "endless" else finite({"one": 7, "two": 5, "three": 11})
    digests = []
    for seed in (0, 1, 7):
        state, keys = initial_state(STAGES), []
        for step in range(30):
            if step in (9, 17):
                state = advance(config, state, dict.fromkeys(STAGES, 1.0), step * 7, seed)
            keys.append([p.key for p in sample_problems(task, config, state, seed, step, 7)])
        digests.append(hashlib.sha256(json.dumps([keys, state]).encode()).hexdigest()[:16])
    assert digests == RECORDED[name, kind]
