"""Rows to arrays: nothing on the left, nothing cut off."""

import numpy as np
import pytest

from grpo_jax.data import pad_rows


def test_rows_start_at_the_first_column_and_lengths_say_where_they_end():
    tokens, lengths = pad_rows([[5, 6, 7], [8]], 4, pad_id=9)
    np.testing.assert_array_equal(tokens, [[5, 6, 7, 9], [8, 9, 9, 9]])
    np.testing.assert_array_equal(lengths, [3, 1])
    assert tokens.dtype == lengths.dtype == np.int32


def test_lengths_count_tokens_that_equal_the_pad_id():
    _, lengths = pad_rows([[9, 9]], 4, pad_id=9)
    assert lengths.tolist() == [2]


def test_a_row_longer_than_the_width_is_refused_with_its_length():
    with pytest.raises(ValueError, match="row 1 has 3 tokens, but a row holds 2"):
        pad_rows([[1], [1, 2, 3]], 2, pad_id=0)


def test_rows_without_tokens_and_batches_without_rows_are_refused():
    with pytest.raises(ValueError, match="row 1 has none"):
        pad_rows([[1], []], 2, pad_id=0)
    with pytest.raises(ValueError, match="at least one row"):
        pad_rows([], 2, pad_id=0)
