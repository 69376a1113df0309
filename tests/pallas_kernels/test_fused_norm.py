"""Norms: every implementation against NumPy float64, and gradients against those of the reference."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.fused_norm import add_rms_norm, cases, rms_norm, rms_norm_gelu, rms_norm_quantize

IMPLEMENTATIONS = ["reference", "gpu_triton", "tpu"]
each_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS, indirect=True)
each_kernel = pytest.mark.parametrize("impl", IMPLEMENTATIONS[1:], indirect=True)

# Odd widths and odd numbers of rows; several tiles of rows at 2500 x 1; a row of one block and a bit, forward, at 16389.
SHAPES = [(1, 1), (2500, 1), (3, 7), (5, 128), (2, 3, 129), (33, 64), (3, 4097), (2, 16389)]
# A second each in the TPU interpreter.
FEWER = [(1, 1), (2, 3, 129)]

each_shape = pytest.mark.parametrize(
    ("impl", "shape", "dtype"),
    [
        (impl, shape, dtype)
        for impl in IMPLEMENTATIONS
        for shape in (FEWER if impl == "tpu" else SHAPES)
        for dtype in ("float32", "bfloat16")
        if not (impl == "tpu" and dtype == "bfloat16" and shape == (1, 1))
    ],
    indirect=["impl"],
)


def normal(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed).normal(size=shape)
    return numbers.astype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)


def near(got: Any, want: np.ndarray, dtype: str) -> None:
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=tolerance, rtol=tolerance)


def oracle_rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def oracle_gelu(z: np.ndarray) -> np.ndarray:
    return z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z * z * z)))


@each_shape
def test_rms_norm_is_its_definition(impl: str, shape: tuple[int, ...], dtype: str) -> None:
    x, weight = normal(shape, dtype), normal(shape[-1:], dtype, 1)
    got = jax.jit(lambda x, w: rms_norm(x, w, eps=1e-6, impl=impl))(x, weight)
    assert got.dtype == x.dtype and got.shape == x.shape
    near(got, oracle_rms_norm(x, weight, 1e-6), dtype)


@each_shape
def test_add_rms_norm_norms_the_sum_that_it_returns(impl: str, shape: tuple[int, ...], dtype: str) -> None:
    x, residual, weight = normal(shape, dtype), normal(shape, dtype, 2), normal(shape[-1:], dtype, 1)
    normed, total = jax.jit(lambda *a: add_rms_norm(*a, eps=1e-6, impl=impl))(x, residual, weight)
    assert normed.dtype == total.dtype == x.dtype and normed.shape == total.shape == x.shape
    exact = x.astype(np.float64) + residual.astype(np.float64)
    np.testing.assert_array_equal(np.asarray(total), exact.astype(x.dtype))
    near(normed, oracle_rms_norm(np.asarray(total), weight, 1e-6), dtype)


@each_implementation
def test_add_rms_norm_norms_the_rounded_sum(impl: str) -> None:
    # 256 + 1 rounds to 256 in bfloat16: the row [256, 256] normed is ones, which the unrounded [257, 256] is not.
    x, residual = np.full((1, 2), 256, ml_dtypes.bfloat16), np.array([[1, 0]], ml_dtypes.bfloat16)
    weight = np.full(2, 1, np.float32)
    normed, _ = add_rms_norm(x, residual, weight, eps=0.0, impl=impl)
    np.testing.assert_array_equal(np.asarray(normed, np.float32), [[1.0, 1.0]])


@each_shape
def test_rms_norm_gelu_is_gelu_of_the_normed_row(impl: str, shape: tuple[int, ...], dtype: str) -> None:
    x, weight = normal(shape, dtype), 2 * normal(shape[-1:], dtype, 1)
    got = jax.jit(lambda x, w: rms_norm_gelu(x, w, eps=1e-6, impl=impl))(x, weight)
    assert got.dtype == x.dtype and got.shape == x.shape
    near(got, oracle_gelu(oracle_rms_norm(x, weight, 1e-6)), dtype)


@each_implementation
@pytest.mark.parametrize("gain", [1e4, -1e4])
def test_gelu_of_far_numbers_is_themselves_or_zero(impl: str, gain: float) -> None:
    x, weight = np.full((2, 8), 3, np.float32), np.full(8, gain, np.float32)
    got, slope = jax.value_and_grad(lambda w: rms_norm_gelu(x, w, impl=impl).sum())(weight)
    np.testing.assert_allclose(got, max(gain, 0) * 16, rtol=1e-5)
    np.testing.assert_allclose(slope, np.full(8, 2.0 * (gain > 0)), rtol=1e-5)


@each_implementation
@pytest.mark.parametrize("scale", [2.0**-40, -7.5])
def test_rms_norm_does_not_see_the_scale_of_a_row(impl: str, scale: float) -> None:
    x, weight = normal((5, 129), "float32"), normal((129,), "float32", 1)
    norm = functools.partial(rms_norm, eps=0.0, impl=impl)
    np.testing.assert_allclose(norm(x * np.float32(scale), weight), np.sign(scale) * norm(x, weight), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("impl", "shape"),
    [
        *(("gpu_triton", s) for s in [(1, 1), (3, 7), (37, 128), (2, 3, 129), (33, 64), (2500, 2), (3, 4097), (5, 8200)]),
        ("tpu", (2, 1030, 129)),
    ],
    indirect=["impl"],
)
@pytest.mark.parametrize("op", [rms_norm, rms_norm_gelu, add_rms_norm])
def test_gradients_are_those_of_the_reference(impl: str, shape: tuple[int, ...], op: Callable[..., Any]) -> None:
    inputs = [normal(shape, "float32"), normal(shape[-1:], "float32", 1)]
    d_out = [normal(shape, "float32", 3)]
    if op is add_rms_norm:
        inputs.insert(1, normal(shape, "float32", 2))
        d_out.append(normal(shape, "float32", 4))

    def gradients(impl: str) -> tuple[jax.Array, ...]:
        def loss(*inputs: jax.Array) -> jax.Array:
            return sum(jnp.vdot(out, d) for out, d in zip(jax.tree.leaves(op(*inputs, eps=1e-3, impl=impl)), d_out))

        return jax.jit(jax.grad(loss, argnums=tuple(range(len(inputs)))))(*inputs)

    for got, want in zip(gradients(impl), gradients("reference"), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


@each_kernel
@pytest.mark.parametrize("op", [rms_norm_gelu, add_rms_norm])
def test_bfloat16_gradients_are_near_float32_ones(impl: str, op: Callable[..., Any]) -> None:
    inputs = [normal((9, 129), "bfloat16"), normal((129,), "bfloat16", 1)]
    if op is add_rms_norm:
        inputs.insert(1, np.zeros((9, 129), ml_dtypes.bfloat16))
    loss = lambda impl, *inputs: jnp.square(jax.tree.leaves(op(*inputs, impl=impl))[0].astype(jnp.float32)).sum()  # noqa: E731
    which = tuple(range(1, len(inputs) + 1))
    got = jax.grad(loss, argnums=which)(impl, *inputs)
    want = jax.grad(loss, argnums=which)("reference", *(i.astype(np.float32) for i in inputs))
    for one, other in zip(got, want, strict=True):
        assert one.dtype == jnp.bfloat16
        # The squared outputs' cotangents were rounded too, so errors follow the largest gradient.
        np.testing.assert_allclose(np.asarray(one, np.float32), other, atol=2e-2 * float(jnp.abs(other).max()))


@each_kernel
def test_the_gradient_of_a_weight_is_the_same_every_time(impl: str) -> None:
    x, weight = normal((700, 64), "float32"), normal((64,), "float32", 1)
    slope = jax.jit(jax.grad(lambda w: jnp.square(rms_norm(x, w, impl=impl)).sum()))
    np.testing.assert_array_equal(slope(weight), slope(weight))


@each_implementation
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a_weight_sums_over_no_more_than_the_rows(impl: str, eps: float) -> None:
    """Rows that fill up a last tile neither count nor bring NaN, not even where eps is zero."""
    x, weight = normal((3, 5), "float32"), normal((5,), "float32", 1)
    got = jax.grad(lambda w: rms_norm(x, w, eps=eps, impl=impl).sum())(weight)
    np.testing.assert_allclose(got, oracle_rms_norm(x, np.ones(5), eps).sum(0), atol=1e-5)


@each_shape
def test_int8_steps_are_the_normed_row_over_its_scale(impl: str, shape: tuple[int, ...], dtype: str) -> None:
    x, weight = normal(shape, dtype), normal(shape[-1:], dtype, 1)
    steps, scale = jax.jit(lambda x, w: rms_norm_quantize(x, w, dtype="int8", impl=impl))(x, weight)
    assert steps.dtype == jnp.int8 and steps.shape == x.shape
    assert scale.dtype == jnp.float32 and scale.shape == x.shape[:-1]
    normed = oracle_rms_norm(x, weight, 1e-6)
    np.testing.assert_allclose(scale, np.abs(normed).max(-1) / 127, rtol=1e-5)
    np.testing.assert_array_equal(np.abs(np.asarray(steps, np.int32)).max(-1), 127)
    exact = normed / (np.abs(normed).max(-1, keepdims=True) / 127)
    assert np.abs(np.asarray(steps, np.float64) - exact).max() <= 0.5 + 1e-4


@each_shape
def test_float8_steps_are_the_normed_row_over_its_scale(impl: str, shape: tuple[int, ...], dtype: str) -> None:
    x, weight = normal(shape, dtype), normal(shape[-1:], dtype, 1)
    steps, scale = jax.jit(lambda x, w: rms_norm_quantize(x, w, dtype=jnp.float8_e4m3fn, impl=impl))(x, weight)
    assert steps.dtype == jnp.float8_e4m3fn and steps.shape == x.shape
    normed = oracle_rms_norm(x, weight, 1e-6)
    np.testing.assert_allclose(scale, np.abs(normed).max(-1) / 448, rtol=1e-5)
    exact = normed / (np.abs(normed).max(-1, keepdims=True) / 448)
    error = np.abs(np.asarray(steps).astype(np.float64) - exact)
    # Half of the last of three bits of mantissa; below 2^-6, half a step of 2^-9.
    assert (error <= np.maximum(np.abs(exact) * 2.0**-4, 2.0**-10) * 1.0001).all()


@each_implementation
def test_int8_rounds_halves_to_even(impl: str) -> None:
    # A mean square of 1 makes the norm exact, and the largest gain of 127 the scale 1: steps are the gains themselves.
    x = np.ones((2, 8), np.float32)
    gain = np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5], np.float32)
    steps, scale = rms_norm_quantize(x, gain, dtype="int8", eps=0.0, impl=impl)
    np.testing.assert_array_equal(scale, [1.0, 1.0])
    np.testing.assert_array_equal(steps, [[127, 0, 2, 2, 0, -2, -2, 64]] * 2)


@each_implementation
def test_float8_rounds_every_number_as_ml_dtypes_does(impl: str) -> None:
    """Through gains with scale 1: all of float8's numbers, the middles between them, and one float32 off the middles."""
    numbers = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    gains = np.concatenate([numbers, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(999))])
    gains = np.concatenate([gains, -gains])
    x = np.ones((1, gains.size), np.float32)
    steps, scale = rms_norm_quantize(x, gains, dtype="float8_e4m3fn", eps=0.0, impl=impl)
    np.testing.assert_array_equal(scale, [1.0])
    np.testing.assert_array_equal(np.asarray(steps)[0].astype(np.float32), gains.astype(ml_dtypes.float8_e4m3fn))


