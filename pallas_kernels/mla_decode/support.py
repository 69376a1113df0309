"""What each implementation of MLA decoding cannot serve: from shapes, dtypes and options alone."""

from typing import Any


def gpu_triton_refuses(
    q_latent: Any, q_rope: Any, latent: Any, rope: Any, lengths: Any, *,
    scale: float, mask: Any = None, latent_scales: Any = None, num_splits: int | None = None,
) -> str | None:  # fmt: skip
    return _triton_shapes(q_latent, q_rope, mask, latent_scales)


def gpu_triton_refuses_paged(
    q_latent: Any, q_rope: Any, latent_pages: Any, rope_pages: Any, block_table: Any, lengths: Any, *,
    scale: float, mask: Any = None, latent_scales: Any = None, num_splits: int | None = None,
) -> str | None:  # fmt: skip
    return _triton_shapes(q_latent, q_rope, mask, latent_scales)


def _triton_shapes(q_latent: Any, q_rope: Any, mask: Any, latent_scales: Any) -> str | None:
    P, C, R = q_latent.shape[1], q_latent.shape[-1], q_rope.shape[-1]
    if C > 512 or R > 128:
        return f"latents of width {C} and rotary keys of width {R} exceed 512 and 128, which one program holds."
    if mask is not None and P > 64:
        return f"a mask of {P} new tokens exceeds 64, the bits of a word."
    if latent_scales is not None and (tile := C // latent_scales.shape[-1]) & (tile - 1):
        return f"scales of {tile} latents each: the number must be a power of two."
    return None


# What a program of the Mosaic kernel takes at a time, and the shared memory of an H200 that one may have.
MOSAIC_WIDTHS = (128, 256, 512)
MOSAIC_TILE = 64
MOSAIC_SHARED_BYTES = 227 * 1024


def gpu_mosaic_refuses(
    q_latent: Any, q_rope: Any, latent: Any, rope: Any, lengths: Any, *,
    scale: float, mask: Any = None, latent_scales: Any = None, num_splits: int | None = None,
) -> str | None:  # fmt: skip
    C, R, S = q_latent.shape[-1], q_rope.shape[-1], latent.shape[1]
    dtypes = {array.dtype.name for array in (q_latent, q_rope, latent, rope)}
    if mask is not None:
        return "a mask is given, and this kernel is causal only."
    if latent_scales is not None:
        return "the latents are quantized."
    if len(dtypes) > 1 or not dtypes <= {"bfloat16", "float16"}:
        return f"queries and cache must share bfloat16 or float16, and are {', '.join(sorted(dtypes))}."
    if C not in MOSAIC_WIDTHS:
        return f"latents must be {', '.join(map(str, MOSAIC_WIDTHS))} wide, and are {C}."
    if R % MOSAIC_TILE:
        return f"rotary keys must be a multiple of {MOSAIC_TILE} wide, and are {R}."
    if S == 0 or S % MOSAIC_TILE:
        return f"the cache must have a multiple of {MOSAIC_TILE} slots, and has {S}."
    # The queries and two buffers of keys, then the weights; a kilobyte for a vector and barriers.
    shared = 2 * MOSAIC_TILE * (3 * (C + R) + MOSAIC_TILE) + 1024
    if shared > MOSAIC_SHARED_BYTES:
        return f"latents of width {C} and rotary keys of width {R} take {shared} bytes of shared memory, of 232448."
    return None


def _float16(*arrays: Any) -> str | None:
    return "float16 is not multiplied by a TPU." if any(array.dtype == "float16" for array in arrays) else None


def tpu_refuses(
    q_latent: Any, q_rope: Any, latent: Any, rope: Any, lengths: Any, *,
    scale: float, mask: Any = None, latent_scales: Any = None, num_splits: int | None = None,
) -> str | None:  # fmt: skip
    return _float16(q_latent, latent, rope)


def tpu_refuses_paged(
    q_latent: Any, q_rope: Any, latent_pages: Any, rope_pages: Any, block_table: Any, lengths: Any, *,
    scale: float, mask: Any = None, latent_scales: Any = None, num_splits: int | None = None,
) -> str | None:  # fmt: skip
    return _float16(q_latent, latent_pages, rope_pages)
