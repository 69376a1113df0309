"""Rows keep their groups through every rearrangement, and are dealt to minibatches evenly, once each, and repeatably."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_rows import random_rows

from grpo_jax.objectives import completion_mask
from grpo_jax.training.rows import dealt, join, live_first, rows_of_groups


def test_taking_rows_takes_every_column_alike() -> None:
    rows = random_rows(0, groups=3)
    order = np.array([5, 0, 5, 11])
    taken = rows.take(order)
    for name in rows._fields:
        if name != "components":
            np.testing.assert_array_equal(getattr(taken, name), getattr(rows, name)[order], err_msg=name)
    for name, values in rows.components.items():
        np.testing.assert_array_equal(taken.components[name], values[order])


def test_joining_puts_one_part_after_the_other() -> None:
    first, second = random_rows(0, groups=1), random_rows(1, groups=2)
    both = join([first, second])
    size = first.version.size
    for part, chosen in ((first, np.arange(size)), (second, size + np.arange(second.version.size))):
        np.testing.assert_array_equal(both.take(chosen).tokens, part.tokens)
        np.testing.assert_array_equal(both.take(chosen).components["accuracy"], part.components["accuracy"])
    assert both.version.size == first.version.size + second.version.size


def test_rows_of_groups_are_whole_groups_in_the_order_asked_for() -> None:
    assert rows_of_groups(np.array([2, 0]), 3).tolist() == [6, 7, 8, 0, 1, 2]
    none = rows_of_groups(np.array([], int), 3)
    assert none.size == 0 and random_rows(0, groups=2).take(none).version.size == 0


def test_mask_on_the_host_is_that_of_the_loss() -> None:
    rows = random_rows(3, groups=4)
    # A prompt of no tokens: nothing comes before its first token, so that it has no log-prob to train on.
    rows = rows._replace(prompt_lengths=np.where(np.arange(16) == 0, 0, rows.prompt_lengths))
    expected = np.asarray(completion_mask(rows.prompt_lengths, rows.lengths, rows.tokens.shape[1]))
    assert expected.any() and not expected[:, 0].any()
    np.testing.assert_array_equal(rows.completion_mask, expected)
    np.testing.assert_array_equal(rows.completion_mask.sum(axis=1)[1:], rows.completion_lengths[1:])


@pytest.mark.parametrize("live_rows", [0, 1, 3, 7, 12])
@pytest.mark.parametrize("minibatches", [1, 2, 3, 4])
def test_minibatches_are_a_partition_that_shares_live_rows_evenly(minibatches: int, live_rows: int) -> None:
    live = np.random.default_rng(live_rows).permutation(np.arange(12) < live_rows)
    parts = dealt(live, minibatches, seed=0, step=3, pass_=0)
    assert len(parts) == minibatches and {part.size for part in parts} == {12 // minibatches}
    assert sorted(np.concatenate(parts)) == list(range(12))
    counts = [int(live[part].sum()) for part in parts]
    assert sum(counts) == live_rows and max(counts) - min(counts) <= 1


def test_dealing_repeats_with_its_seed_and_differs_by_seed_step_and_pass() -> None:
    live = np.arange(40) < 30

    def deal(seed: int = 0, step: int = 0, pass_: int = 0) -> list[list[int]]:
        return [part.tolist() for part in dealt(live, 2, seed, step, pass_)]

    assert deal() == deal()
    deals = [deal(), deal(seed=1), deal(step=1), deal(pass_=1)]
    assert all(one != other for i, one in enumerate(deals) for other in deals[i + 1 :])


def test_groups_are_scattered_over_the_minibatches() -> None:
    """A minibatch of whole groups would see no row of the others; rows are dealt singly."""
    first, _ = dealt(np.ones(64, bool), 2, seed=0, step=0, pass_=0)
    assert set(first // 4) > set(range(8)) and set(first) != set(rows_of_groups(np.unique(first // 4), 4))


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_live_rows_fill_the_first_microbatches(microbatches: int) -> None:
    live = np.array([0, 1, 0, 0, 1, 1, 0, 0], bool)
    order = live_first(live, microbatches)
    assert sorted(order) == list(range(8))
    by_microbatch = live[order].reshape(-1, microbatches).T
    assert by_microbatch.reshape(-1).tolist() == [True] * 3 + [False] * 5