@each_implementation
@pytest.mark.parametrize("to", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("tiny", [0.0, 1e-42])
def test_rows_of_zeros_have_scale_zero(impl: str, to: str, tiny: float) -> None:
    x = normal((4, 33), "float32")
    x[[1, 3]] = tiny
    steps, scale = rms_norm_quantize(x, np.ones(33, np.float32), dtype=to, impl=impl)
    np.testing.assert_array_equal(np.asarray(scale) > 0, [True, False, True, False])
    np.testing.assert_array_equal(np.asarray(steps).astype(np.float32)[[1, 3]], 0)


@each_implementation
def test_differentiating_the_quantised_norm_is_an_error(impl: str) -> None:
    x, weight = normal((2, 8), "float32"), np.ones(8, np.float32)
    quantize = functools.partial(rms_norm_quantize, dtype="int8", impl=impl)
    with pytest.raises(TypeError, match="stop_gradient"):
        jax.grad(lambda x: quantize(x, weight)[1].sum())(x)
    with pytest.raises(TypeError, match="stop_gradient"):
        jax.jit(jax.grad(lambda w: quantize(x, w)[1].sum()))(weight)
    straight_through = jax.grad(lambda x: (x * quantize(jax.lax.stop_gradient(x), weight)[1][:, None]).sum())(x)
    np.testing.assert_allclose(straight_through, np.broadcast_to(quantize(x, weight)[1][:, None], x.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "weight", "options", "message"),
    [
        ((2, 8), (7,), {}, r"\(2, 8\) and \(7,\)"),
        ((), (1,), {}, "D >= 1"),
        ((2, 0), (0,), {}, "D >= 1"),
        ((2, 8), (8,), {"eps": -1.0}, "eps >= 0, got -1.0"),
        ((2, 8), (8,), {"eps": float("nan")}, "eps >= 0"),
        ((2, 8), (8,), {"impl": "cuda"}, "known ones"),
    ],
)
def test_unfit_arguments_are_refused_by_name(x: tuple, weight: tuple, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rms_norm(jnp.ones(x), jnp.ones(weight), **options)


def test_dtypes_that_do_not_suit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="floating-point"):
        rms_norm(jnp.ones((2, 8), jnp.int32), jnp.ones(8))
    with pytest.raises(ValueError, match="int8 or float8_e4m3fn, got int16"):
        rms_norm_quantize(jnp.ones((2, 8)), jnp.ones(8), dtype="int16")
    with pytest.raises(ValueError, match="one shape and dtype"):
        add_rms_norm(jnp.ones((2, 8)), jnp.ones((2, 8), jnp.bfloat16), jnp.ones(8))


def test_no_rows_give_no_rows() -> None:
    assert rms_norm(jnp.ones((0, 8)), jnp.ones(8)).shape == (0, 8)
    with pytest.raises(ValueError, match="no rows"):
        rms_norm(jnp.ones((0, 8)), jnp.ones(8), impl="tpu")


def test_the_reference_is_the_model_s_norm() -> None:
    """The formula of grpo_jax.model.norm, to the last bit."""
    x, weight = normal((3, 64), "bfloat16"), normal((64,), "bfloat16", 1)
    wide = jnp.asarray(x).astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    want = (wide * inverse_rms * weight.astype(jnp.float32)).astype(x.dtype)
    np.testing.assert_array_equal(rms_norm(x, weight, eps=1e-5, impl="reference"), want)


@pytest.mark.parametrize(
    "case", [c for c in cases.CASES if c.arguments[0].shape[0] == 64], ids=lambda c: f"{c.op} {c.label}"
)
def test_the_reference_meets_the_cases(case: Any) -> None:
    check_case(case)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", ["rms_norm", "rms_norm_gelu", "add_rms_norm"])
def test_the_reference_meets_cases_of_fewer_rows(op: str, backward: bool) -> None:
    check_case(getattr(cases, f"_{op}")(96, 129, "float32", backward=backward))


def check_case(case: Any) -> None:
    arrays = case.fill(np.random.default_rng(0), case.arguments)
    got, want = jax.tree.leaves(case.run(*arrays, impl="reference")), jax.tree.leaves(case.expected(*arrays))
    for one, other in zip(got, want, strict=True):
        part = np.asarray(one).astype(np.float64)[tuple(slice(0, size) for size in other.shape)]
        assert np.abs((part - other) / (1 + np.abs(other))).max() <= case.allowed
