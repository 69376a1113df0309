"""The shapes that appending is checked on: decode steps of one token a row, and of a draft of several."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.cases import Case
from pallas_kernels.rope_append import ROPE_APPEND, rope_append

CHECKED = 2  # rows of the cache of which the expected values are computed


def _expected(
    latent_new: np.ndarray, rope_new: np.ndarray, latent: np.ndarray, rope: np.ndarray, positions: np.ndarray,
    cos: np.ndarray, sin: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    latent, rope = latent[:CHECKED].astype(np.float64), rope[:CHECKED].astype(np.float64)
    # Pairs as complex numbers, which the rotation multiplies.
    half = cos.shape[-1]
    wide = rope_new.astype(np.float64)
    turned = (wide[..., :half] + 1j * wide[..., half:]) * (cos.astype(np.float64) + 1j * sin)
    for row in range(CHECKED):
        for token in range(latent_new.shape[1]):
            slot = positions[row] + token
            if 0 <= slot < latent.shape[1]:
                latent[row, slot] = latent_new[row, token]
                rope[row, slot] = np.concatenate([turned[row, token].real, turned[row, token].imag])
    return latent, rope


def _fill(generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[np.ndarray, ...]:
    """Positions all over the cache and past its ends; the caches repeat some numbers, since making new ones takes long."""
    latent_new, rope_new, latent, rope, positions, cos, _ = arguments

    def normals(a: jax.ShapeDtypeStruct) -> np.ndarray:
        return np.resize(generator.standard_normal(min(a.size, 1 << 20), np.float32).astype(a.dtype), a.shape)

    slots = generator.integers(-2, latent.shape[1] + 2, positions.shape, np.int32)
    angles = generator.uniform(-np.pi, np.pi, cos.shape)
    return (
        normals(latent_new), normals(rope_new), normals(latent), normals(rope), slots,
        np.cos(angles).astype(cos.dtype), np.sin(angles).astype(cos.dtype),
    )  # fmt: skip


def _rope_append(B: int, P: int, S: int, C: int, R: int, dtype: str) -> Case:
    def array(*shape: int, dtype: str = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    turn = array(B, P, R // 2, dtype="float32")
    tokens = (array(B, P, C), array(B, P, R))
    return Case(
        op="rope_append", label=f"B{B} P{P} S{S} C{C} R{R}", dtype=dtype, table=ROPE_APPEND,
        arguments=(*tokens, array(B, S, C), array(B, S, R), array(B, dtype="int32"), turn, turn),
        run=rope_append, in_place=((2, 0), (3, 1)), expected=_expected, fill=_fill,
        # Tokens come and go; the rest of the caches does not move where they are donated.
        bytes=sum(2 * a.size * a.dtype.itemsize for a in tokens) + 2 * turn.size * 4 + 4 * B, flops=0,
    )  # fmt: skip


CASES = (
    _rope_append(64, 1, 8192, 512, 64, "bfloat16"),
    _rope_append(64, 4, 8192, 512, 64, "bfloat16"),
    _rope_append(64, 1, 8192, 512, 64, "float32"),
)
