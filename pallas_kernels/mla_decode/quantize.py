"""A cache of latents in 8 bits: half the bytes that decoding reads.

FlashMLA's layout of a token is 656 bytes: 512 of float8_e4m3fn, 4 float32 scales (one for 128 latents) and 64 rotary
numbers in bfloat16, against 1,152 bytes all in bfloat16. Here the three stand in arrays of their own. The rotary keys stay
as they are: they carry the position, and their error would not be averaged over a tile.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

QUANTIZED_DTYPES = ("int8", "float8_e4m3fn")


def quantize_latent(
    latent: Float[Array, "... C"], dtype: str | jnp.dtype, tile: int = 128
) -> tuple[Num[Array, "... C"], Float[Array, "... Z"]]:
    """Scales each tile of a slot so that its greatest magnitude is the greatest number of `dtype`.

    Args:
        latent: latents, in any leading dimensions.
        dtype: int8 or float8_e4m3fn.
        tile: neighbouring elements that share a scale; divides C.

    Returns:
        The quantized latents, and float32 scales of which there are Z = C // tile a slot: latent ~ quantized * scale. A
        tile of zeros has scale 0, and so stays exactly zero.

    Raises:
        ValueError: another dtype, or a tile that does not divide C.
    """
    dtype, C = jnp.dtype(dtype), latent.shape[-1]
    if dtype.name not in QUANTIZED_DTYPES:
        raise ValueError(f"quantize_latent: dtype must be one of {', '.join(QUANTIZED_DTYPES)}, not {dtype.name}.")
    if tile < 1 or C % tile:
        raise ValueError(f"quantize_latent: tile must divide the latents' width, and {tile} does not divide {C}.")
    integer = jnp.issubdtype(dtype, jnp.integer)
    greatest = float(jnp.iinfo(dtype).max if integer else jnp.finfo(dtype).max)
    tiles = latent.astype(jnp.float32).reshape(*latent.shape[:-1], C // tile, tile)
    scales = jnp.max(jnp.abs(tiles), axis=-1) / greatest
    scaled = tiles / jnp.where(scales == 0, 1.0, scales)[..., None]
    if integer:
        scaled = jnp.round(scaled)
    # Division may overshoot by a rounding error, and float8_e4m3fn has no infinity: past its greatest number comes NaN.
    return jnp.clip(scaled, -greatest, greatest).astype(dtype).reshape(latent.shape), scales
