"""Appending to an MLA cache as a Pallas TPU kernel: the tiles that hold the new tokens' slots are read, mended and written.

Memory is tiled by 8 rows of 32 bits (16 rows of bfloat16), so a single slot is no unit of transfer. For each row the grid
walks the few tiles that its tokens can touch; positions, prefetched as scalars, choose them. Past the last one the tile is
named again, which transfers nothing. A tile's new contents depend on nothing but the tile and the tokens, so that naming it
twice does no harm. Tokens are staged as float32, whose rows can be rolled by a number known at run time only.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pallas_kernels.rope_append import tile_rows


def _position(positions_ref: Any, row: Any, P: int, S: int) -> Array:
    """Of a row's first token. Farther out than this no token would be inside, and sums could overflow."""
    return jnp.clip(positions_ref[row], -P, S)


def _tile(position: Array, step: Any, *, P: int, S: int, rows: int) -> Array:
    first, last = jnp.floor_divide(position, rows), jnp.floor_divide(position + P - 1, rows)
    return jnp.clip(jnp.minimum(first + step, last), 0, (S - 1) // rows)


def _rope_append_kernel(
    positions_ref: Any, latent_new_ref: Any, rope_new_ref: Any, cos_ref: Any, sin_ref: Any, latent_before_ref: Any,
    rope_before_ref: Any, latent_ref: Any, rope_ref: Any, latent_staged_ref: Any, rope_staged_ref: Any, *, S: int,
) -> None:  # fmt: skip
    rows = latent_ref.shape[1]
    P, half = cos_ref.shape[1:]

    @pl.when(pl.program_id(1) == 0)
    def _stage() -> None:
        tokens = pl.ds(0, P)
        latent_staged_ref[tokens, :] = latent_new_ref[0].astype(jnp.float32)
        new = rope_new_ref[0].astype(jnp.float32)
        first, second = new[:, :half], new[:, half:]
        cos, sin = cos_ref[0].astype(jnp.float32), sin_ref[0].astype(jnp.float32)
        rope_staged_ref[tokens, :half] = first * cos - second * sin
        rope_staged_ref[tokens, half:] = second * cos + first * sin

    position = _position(positions_ref, pl.program_id(0), P, S)
    token = _tile(position, pl.program_id(1), P=P, S=S, rows=rows) * rows - position  # that the tile's first row is for
    staged = latent_staged_ref.shape[0]
    shift = jnp.where(token > 0, staged - token, -token)  # that brings that token first
    for ref, before_ref, staged_ref in (
        (latent_ref, latent_before_ref, latent_staged_ref),
        (rope_ref, rope_before_ref, rope_staged_ref),
    ):
        of_row = token + jax.lax.broadcasted_iota(jnp.int32, ref.shape[1:], 0)
        new = (of_row >= 0) & (of_row < P)
        rolled = pltpu.roll(staged_ref[...], shift, 0)[:rows].astype(ref.dtype)
        ref[0] = jnp.where(new, rolled, before_ref[0])


def rope_append(
    latent_new: Float[Array, "B P C"],
    rope_new: Float[Array, "B P R"],
    latent: Float[Array, "B S C"],
    rope: Float[Array, "B S R"],
    positions: Int[Array, " B"],
    cos: Float[Array, "B P half"],
    sin: Float[Array, "B P half"],
) -> tuple[Float[Array, "B S C"], Float[Array, "B S R"]]:
    (B, P, C), R, S = latent_new.shape, rope_new.shape[2], latent.shape[1]
    rows = min(S, tile_rows(latent.dtype, rope.dtype))
    staged = pl.cdiv(max(P, rows), 8) * 8

    def of_row(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, P, width), lambda b, step, positions_ref: (b, 0, 0))

    def tile(width: int) -> pl.BlockSpec:
        def index(b: Any, step: Any, positions_ref: Any) -> tuple[Any, Any, int]:
            return b, _tile(_position(positions_ref, b, P, S), step, P=P, S=S, rows=rows), 0

        return pl.BlockSpec((1, rows, width), index)

    latent, rope = pl.pallas_call(
        functools.partial(_rope_append_kernel, S=S),
        out_shape=[jax.ShapeDtypeStruct(latent.shape, latent.dtype), jax.ShapeDtypeStruct(rope.shape, rope.dtype)],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            # P tokens that start on a tile's last row reach so many tiles.
            grid=(B, pl.cdiv(P + rows - 1, rows)),
            in_specs=[of_row(C), of_row(R), of_row(R // 2), of_row(R // 2), tile(C), tile(R)],
            out_specs=[tile(C), tile(R)],
            scratch_shapes=[pltpu.VMEM((staged, width), jnp.float32) for width in (C, R)],
        ),
        input_output_aliases={5: 0, 6: 1},  # counted with the scalars: the caches are written in place
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="rope_append",
    )(positions.astype(jnp.int32), latent_new, rope_new, cos, sin, latent, rope)
    return latent, rope
