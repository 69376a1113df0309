"""Appending to an MLA cache: every implementation against NumPy float64, bit for bit where nothing is rotated."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.rope_append import cases
from pallas_kernels.rope_append import rope_append as append_to_caches

IMPLEMENTATIONS = ["reference", "gpu_triton", "tpu"]
each_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS, indirect=True)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def tokens(B: int, P: int, C: int, R: int, dtype: str = "float32") -> tuple[np.ndarray, ...]:
    """New latents and keys, and the cosines and sines of some angles."""
    generator = np.random.default_rng(0)
    angles = generator.uniform(-np.pi, np.pi, (B, P, R // 2))
    latent, rope = (generator.normal(size=(B, P, width)).astype(DTYPES[dtype]) for width in (C, R))
    return latent, rope, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def caches(B: int, S: int, C: int, R: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """Random bits, NaN of every payload among them."""
    generator = np.random.default_rng(1)

    def bits(width: int) -> np.ndarray:
        kind = np.dtype(DTYPES[dtype])
        made = generator.integers(0, 256, (B, S, width * kind.itemsize), np.uint8).view(kind)
        made[:, ::3] = np.nan
        return made

    return bits(C), bits(R)


def rope_append(*arguments: Any, impl: str | None = None) -> tuple[jax.Array, jax.Array]:
    return append_to_caches(*map(jnp.asarray, arguments), impl=impl)


def as_bits(array: Any) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.view({4: np.uint32, 2: np.uint16}[array.dtype.itemsize])


def oracle(latent_new: np.ndarray, rope_new: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """The rotated keys: pairs (i, i + R/2) as complex numbers, times e^(i angle)."""
    half = cos.shape[-1]
    wide = rope_new.astype(np.float64)
    turned = (wide[..., :half] + 1j * wide[..., half:]) * (cos.astype(np.float64) + 1j * sin.astype(np.float64))
    return np.concatenate([turned.real, turned.imag], axis=-1)


def check(impl: str, P: int, S: int, positions: list[int], *, C: int = 16, R: int = 6, dtype: str, cached: str) -> None:
    B = len(positions)
    latent_new, rope_new, cos, sin = tokens(B, P, C, R, dtype)
    latent, rope = caches(B, S, C, R, cached)
    at = np.array(positions, np.int32)
    run = jax.jit(lambda *arguments: rope_append(*arguments, impl=impl))
    got_latent, got_rope = map(np.asarray, run(latent_new, rope_new, latent, rope, at, cos, sin))
    assert got_latent.dtype == latent.dtype and got_rope.dtype == rope.dtype

    turned = oracle(latent_new, rope_new, cos, sin)
    want_latent, touched = latent.copy(), np.zeros((B, S), bool)
    for row, position in enumerate(positions):
        for token in range(P):
            if 0 <= position + token < S:
                slot = position + token
                want_latent[row, slot] = latent_new[row, token].astype(latent.dtype)
                touched[row, slot] = True
                np.testing.assert_allclose(
                    got_rope[row, slot].astype(np.float64), turned[row, token],
                    atol=1e-5 if cached == "float32" else 1e-2, rtol=1e-5 if cached == "float32" else 1e-2,
                )  # fmt: skip
    np.testing.assert_array_equal(as_bits(got_latent), as_bits(want_latent))
    np.testing.assert_array_equal(as_bits(got_rope)[~touched], as_bits(rope)[~touched])


# Positions within a tile of rows, on its ends, across two, over both ends of the cache, past them, and far past.
POSITIONS = [0, 3, 7, 8, 14, 15, 16, 30, 46, 47, 48, -1, -2, -3, -37, 2**31 - 1, -(2**31)]


@each_implementation
@pytest.mark.parametrize(
    ("P", "dtype", "cached"), [(1, "bfloat16", "bfloat16"), (3, "float32", "float32"), (3, "float32", "bfloat16")]
)
def test_tokens_go_to_their_slots_and_nothing_else_moves(impl: str, P: int, dtype: str, cached: str) -> None:
    check(impl, P, 48, POSITIONS, dtype=dtype, cached=cached)


@each_implementation
@pytest.mark.parametrize(("P", "S"), [(20, 48), (56, 48), (9, 5), (1, 1)])
def test_tokens_may_be_more_than_a_tile_s_rows_or_the_cache_s_slots(impl: str, P: int, S: int) -> None:
    check(impl, P, S, [0, 1, -2, -P, S, S - 1, 5 - P], dtype="bfloat16", cached="bfloat16")


@pytest.mark.parametrize("impl", ["reference", "gpu_triton"], indirect=True)
def test_slots_may_be_any_number(impl: str) -> None:
    check(impl, 3, 37, [0, 30, 34, 35, 37], dtype="float32", cached="float32")


@each_implementation
def test_a_negative_position_does_not_count_from_the_end(impl: str) -> None:
    latent, rope = caches(1, 8, 16, 6)
    latent_new, rope_new, cos, sin = tokens(1, 1, 16, 6)
    got = rope_append(latent_new, rope_new, latent, rope, np.array([-1], np.int32), cos, sin, impl=impl)
    np.testing.assert_array_equal(as_bits(got[0]), as_bits(latent))
    np.testing.assert_array_equal(as_bits(got[1]), as_bits(rope))


@each_implementation
@pytest.mark.parametrize("kind", [np.int8])
def test_other_integers_are_positions_too(impl: str, kind: type) -> None:
    latent, rope = caches(2, 8, 16, 6)
    latent_new, rope_new, cos, sin = tokens(2, 1, 16, 6)
    got, _ = rope_append(latent_new, rope_new, latent, rope, np.array([2, 5], kind), cos, sin, impl=impl)
    np.testing.assert_array_equal(got[0, 2], latent_new[0, 0])
    np.testing.assert_array_equal(got[1, 5], latent_new[1, 0])


@each_implementation
def test_rotation_preserves_the_norm_of_every_pair(impl: str) -> None:
    latent_new, rope_new, cos, sin = tokens(2, 3, 8, 64)
    latent, rope = caches(2, 16, 8, 64)
    _, got = rope_append(latent_new, rope_new, latent, rope, np.array([4, 9], np.int32), cos, sin, impl=impl)
    for row, first in enumerate([4, 9]):
        written = np.asarray(got)[row, first : first + 3].reshape(3, 2, 32)
        np.testing.assert_allclose(
            np.hypot(*written.swapaxes(0, 1)), np.hypot(*rope_new[row].reshape(3, 2, 32).swapaxes(0, 1)), rtol=1e-6
        )


@each_implementation
def test_no_angle_is_a_plain_write(impl: str) -> None:
    latent_new, rope_new, cos, sin = tokens(2, 2, 8, 6)
    latent, rope = caches(2, 16, 8, 6)
    cos, sin = np.ones_like(cos), np.zeros_like(sin)
    _, got = rope_append(latent_new, rope_new, latent, rope, np.array([0, 14], np.int32), cos, sin, impl=impl)
    np.testing.assert_array_equal(got[0, :2], rope_new[0])
    np.testing.assert_array_equal(got[1, 14:], rope_new[1])


@each_implementation
def test_a_new_token_of_nan_stays_in_its_slot(impl: str) -> None:
    latent_new, rope_new, cos, sin = tokens(1, 3, 8, 6)
    latent_new[0, 1], rope_new[0, 1] = np.nan, np.nan
    latent, rope = np.zeros((1, 16, 8), np.float32), np.zeros((1, 16, 6), np.float32)
    got = rope_append(latent_new, rope_new, latent, rope, np.array([6], np.int32), cos, sin, impl=impl)
    for array in got:
        np.testing.assert_array_equal(np.isnan(array).any(-1)[0], np.arange(16) == 7)


@each_implementation
def test_appending_one_by_one_is_appending_together(impl: str) -> None:
    latent_new, rope_new, cos, sin = tokens(2, 3, 8, 6)
    start = np.array([5, 7], np.int32)
    arrays = caches(2, 16, 8, 6)
    append = jax.jit(lambda *arguments: rope_append(*arguments, impl=impl))
    together = rope_append(latent_new, rope_new, *arrays, start, cos, sin, impl=impl)
    for p in range(3):
        one = slice(p, p + 1)
        new = latent_new[:, one], rope_new[:, one]
        arrays = append(*new, *arrays, start + np.int32(p), cos[:, one], sin[:, one])
    for got, want in zip(arrays, together, strict=True):
        np.testing.assert_array_equal(as_bits(got), as_bits(want))


def shapes(**changed: Any) -> list[jax.Array]:
    given = {
        "latent_new": (2, 3, 8), "rope_new": (2, 3, 6), "latent": (2, 16, 8), "rope": (2, 16, 6), "positions": (2,),
        "cos": (2, 3, 3), "sin": (2, 3, 3), **changed,
    }  # fmt: skip
    return [jnp.zeros(shape, jnp.int32 if name == "positions" else jnp.float32) for name, shape in given.items()]


@pytest.mark.parametrize(
    "changed",
    [
        {"latent": (2, 16, 9)}, {"rope": (2, 15, 6)}, {"positions": (3,)}, {"cos": (2, 3, 6)}, {"sin": (2, 1, 3)},
        {"latent_new": (2, 8)}, {"latent": (3, 16, 8)},
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(changed: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="mend what differs"):
        rope_append(*shapes(**changed))


def test_dtypes_that_do_not_suit_are_refused() -> None:
    good = shapes()
    with pytest.raises(ValueError, match="positions of an integer dtype"):
        rope_append(*good[:4], jnp.zeros(2), *good[5:])
    with pytest.raises(ValueError, match="floating-point rope, got int8"):
        rope_append(*good[:3], good[3].astype(jnp.int8), *good[4:])


def test_what_a_kernel_cannot_serve_is_refused_by_name() -> None:
    many = shapes(latent_new=(2, 100_000, 8), rope_new=(2, 100_000, 6), cos=(2, 100_000, 3), sin=(2, 100_000, 3))
    with pytest.raises(ValueError, match="100000 tokens"):
        rope_append(*many, impl="tpu")
    with pytest.raises(ValueError, match="17 slots are not a multiple of 8"):
        rope_append(*shapes(latent=(2, 17, 8), rope=(2, 17, 6)), impl="tpu")
    none = shapes(latent_new=(2, 0, 8), rope_new=(2, 0, 6), cos=(2, 0, 3), sin=(2, 0, 3))
    with pytest.raises(ValueError, match="no tokens"):
        rope_append(*none, impl="tpu")
    assert rope_append(*none)[0].shape == (2, 16, 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_reference_meets_a_small_case(dtype: str) -> None:
    case = cases._rope_append(5, 4, 12, 16, 8, dtype)
    arrays = case.fill(np.random.default_rng(0), case.arguments)
    arrays = tuple(map(jnp.asarray, arrays))
    for got, want in zip(case.run(*arrays, impl="reference"), case.expected(*map(np.asarray, arrays)), strict=True):
        got = np.asarray(got, np.float64)[: want.shape[0]]
        assert np.abs((got - want) / (1 + np.abs(want))).max() <= case.allowed
