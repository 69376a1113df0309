"""Softmax: every implementation against NumPy float64, and gradients against those of the reference."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.fused_softmax import cases, softmax

IMPLEMENTATIONS = ["reference", "gpu_triton", "tpu"]
each_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS, indirect=True)

# Odd widths and rows; at 16400, 8200 and 131072 a row is wider than one block of some or every implementation.
SHAPES = [(1, 1), (2500, 1), (3, 7), (5, 128), (2, 3, 129), (3, 4097), (1, 16400), (1, 131072)]
FEWER = [(2, 3, 129), (17, 8200)]  # the TPU interpreter takes a second for each

each_shape = pytest.mark.parametrize(
    ("impl", "shape", "dtype"),
    [
        (impl, shape, dtype)
        for impl in IMPLEMENTATIONS
        for shape in (FEWER if impl == "tpu" else SHAPES)
        for dtype in ("float32", "bfloat16")
    ],
    indirect=["impl"],
)


def logits(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """A third of the entries masked, the last row all of them, and every number of a row's rest far from the others."""
    generator = np.random.default_rng(seed)
    x = generator.normal(scale=4, size=shape)
    x[generator.random(shape) < 0.3] = -np.inf
    x.reshape(-1, shape[-1])[-1] = -np.inf
    if x.size > shape[-1]:
        x.reshape(-1, shape[-1])[0] = generator.normal(scale=4, size=shape[-1])
    return x.astype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)


def oracle(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    greatest = x.max(-1, keepdims=True)
    exponentials = np.exp(x - np.where(np.isfinite(greatest), greatest, 0))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


@each_shape
def test_softmax_is_its_definition(impl: str, shape: tuple[int, ...], dtype: str) -> None:
    x = logits(shape, dtype)
    if x.size == shape[-1]:
        x = logits((2, *shape), dtype)  # one row that is not all masked
    got = jax.jit(lambda x: softmax(x, impl=impl))(x)
    assert got.dtype == x.dtype and got.shape == x.shape
    got, want = np.asarray(got, np.float64), oracle(x)
    np.testing.assert_array_equal(got[np.isneginf(x.astype(np.float32))], 0)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * 1e-2)
    sums = 1.0 * np.isfinite(x.astype(np.float32)).any(-1)
    np.testing.assert_allclose(got.sum(-1), sums, atol=tolerance)


@each_implementation
def test_far_logits_neither_overflow_nor_vanish(impl: str) -> None:
    lowest = np.finfo(np.float32).min
    x = np.array(
        [
            [1e4, -1e4, 1e4, -1e4],
            [-1e4, -1e4, -1e4, -1e4],
            [1e4, 1e4 - 1, -np.inf, -1e4],
            [lowest, lowest, -np.inf, -np.inf],
            [-lowest, 0, lowest, -np.inf],
            [-np.inf, -np.inf, -np.inf, 1e4],
        ],
        np.float32,
    )
    want = [
        [0.5, 0, 0.5, 0],
        [0.25] * 4,
        [1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0, 0],
        [0.5, 0.5, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 1],
    ]
    np.testing.assert_allclose(softmax(x, impl=impl), want, rtol=1e-6, atol=1e-12)


@each_implementation
@pytest.mark.parametrize("rising", [True, False])
def test_the_greatest_may_stand_in_any_block(impl: str, rising: bool) -> None:
    """Blocks that grow by 1e4 rescale what was summed before to nothing; blocks that fall add nothing."""
    V = 3 * 16384 + 5 if impl != "tpu" else 2 * 8192 + 5
    x = np.linspace(-1e4, 1e4, V, dtype=np.float32)[None, :: 1 if rising else -1]
    np.testing.assert_allclose(softmax(x, impl=impl), oracle(x), rtol=1e-5, atol=1e-9)


@each_implementation
def test_whole_blocks_may_be_masked(impl: str) -> None:
    x = np.full((2, 3 * 16384 if impl != "tpu" else 3 * 8192), -np.inf, np.float32)
    x[0, [x.shape[1] // 2, -1]] = 3.0
    want = np.zeros_like(x)
    want[0, [x.shape[1] // 2, -1]] = 0.5
    np.testing.assert_array_equal(softmax(x, impl=impl), want)


@each_implementation
def test_softmax_does_not_see_a_shift(impl: str) -> None:
    x = np.random.default_rng(0).integers(-8, 8, (5, 129)).astype(np.float32)
    np.testing.assert_array_equal(softmax(x + 4096, impl=impl), softmax(x, impl=impl))


@each_implementation
def test_nan_spoils_its_own_row_alone(impl: str) -> None:
    x = np.random.default_rng(0).normal(size=(5, 33)).astype(np.float32)
    want = oracle(x)
    x[2, 7] = np.nan
    got = np.asarray(softmax(x, impl=impl))
    assert np.isnan(got[2]).all()
    np.testing.assert_allclose(got[[0, 1, 3, 4]], want[[0, 1, 3, 4]], rtol=1e-5)


@pytest.mark.parametrize(
    ("impl", "shape"),
    [
        *(("gpu_triton", shape) for shape in [(2, 1), (2500, 1), (3, 7), (37, 128), (2, 3, 129), (3, 4097), (2, 16400)]),
        *(("tpu", shape) for shape in [(2, 3, 129), (17, 8200)]),
    ],
    indirect=["impl"],
)
def test_gradients_are_those_of_the_reference(impl: str, shape: tuple[int, ...]) -> None:
    x, d_out = logits(shape), np.random.default_rng(1).normal(size=shape).astype(np.float32)

    def gradient(impl: str) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.vdot(softmax(x, impl=impl), d_out)))(x)

    got = np.asarray(gradient(impl))
    np.testing.assert_allclose(got, gradient("reference"), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(got[np.isneginf(x)], 0)
    # Probabilities sum to one whatever x is, so the gradient of a row sums to zero.
    np.testing.assert_allclose(got.sum(-1), 0, atol=1e-5)


def test_the_reference_s_gradient_is_the_formula_s() -> None:
    x, d_out = logits((5, 33)), np.random.default_rng(1).normal(size=(5, 33))
    got = jax.grad(lambda x: jnp.vdot(softmax(x, impl="reference"), d_out.astype(np.float32)))(x)
    out = oracle(x)
    np.testing.assert_allclose(got, out * (d_out - (out * d_out).sum(-1, keepdims=True)), atol=1e-6)


@pytest.mark.parametrize("x", [jnp.ones((2, 3), jnp.int32), jnp.ones(()), jnp.ones((2, 0))])
def test_what_has_no_rows_of_numbers_is_refused(x: jax.Array) -> None:
    with pytest.raises(ValueError, match=r"V >= 1, got"):
        softmax(x)


def test_no_rows_give_no_rows() -> None:
    assert softmax(jnp.ones((0, 8))).shape == (0, 8)
    with pytest.raises(ValueError, match="no rows"):
        softmax(jnp.ones((0, 8)), impl="tpu")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_meets_cases_of_fewer_rows(dtype: str, backward: bool) -> None:
    case = cases._softmax(33, 129, dtype, backward=backward)
    arrays = case.fill(np.random.default_rng(0), case.arguments)
    got, want = np.asarray(case.run(*arrays, impl="reference"), np.float64), case.expected(*arrays)
    got = got[: want.shape[0]]
    assert np.abs((got - want) / (1 + np.abs(want))).max() <= case.allowed
