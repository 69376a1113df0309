"""Packed rows: a sequence's hidden states do not depend on what shares its row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.model import hidden_states
from grpo_jax.model.segments import segment_positions
from tests.model import cases

SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [0] * 10])


def test_positions_count_from_the_start_of_each_segment():
    expected = [[0, 1, 2, 0, 1, 2, 3, 0, 0, 1], list(range(10)), list(range(10))]
    np.testing.assert_array_equal(segment_positions(jnp.asarray(SEGMENTS)), expected)


@pytest.mark.parametrize("name", ["mla_yarn", "gqa"])
def test_a_packed_sequence_has_the_hidden_states_it_has_alone(name):
    config, params = cases.CONFIGS[name], cases.weights(cases.CONFIGS[name])
    alone = cases.tokens()
    first, second, third = (row[:length] for row, length in zip(alone, (4, 9, 5), strict=True))
    unused = np.array([2, 3], np.int32)
    packed = np.concatenate([first, second, third, unused])[None]
    segments = np.repeat([1, 2, 3, 0], [4, 9, 5, 2])[None]
    found = jax.jit(lambda ids, segments: hidden_states(config, params, ids, segments_BT=segments))(packed, segments)
    expected = np.asarray(cases.full(config, params, alone)[1])
    for row, (start, length) in enumerate([(0, 4), (4, 9), (13, 5)]):
        np.testing.assert_allclose(found[0, start : start + length], expected[row, :length], rtol=0, atol=1e-5)
