"""The replay buffer keeps the newest groups, gives each of them once, and none that has become too old."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_rows import COMPONENTS, GROUP, WIDTH, random_rows

from grpo_jax.checkpoint import RunCheckpoints
from grpo_jax.parallel import place, to_host
from grpo_jax.training.replay import add_groups, empty_buffer, stored_groups, take_groups
from grpo_jax.training.rows import Rows


def buffer(groups: int = 3) -> Rows:
    return empty_buffer(groups, GROUP, WIDTH, COMPONENTS)


def filled(*versions: int, groups: int = 3) -> Rows:
    """A buffer to which one group of each of these versions was added, in this order."""
    rows = buffer(groups)
    for version in versions:
        rows = add_groups(rows, random_rows(version, groups=1, version=version), GROUP)
    return rows


def versions(rows: Rows | None) -> list[int]:
    return [] if rows is None else rows.version[::GROUP].tolist()


def assert_same(one: Rows, other: Rows) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_what_is_added_comes_back_whole() -> None:
    taken, rest = take_groups(filled(4), 1, GROUP, updates=5, max_staleness=None)
    assert taken is not None
    assert_same(taken, random_rows(4, groups=1, version=4))
    assert stored_groups(rest, GROUP) == 0
    assert_same(rest, buffer())


def test_the_oldest_make_room_for_the_newest() -> None:
    full = filled(1, 2, 3)
    assert stored_groups(full, GROUP) == 3
    fuller = add_groups(full, random_rows(9, groups=2, version=9), GROUP)
    assert stored_groups(fuller, GROUP) == 3 and fuller.version.size == full.version.size
    taken, _ = take_groups(fuller, 3, GROUP, updates=9, max_staleness=None)
    assert versions(taken) == [9, 9, 3]


def test_more_groups_than_fit_are_cut_to_the_capacity() -> None:
    assert stored_groups(add_groups(buffer(2), random_rows(1, groups=5, version=1), GROUP), GROUP) == 2


def test_each_group_is_given_once_and_the_newest_first() -> None:
    rest = filled(1, 2, 3)
    given = []
    for _ in range(5):
        taken, rest = take_groups(rest, 1, GROUP, updates=3, max_staleness=None)
        given += versions(taken)
    assert given == [3, 2, 1] and stored_groups(rest, GROUP) == 0


@pytest.mark.parametrize(
    ("bound", "expected"), [(None, [5, 3, 1]), (4, [5, 3, 1]), (3, [5, 3]), (2, [5, 3]), (1, [5]), (0, [5])]
)
def test_groups_beyond_the_bound_are_neither_given_nor_kept(bound: int | None, expected: list[int]) -> None:
    stored = filled(1, 3, 5)
    taken, rest = take_groups(stored, 3, GROUP, updates=5, max_staleness=bound)
    assert versions(taken) == expected and stored_groups(rest, GROUP) == 0
    nothing, rest = take_groups(stored, 0, GROUP, updates=5, max_staleness=bound)
    assert nothing is None and stored_groups(rest, GROUP) == len(expected)


def test_an_empty_buffer_gives_nothing() -> None:
    taken, rest = take_groups(buffer(), 2, GROUP, updates=0, max_staleness=None)
    assert taken is None
    assert_same(rest, buffer())


def test_taking_and_adding_leave_the_old_buffer_alone() -> None:
    stored = filled(1, 2)
    copy = jax.tree.map(np.copy, stored)
    take_groups(stored, 2, GROUP, updates=9, max_staleness=7)
    add_groups(stored, random_rows(7, groups=2, version=7), GROUP)
    assert_same(stored, copy)


def test_shapes_and_dtypes_never_change() -> None:
    """A checkpoint holds the buffer as arrays of fixed shape."""
    described = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), buffer())
    taken, rest = take_groups(filled(1, 2), 1, GROUP, updates=2, max_staleness=None)
    assert taken is not None
    for rows in (filled(1, 2), rest, add_groups(rest, taken, GROUP)):
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), rows) == described


def test_a_buffer_survives_a_checkpoint(tmp_path: Path) -> None:
    stored = filled(1, 2)
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), stored)
    with RunCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"replay": jax.tree.map(lambda leaf: place(leaf, None), stored)}, {})
        checkpoints.wait()
        restored = to_host(checkpoints.restore({"replay": abstract}).state["replay"])
    assert isinstance(restored, Rows)
    assert_same(restored, stored)
    taken, _ = take_groups(restored, 2, GROUP, updates=2, max_staleness=None)
    assert versions(taken) == [2, 1]
