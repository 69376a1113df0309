"""MLA decoding by the Mosaic GPU kernel: against NumPy float64 in interpret mode, and what it refuses.

The interpreter runs the three warpgroups as threads, with TMA, barriers and a detector of races; shapes are small for that.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.mla_decode import mla_decode
from pallas_kernels.resources import compile_for
from pallas_kernels.targets import TARGETS

C, R, BLOCK = 128, 64, 64
SCALE = 0.07

mosaic = pytest.mark.parametrize("impl", ["gpu_mosaic"], indirect=True)
Arrays = tuple[np.ndarray, ...]


def oracle(
    q_latent: np.ndarray, q_rope: np.ndarray, latent: np.ndarray, rope: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    B, P, N, _ = q_latent.shape
    out, lse = np.zeros(q_latent.shape), np.full((B, P, N), -1e30)
    for b in range(B):
        for p in range(P):
            seen = int(lengths[b]) - P + p + 1
            if seen <= 0:
                continue
            values, keys = latent[b, :seen].astype(np.float64), rope[b, :seen].astype(np.float64)
            logits = SCALE * (q_latent[b, p].astype(np.float64) @ values.T + q_rope[b, p].astype(np.float64) @ keys.T)
            highest = logits.max(-1, keepdims=True)
            weights = np.exp(logits - highest)
            out[b, p] = weights @ values / weights.sum(-1, keepdims=True)
            lse[b, p] = highest[:, 0] + np.log(weights.sum(-1))
    return out, lse


def inputs(lengths: list[int], *, P: int = 1, N: int = 5, S: int = 192, width: int = C, dtype: Any = ml_dtypes.bfloat16,
           grow: float = 1.0) -> Arrays:  # fmt: skip
    """Normals, the queries `grow` times as large, with NaN past each length."""
    B, generator = len(lengths), np.random.default_rng(0)

    def normal(*shape: int, times: float = 1.0) -> np.ndarray:
        return (times * generator.standard_normal(shape)).astype(dtype)

    latent, rope = normal(B, S, width), normal(B, S, R)
    for b, length in enumerate(lengths):
        latent[b, length:] = rope[b, length:] = np.nan
    return (
        normal(B, P, N, width, times=grow), normal(B, P, N, R, times=grow), latent, rope, np.array(lengths, np.int32)
    )  # fmt: skip


def decode(*arrays: Any, num_splits: int | None = None, impl: str) -> tuple[np.ndarray, np.ndarray]:
    run = functools.partial(mla_decode, scale=SCALE, num_splits=num_splits, impl=impl)
    out, lse = jax.jit(run)(*arrays)
    assert out.dtype == arrays[0].dtype and lse.dtype == jnp.float32
    return np.asarray(out, np.float64), np.asarray(lse, np.float64)


def check(arrays: Arrays, got: tuple[np.ndarray, np.ndarray]) -> None:
    out, lse = oracle(*arrays)
    np.testing.assert_allclose(got[0], out, atol=1e-2, rtol=1e-2)
    np.testing.assert_allclose(got[1], lse, atol=1e-5, rtol=1e-5)


@mosaic
@pytest.mark.parametrize(("P", "lengths"), [(1, [0, BLOCK, BLOCK + 1]), (2, [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])])
def test_every_length_of_a_row_is_attention_over_its_slots(impl: str, P: int, lengths: list[int]) -> None:
    arrays = inputs(lengths, P=P)
    out, lse = decode(*arrays, num_splits=1, impl=impl)
    check(arrays, (out, lse))
    assert (out[0] == 0).all() and (lse[0] == np.float32(-1e30)).all()


@mosaic
@pytest.mark.parametrize(("N", "P"), [(1, 1), (16, 2), (128, 1), (65, 2)])
def test_any_number_of_queries_fills_tiles(impl: str, N: int, P: int) -> None:
    arrays = inputs([BLOCK + 3], N=N, P=P, S=2 * BLOCK)
    check(arrays, decode(*arrays, impl=impl))


@mosaic
@pytest.mark.parametrize("num_splits", [1, 2, 7])
def test_splits_only_change_the_order_of_sums(impl: str, num_splits: int) -> None:
    arrays = inputs([4 * BLOCK + 1], S=5 * BLOCK)
    check(arrays, decode(*arrays, num_splits=num_splits, impl=impl))


@mosaic
def test_more_blocks_than_buffers(impl: str) -> None:
    arrays = inputs([6 * BLOCK - 5], S=6 * BLOCK, P=2)
    check(arrays, decode(*arrays, num_splits=1, impl=impl))


@mosaic
def test_large_logits(impl: str) -> None:
    arrays = inputs([2 * BLOCK - 1], grow=1e4)
    out, lse = decode(*arrays, num_splits=2, impl=impl)
    assert np.abs(lse).max() > 1e4
    check(arrays, (out, lse))


@mosaic
def test_wide_latents_and_float16(impl: str) -> None:
    arrays = inputs([BLOCK + 9], width=512, S=2 * BLOCK, N=3, dtype=np.float16)
    check(arrays, decode(*arrays, num_splits=1, impl=impl))


@mosaic
def test_rows_do_not_depend_on_their_neighbours(impl: str) -> None:
    arrays = inputs([1, 2 * BLOCK])
    out, lse = decode(*arrays, num_splits=1, impl=impl)
    alone, lse_alone = decode(*(array[1:] for array in arrays), num_splits=1, impl=impl)
    np.testing.assert_array_equal(out[1:], alone)
    np.testing.assert_array_equal(lse[1:], lse_alone)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mask": np.ones((1, 1), bool)}, "causal only"),
        ({"dtype": np.float32}, "must share bfloat16 or float16"),
        ({"width": 192}, "latents must be 128, 256, 512 wide"),
        ({"S": 100}, "a multiple of 64 slots"),
    ],
)
def test_what_it_cannot_serve_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    options = {"mask": change.pop("mask")} if "mask" in change else {}
    with pytest.raises(ValueError, match=reason):
        mla_decode(*inputs([3], **change), scale=SCALE, impl="gpu_mosaic", **options)


@pytest.mark.slow
@pytest.mark.skipif(not TARGETS["h200"].installed, reason="the packages to compile for an H200 are missing")
def test_compiled_for_hopper_it_spills_nothing_and_is_counted_every_time() -> None:
    arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in inputs([BLOCK, BLOCK], width=512, S=16 * BLOCK)]
    run = functools.partial(mla_decode, scale=SCALE, impl="gpu_mosaic")
    for _ in range(2):
        (kernel,) = compile_for(TARGETS["h200"], run, *arguments).kernels
        assert kernel.name == "mla_decode" and kernel.spilled_bytes == 0
        assert kernel.registers == 168  # what a launch of three warpgroups gives each thread before it deals them anew
        assert 3 * 2 * BLOCK * (512 + R) + 2 * BLOCK * BLOCK < kernel.shared_bytes <= 227 * 1024
