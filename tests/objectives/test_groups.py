"""row_weights: which rows of a rollout are trained on."""

from typing import get_args, get_type_hints

import numpy as np
import pytest

from grpo_jax.objectives import GroupsConfig, row_weights
from grpo_jax.objectives.groups import DEAD_GROUPS

LIVE = np.array([True, True, False, False, True])
TRUNCATED = np.array([False, True, True, False, False])


@pytest.mark.parametrize("dead", DEAD_GROUPS)
@pytest.mark.parametrize("mask_truncated", [False, True])
def test_rows_count_unless_their_group_is_dead_or_they_were_cut_off(dead, mask_truncated):
    expected = {
        ("keep", False): [1, 1, 1, 1, 1],
        ("keep", True): [1, 0, 0, 1, 1],
        ("drop", False): [1, 1, 0, 0, 1],
        ("drop", True): [1, 0, 0, 0, 1],
    }
    found = row_weights(GroupsConfig(dead=dead, mask_truncated=mask_truncated), LIVE, TRUNCATED)
    np.testing.assert_array_equal(found, expected["keep" if dead == "keep" else "drop", mask_truncated])
    assert found.dtype == np.float32


def test_truncated_rows_must_be_told_to_be_left_out():
    with pytest.raises(ValueError, match="truncated is None, but mask_truncated is True"):
        row_weights(GroupsConfig(mask_truncated=True), LIVE)
    # They count where nothing is asked of them, told or not.
    np.testing.assert_array_equal(row_weights(GroupsConfig(), LIVE), 1.0)
    np.testing.assert_array_equal(row_weights(GroupsConfig(), LIVE, TRUNCATED), 1.0)


def test_weights_are_a_new_array():
    live = np.ones(3, np.float32)
    row_weights(GroupsConfig(dead="drop", mask_truncated=True), live, np.ones(3, bool))
    np.testing.assert_array_equal(live, 1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dead": "ignore"}, "dead is 'ignore', but it must be one of keep, drop, refill, replay"),
        ({"max_refills": 2}, "max_refills is 2, but it belongs to dead refill and dead is keep"),
        ({"dead": "replay", "max_refills": 2}, "max_refills is 2, but it belongs to dead refill and dead is replay"),
        ({"dead": "refill", "replay_groups": 8}, "replay_groups is 8, but it belongs to dead replay and dead is refill"),
        ({"dead": "refill", "max_refills": 0}, "max_refills is 0, but it must be at least 1"),
        ({"dead": "replay", "replay_groups": 0}, "replay_groups is 0, but it must be at least 1"),
    ],
)
def test_an_impossible_field_is_named_with_its_value(fields, message):
    with pytest.raises(ValueError) as refusal:
        GroupsConfig(**fields)
    assert str(refusal.value).startswith(message)


def test_the_types_allow_what_is_known():
    assert get_args(get_type_hints(GroupsConfig)["dead"]) == DEAD_GROUPS
