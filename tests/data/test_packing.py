"""Packing: every demonstration whole, in one place, and little of the rows unused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import pack_demonstrations

WIDTH = 12
demonstrations = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12)


def test_hand_packed_rows():
    packed = pack_demonstrations([[1, 2], [3], [4]], [[5, 6], [7], [8, 9]], 6, pad_id=0)
    np.testing.assert_array_equal(packed.tokens, [[1, 2, 5, 6, 3, 7], [4, 8, 9, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(packed.segments, [[1, 1, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0], [0] * 6])
    np.testing.assert_array_equal(packed.completion_mask, [[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0], [0] * 6])


@given(demonstrations)
@settings(max_examples=100, deadline=None)
def test_every_demonstration_stands_whole_in_one_segment(sizes):
    numbers = iter(range(1, 1000))
    prompts = [[next(numbers) for _ in range(prompt)] for prompt, _ in sizes]
    completions = [[next(numbers) for _ in range(completion)] for _, completion in sizes]
    packed = pack_demonstrations(prompts, completions, WIDTH, pad_id=0)
    found = []
    for tokens, segments, mask in zip(packed.tokens, packed.segments, packed.completion_mask, strict=True):
        used = int((segments > 0).sum())
        # Numbered from 1 without a gap, from the first column on, with nothing but padding after them.
        assert sorted(set(segments[:used])) == list(range(1, segments.max() + 1)) and np.all(np.diff(segments[:used]) >= 0)
        assert not segments[used:].any() and not tokens[used:].any() and not mask[used:].any()
        for number in range(1, segments.max() + 1):
            here = segments == number
            found.append((tokens[here & ~mask].tolist(), tokens[here & mask].tolist()))
    assert sorted(found) == sorted(zip(prompts, completions, strict=True))
    # Best fit: no two rows that are used could have been one.
    used = np.sort((packed.segments > 0).sum(axis=1))
    used = used[used > 0]
    assert len(used) < 2 or used[0] + used[1] > WIDTH


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="row 0 has none"):
        pack_demonstrations([[]], [[1]], 2, pad_id=0)
    with pytest.raises(ValueError, match="row 1 has 3 tokens, but a row holds 2"):
        pack_demonstrations([[1], [1]], [[1], [2, 3]], 2, pad_id=0)
    with pytest.raises(ValueError, match="at least one row"):
        pack_demonstrations([], [], 2, pad_id=0)
