"""completion_mask: the mask comes from lengths and nothing else."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.objectives import completion_mask
from tests.oracles import objectives as oracle


@settings(max_examples=25, deadline=None, derandomize=True)
@given(rows=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=3))
def test_the_mask_covers_the_completion_and_nothing_else(rows):
    prompts = np.array([prompt for prompt, _ in rows])
    lengths = np.minimum(np.array([prompt + completion for prompt, completion in rows]), 8)
    mask = completion_mask(prompts, lengths, 8)
    np.testing.assert_array_equal(mask, oracle.completion_mask(prompts, lengths, 8))


def test_the_last_token_of_a_completion_counts_and_the_first_of_a_row_never_does():
    mask = completion_mask(np.array([2, 0, 4]), np.array([5, 3, 4]), 6)
    np.testing.assert_array_equal(
        mask, [[False, False, True, True, True, False], [False, True, True, False, False, False], [False] * 6]
    )
