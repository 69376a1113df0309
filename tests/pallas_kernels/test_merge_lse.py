"""Partial attentions join into the whole, in one array and across devices."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.merge import merge_lse, merge_lse_across


def oracle(logits: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """Attention of one query: softmax(logits) . values in float64."""
    if not len(logits):
        return np.zeros(values.shape[-1]), -1e30
    weights = np.exp(logits - logits.max())
    return weights @ values / weights.sum(), logits.max() + math.log(weights.sum())


def parts_of(
    logits: np.ndarray, values: np.ndarray, owner: np.ndarray, parts: int
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    pieces = [oracle(logits[owner == i], values[owner == i]) for i in range(parts)]
    return np.array([p[0] for p in pieces], np.float32), np.array([p[1] for p in pieces], np.float32)


def random_keys(seed: int, keys: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=keys) * spread, generator.normal(size=(keys, 5))


def assert_merged(out: jax.Array, lse: jax.Array, logits: np.ndarray, values: np.ndarray) -> None:
    expected, expected_lse = oracle(logits, values)
    np.testing.assert_allclose(out, expected, atol=1e-5, rtol=1e-5 * (1 + np.abs(logits).max(initial=0)))
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5, rtol=1e-6)


@given(
    seed=st.integers(0, 1000),
    keys=st.integers(0, 12),
    parts=st.integers(1, 6),
    spread=st.sampled_from([1.0, 30.0]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_partition_merges_to_the_whole(seed: int, keys: int, parts: int, spread: float) -> None:
    logits, values = random_keys(seed, keys, spread)
    owner = np.random.default_rng(seed + 1).integers(0, parts, keys)
    assert_merged(*merge_lse(*parts_of(logits, values, owner, parts)), logits, values)


def test_merging_is_associative() -> None:
    logits, values = random_keys(0, 9, 3.0)
    outs, lses = parts_of(logits, values, np.arange(9) % 3, 3)
    first = merge_lse(outs[:2], lses[:2])
    assert_merged(
        *merge_lse(jnp.stack([first[0], outs[2]]), jnp.stack([first[1], lses[2]])), logits, values
    )  # fmt: skip


def test_empty_parts_weigh_nothing_whatever_they_hold() -> None:
    outs, lses = np.array([[7.0, -7.0], [1.0, 2.0]], np.float32), np.array([-1e30, -5000.0], np.float32)
    out, lse = merge_lse(outs, lses)
    assert out.tolist() == [1.0, 2.0] and lse == -5000.0


def test_nothing_but_empty_parts_is_empty() -> None:
    out, lse = merge_lse(np.full((3, 2, 4), 7.0, np.float32), np.full((3, 2), -1e30, np.float32))
    np.testing.assert_array_equal(out, np.zeros((2, 4)))
    np.testing.assert_array_equal(lse, np.full(2, -1e30, np.float32))


def test_log_sum_exps_of_any_size_do_not_overflow() -> None:
    outs = np.array([[1.0], [3.0], [100.0]], np.float32)
    for level in (-1e4, 1e4):
        out, lse = merge_lse(outs, np.array([level, level, level - 1e4], np.float32))
        np.testing.assert_allclose(out, [2.0], rtol=1e-6)
        np.testing.assert_allclose(lse, level + math.log(2), rtol=1e-6)


def test_the_result_has_the_dtype_of_the_parts() -> None:
    out, lse = merge_lse(jnp.ones((2, 3), jnp.bfloat16), jnp.zeros(2))
    assert out.dtype == jnp.bfloat16 and lse.dtype == jnp.float32


@pytest.mark.parametrize("axes", [("a",), ("b",), ("a", "b")])
def test_devices_merge_to_the_whole(axes: tuple[str, ...]) -> None:
    sizes = {"a": 2, "b": 4}
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto, AxisType.Auto))
    parts = math.prod(sizes[axis] for axis in axes)
    logits, values = random_keys(3, 21, 3.0)
    # The last device has no keys.
    outs, lses = parts_of(logits, values, np.arange(21) % (parts - 1), parts)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(axes), PartitionSpec(axes)), out_specs=PartitionSpec()
    )
    def merged(outs: jax.Array, lses: jax.Array) -> tuple[jax.Array, jax.Array]:
        return merge_lse_across(outs[0], lses[0], axes)

    assert_merged(*jax.jit(merged)(outs, lses), logits, values)


def test_devices_without_any_keys_give_an_empty_result() -> None:
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("a")
    out, lse = jax.jit(
        jax.shard_map(
            lambda out, lse: merge_lse_across(out[0], lse[0], "a"),
            mesh=mesh, in_specs=(spec, spec), out_specs=PartitionSpec(),
        )
    )(np.full((8, 3), 7.0, np.float32), np.full(8, -1e30, np.float32))  # fmt: skip
    assert out.tolist() == [0.0] * 3 and lse == np.float32(-1e30)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    for outs, lses in (((0, 3, 8), (0, 3)), ((2, 3, 8), (3, 3)), ((3, 8), (3, 8))):
        with pytest.raises(ValueError, match=r"must be \[M, \.\.\., C\] and \[M, \.\.\.\]"):
            merge_lse(jnp.zeros(outs), jnp.zeros(lses))
