"""The curriculum: shares, epochs, and that a problem depends on its draw alone."""

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
        ({"mode": "random"}, r"mode is one of \['mixed', 'sequential'\]; got 'random'"),
        ({"mode": "sequential", "advance_at": 0.0}, "advance_at"),
        ({"mode": "sequential", "replay": 1.0}, "replay"),
        ({"replay": 0.5}, "replay belongs to mode 'sequential'"),
        ({"advance_at": 0.5}, "advance_at belongs to mode 'sequential'"),
        ({"weights": {"one": -1.0}}, "weights"),
        ({"weights": {"one": float("nan")}}, "weights"),
        ({"weights": {"one": 0.0}}, "weights"),
        ({"mode": "sequential", "weights": {"one": 1.0}}, "weights belong to mode 'mixed'"),
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
