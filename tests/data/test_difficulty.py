"""Mode difficulty: draws follow 4 p (1 − p), nothing starves, and the state alone decides what comes next."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import (
    CurriculumConfig,
    JsonlTask,
    Problem,
    initial_state,
    observe,
    sample_problems,
    stage_weights,
)

CONFIG = CurriculumConfig(mode="difficulty")
GROUP = 8


def problem(stage, key):
    return Problem(prompt=key, answer="0", stage=stage, key=key)


def finite(sizes):
    train = [problem(stage, f"{stage}{i}") for stage, size in sizes.items() for i in range(size)]
    return JsonlTask(train, [problem(stage, f"{stage}h") for stage in sizes], source="test")


class Endless:
    """A generated task that never gives a problem twice."""

    stages = ("one", "two", "three")

    def sample(self, rng, stage, n, split="train"):
        return [problem(stage, f"{stage}{rng.integers(2**40)}") for _ in range(n)]

    def heldout(self, stage, n):
        return []

    def demonstration(self, problem, rng):
        return ""


def judged(problems, rate, step):
    """Mean accuracy of groups of a policy that gets each problem right with probability rate(problem)."""
    rng = np.random.default_rng([77, step])
    return rng.binomial(GROUP, [rate(p) for p in problems]) / GROUP


def train(task, config, rate, steps, n, *, state=None, start=0, seed=3, refill=0):
    """(problems of each step, state behind the last) of the draw, judge, observe loop; `refill` more a step, judged too."""
    state = initial_state(task.stages) if state is None else state
    drawn = []
    for step in range(start, steps):
        problems = sample_problems(task, config, state, seed, step, n)
        extra = sample_problems(task, config, state, seed + 1000, step, n)[:refill]
        drawn.append(problems)
        accuracy = judged(problems + extra, rate, step)
        state = observe(task, config, state, problems + extra, accuracy, (step + 1) * n, seed)
    return drawn, state


def known(task, averages=None, problems=None, **change):
    """A state in which these averages have been observed."""
    state = initial_state(task.stages)
    places = dict.fromkeys(task.stages, 0)
    return {**state, "difficulty": {"stages": averages or {}, "problems": problems or {}, "places": places}, **change}


def weight(p, floor=0.1):
    return max(floor, 4 * p * (1 - p))


def within_binomial(count, draws, share):
    """Less than 4.5 standard deviations off: a false alarm once in 150 000."""
    return abs(count - draws * share) < 4.5 * math.sqrt(draws * share * (1 - share))


# Stages


@pytest.mark.parametrize("floor", [None, 0.02, 0.5])
def test_a_stage_has_the_share_of_its_signal_but_at_least_the_floors_and_an_unseen_one_counts_as_a_half(floor):
    task = finite(dict.fromkeys("abcde", 50))
    config = CurriculumConfig(mode="difficulty", floor=floor)
    averages = {"a": 0.5, "b": 0.9, "c": 1.0, "d": 0.0}
    raw = {stage: weight(averages.get(stage, 0.5), floor or 0.1) for stage in task.stages}
    shares = {stage: value / sum(raw.values()) for stage, value in raw.items()}
    assert stage_weights(config, known(task, averages)) == pytest.approx(shares)
    counts: Counter[str] = Counter()
    for step in range(400):
        state = known(task, averages, since=step * 8)
        counts.update(p.stage for p in sample_problems(task, config, state, 0, step, 8))
    for stage, share in shares.items():
        assert within_binomial(counts[stage], 3200, share), (stage, counts[stage] / 3200, share)


def test_stages_of_a_generated_task_move_with_the_policy_and_no_problem_is_remembered():
    solved = {"one": 1.0, "two": 0.5, "three": 0.0}
    drawn, state = train(Endless(), CONFIG, lambda p: solved[p.stage], 60, 16)
    counts = Counter(p.stage for batch in drawn[10:] for p in batch)
    assert counts["two"] > 8 * counts["one"] > 0 and counts["two"] > 8 * counts["three"] > 0
    assert state["difficulty"]["problems"] == {} and state["difficulty"]["places"] == {}
    keys = [p.key for batch in drawn for p in batch]
    assert len(set(keys)) == len(keys)


# Problems


def test_a_problem_is_taken_in_the_share_of_epochs_that_its_signal_says():
    task = finite({"a": 40})
    rates = {f"a{i}": (0.5, 0.9, 1.0, 0.0)[i // 10] for i in range(30)}  # the last ten were never seen
    state = known(task, problems=rates)
    taken = sample_problems(task, CONFIG, state, 5, 0, 4000)
    # What was drawn is counted off the epochs, not learnt from: the averages stay as they are.
    places = observe(task, CONFIG, state, [], [], 4000, 5)["difficulty"]["places"]["a"]
    epochs = places / 40
    assert 150 < epochs < 180
    counts = Counter(int(p.key[1:]) // 10 for p in taken)
    assert abs(counts[0] - 10 * epochs) <= 10 and abs(counts[3] - 10 * epochs) <= 10
    assert within_binomial(counts[1], round(10 * epochs), 0.36)
    assert within_binomial(counts[2], round(10 * epochs), 0.1)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 15), n=st.integers(1, 9), seed=st.integers(0, 4))
def test_an_epoch_offers_every_problem_once(size, n, seed):
    task = finite({"a": size})
    state = initial_state(task.stages)
    epochs: dict[int, list[str]] = {}
    for step in range(12):
        before = state.get("difficulty", {}).get("places", {"a": 0})["a"]
        problems = sample_problems(task, CONFIG, state, seed, step, n)
        state = observe(task, CONFIG, state, problems, judged(problems, lambda p: 0.5, step), (step + 1) * n, seed)
        after = state["difficulty"]["places"]["a"]
        assert after - before >= n
        if before // size == (after - 1) // size:
            epochs.setdefault(before // size, []).extend(p.key for p in problems)
    assert state["difficulty"]["places"]["a"] >= 12 * n == state["drawn"]["a"]
    for keys in epochs.values():
        assert len(set(keys)) == len(keys)


def test_in_the_first_epoch_every_problem_is_taken():
    task = finite({"a": 60})
    drawn, _ = train(task, CONFIG, lambda p: 1.0, 10, 6)
    assert len({p.key for batch in drawn for p in batch}) == 60


def test_solved_and_hopeless_problems_are_rarely_drawn_but_never_starve():
    task = finite({"a": 60})
    rates = {f"a{i}": (0.5, 1.0, 0.0)[i % 3] for i in range(60)}
    drawn, _ = train(task, CONFIG, lambda p: rates[p.key], 130, 20)
    late = Counter(p.key for batch in drawn[6:] for p in batch)
    by_rate = {rate: [late[key] for key in rates if rates[key] == rate] for rate in (0.0, 0.5, 1.0)}
    assert min(by_rate[0.0]) > 0 and min(by_rate[1.0]) > 0
    assert np.mean(by_rate[0.5]) > 7 * np.mean(by_rate[0.0])
    assert np.mean(by_rate[0.5]) > 7 * np.mean(by_rate[1.0])


def test_a_problem_that_was_hopeless_comes_back_when_the_policy_can_solve_it_at_times():
    task = finite({"a": 30})
    _, state = train(task, CONFIG, lambda p: 0.0, 30, 10)
    assert set(state["difficulty"]["problems"].values()) == {0.0}
    _, state = train(task, CONFIG, lambda p: 0.5, 130, 10, state=state, start=30)
    assert min(state["difficulty"]["problems"].values()) > 0.2


def test_sampling_ends_where_everything_is_solved_and_the_floor_is_the_least():
    task = finite({"a": 1})
    config = CurriculumConfig(mode="difficulty", floor=0.01)
    _, state = train(task, config, lambda p: 1.0, 9, 2)
    assert state["drawn"] == {"a": 18}
    assert state["difficulty"]["places"]["a"] > 400


# Averages


def test_averages_are_what_their_definition_says():
    task = finite({"a": 2, "b": 1})
    a0, a1, b = problem("a", "a0"), problem("a", "a1"), problem("b", "b0")
    config = CurriculumConfig(mode="difficulty", smoothing=0.6)
    state = observe(task, config, initial_state(task.stages), [a0, a1, b], [0.5, 1.0, math.nan], 3, 0)
    assert state["difficulty"]["stages"] == {"a": 0.75}
    assert state["difficulty"]["problems"] == {"a0": 0.5, "a1": 1.0}
    state = observe(task, config, state, [a0, a0, b], [1.0, 0.0, 0.25], 6, 0)
    assert state["difficulty"]["stages"] == pytest.approx({"a": 0.6 * 0.75 + 0.4 * 0.5, "b": 0.25})
    assert state["difficulty"]["problems"] == pytest.approx({"a0": 0.6 * (0.6 * 0.5 + 0.4), "a1": 1.0, "b0": 0.25})


def test_the_null_options_are_their_documented_numbers():
    given = CurriculumConfig(mode="difficulty", floor=0.1, smoothing=0.7)
    task = finite({"a": 20, "b": 9})
    assert train(task, CONFIG, lambda p: 0.2, 12, 7) == train(task, given, lambda p: 0.2, 12, 7)


@pytest.mark.parametrize("option", [{"floor": 0.6}, {"smoothing": 0.0}])
def test_each_option_changes_what_is_drawn(option):
    task = finite({"a": 40, "b": 40})

    def rate(p):
        return 0.95 if p.stage == "a" else 0.3

    other = CurriculumConfig(mode="difficulty", **option)
    assert train(task, CONFIG, rate, 20, 10)[0] != train(task, other, rate, 20, 10)[0]


def test_the_seed_changes_what_is_drawn():
    task = finite({"a": 40, "b": 40})
    assert train(task, CONFIG, lambda p: 0.3, 9, 10)[0] != train(task, CONFIG, lambda p: 0.3, 9, 10, seed=4)[0]


# The state


def rugged(p):
    """Rates that differ from problem to problem."""
    return (int(p.key[1:]) * 37 % 11) / 10


@pytest.mark.parametrize("stop", [1, 2, 7, 19])
def test_a_run_resumed_from_its_json_draws_what_it_would_have_drawn(stop):
    task = finite({"a": 23, "b": 9, "c": 40})
    drawn, state = train(task, CONFIG, rugged, 20, 7, refill=3)
    first, middle = train(task, CONFIG, rugged, stop, 7, refill=3)
    again = json.loads(json.dumps(middle))
    assert again == middle
    rest, end = train(task, CONFIG, rugged, 20, 7, state=again, start=stop, refill=3)
    assert first + rest == drawn
    assert json.dumps(end) == json.dumps(state)


def test_observing_leaves_the_state_it_was_given_as_it_was():
    task = finite({"a": 23, "b": 9})
    _, state = train(task, CONFIG, rugged, 5, 7)
    before = json.dumps(state)
    train(task, CONFIG, rugged, 9, 7, state=state, start=5)
    assert json.dumps(state) == before


def test_before_anything_is_observed_it_is_the_mixed_mode_with_equal_shares():
    for task in (finite({"a": 7, "b": 12}), Endless()):
        state = initial_state(task.stages)
        for step in range(9):
            mixed = sample_problems(task, CurriculumConfig(), state, 3, step, 6)
            assert sample_problems(task, CONFIG, state, 3, step, 6) == mixed


def test_steps_that_were_not_observed_go_on_through_the_epochs():
    task = finite({"a": 23, "b": 9})
    _, state = train(task, CONFIG, rugged, 6, 8)
    two = sample_problems(task, CONFIG, state, 3, 6, 8) + sample_problems(task, CONFIG, state, 3, 7, 8)
    assert two == sample_problems(task, CONFIG, state, 3, 3, 16)
    after = observe(task, CONFIG, state, [], [], 64, 3)
    assert after["drawn"] == {stage: state["drawn"][stage] + sum(p.stage == stage for p in two) for stage in task.stages}
    assert after["since"] == 64 and after["difficulty"]["problems"] == state["difficulty"]["problems"]


def test_whether_a_problem_is_taken_depends_on_its_place_and_not_on_where_the_state_begins():
    task = finite({"a": 23})
    state = known(task, problems={f"a{i}": i / 22 for i in range(23)})
    whole = sample_problems(task, CONFIG, state, 3, 0, 60)
    parts = []
    for step in range(12):
        parts += sample_problems(task, CONFIG, state, 3, step, 5)
        state = observe(task, CONFIG, state, [], [], (step + 1) * 5, 3)
    assert parts == whole


def test_problems_of_other_seeds_are_learnt_from_but_use_nothing_up():
    task = finite({"a": 23, "b": 9})
    _, state = train(task, CONFIG, rugged, 6, 8)
    problems = sample_problems(task, CONFIG, state, 3, 6, 8)
    extra = sample_problems(task, CONFIG, state, 99, 6, 8)
    assert extra != problems
    alone = observe(task, CONFIG, state, problems, [0.5] * 8, 56, 3)
    both = observe(task, CONFIG, state, problems + extra, [0.5] * 8 + [0.9] * 8, 56, 3)
    assert both["difficulty"]["places"] == alone["difficulty"]["places"]
    assert (both["since"], both["drawn"]) == (alone["since"], alone["drawn"])
    assert all(both["difficulty"]["problems"][p.key] != state["difficulty"]["problems"].get(p.key) for p in extra)


def test_drawn_counts_the_problems_that_came_from_each_stage():
    task = finite({"a": 23, "b": 9, "c": 40})
    drawn, state = train(task, CONFIG, rugged, 30, 7)
    assert state["drawn"] == Counter(p.stage for batch in drawn for p in batch)
    assert state["since"] == 210


def test_the_state_holds_no_more_problems_than_the_task():
    task = finite({"a": 5, "b": 9})
    _, state = train(task, CONFIG, rugged, 60, 7)
    assert len(state["difficulty"]["problems"]) == 14


def test_what_cannot_be_observed_is_refused():
    task = finite({"a": 5})
    _, state = train(task, CONFIG, rugged, 2, 4)
    one = [problem("a", "a0")]
    with pytest.raises(ValueError, match="accuracy has 2 numbers for 1 problems"):
        observe(task, CONFIG, state, one, [0.0, 1.0], 12, 3)
    for value in (1.5, -0.1, math.inf):
        with pytest.raises(ValueError, match=f"accuracy is {value}, but"):
            observe(task, CONFIG, state, one, [value], 12, 3)
    with pytest.raises(ValueError, match="draws is 4, but the state begins at draw 8"):
        observe(task, CONFIG, state, one, [1.0], 4, 3)
    with pytest.raises(ValueError, match="the state begins at draw 8"):
        sample_problems(task, CONFIG, state, 3, 1, 4)


# What it is for


@pytest.mark.parametrize("sizes", [{"a": 200}, {"a": 80, "b": 120}])
def test_it_makes_half_as_many_live_groups_again_where_most_problems_teach_nothing(sizes):
    task = finite(sizes)

    def rate(p):
        return (1.0, 0.0, 0.998, 0.002, 1.0, 0.0, 0.0, 0.5, 0.3, 0.7)[int(p.key[1:]) % 10]

    live = {}
    for mode in ("mixed", "difficulty"):
        drawn, _ = train(task, CurriculumConfig(mode=mode), rate, 75, 16)
        accuracy = np.concatenate([judged(problems, rate, step) for step, problems in enumerate(drawn)])
        live[mode] = np.mean((accuracy > 0) & (accuracy < 1))
    # Six times as many draws as problems; in the first epoch, where nothing is known, the two are alike.
    assert 0.25 < live["mixed"] < 0.35
    assert live["difficulty"] > 1.5 * live["mixed"], live
