"""Appending to an MLA cache as a Triton kernel: a program per token writes its latent and its rotated key in place."""

import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Float, Int

from pallas_kernels.triton_launch import InPlace, launch


@triton.jit
def _rope_append(
    latent_new_ptr, rope_new_ptr, latent_ptr, rope_ptr, positions_ptr, cos_ptr, sin_ptr, P, S,
    C: tl.constexpr, HALF: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = row * P + tl.program_id(1)
    position = tl.load(positions_ptr + row).to(tl.int64) + tl.program_id(1)
    exists = (position >= 0) & (position < S)
    slot = row * S + position

    columns = tl.arange(0, BLOCK_C)
    latent = tl.load(latent_new_ptr + token * C + columns, mask=columns < C, other=0.0).to(tl.float32)
    tl.store(latent_ptr + slot * C + columns, latent.to(latent_ptr.dtype.element_ty), mask=columns < tl.where(exists, C, 0))

    pair = tl.arange(0, BLOCK_HALF)
    inside = pair < HALF
    first = tl.load(rope_new_ptr + token * 2 * HALF + pair, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(rope_new_ptr + token * 2 * HALF + HALF + pair, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + token * HALF + pair, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HALF + pair, mask=inside, other=0.0).to(tl.float32)
    written = pair < tl.where(exists, HALF, 0)
    to = rope_ptr + slot * 2 * HALF + pair
    tl.store(to, (first * cos - second * sin).to(rope_ptr.dtype.element_ty), mask=written)
    tl.store(to + HALF, (second * cos + first * sin).to(rope_ptr.dtype.element_ty), mask=written)


def rope_append(
    latent_new: Float[Array, "B P C"],
    rope_new: Float[Array, "B P R"],
    latent: Float[Array, "B S C"],
    rope: Float[Array, "B S R"],
    positions: Int[Array, " B"],
    cos: Float[Array, "B P half"],
    sin: Float[Array, "B P half"],
) -> tuple[Float[Array, "B S C"], Float[Array, "B S R"]]:
    B, P, C = latent_new.shape
    half = cos.shape[-1]
    latent, rope = launch(
        _rope_append, latent_new, rope_new, InPlace(latent), InPlace(rope), positions.astype(jnp.int32), cos, sin,
        outputs=[], grid=(B, P), scalars={"P": P, "S": latent.shape[1]},
        constants={
            "C": C, "HALF": half, "BLOCK_C": triton.next_power_of_2(C), "BLOCK_HALF": triton.next_power_of_2(half)
        },
        warps=2, name="rope_append",
    )  # fmt: skip
    return latent, rope
