"""Appending tokens to an MLA cache: the shared key's part rotated, both parts cast and written in place, in one kernel."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import REFERENCE, Implementation, choose

__all__ = ["ROPE_APPEND", "rope_append"]

# New tokens of one row that a TPU program stages in vector memory: buffers for input and a float32 copy.
TPU_STAGED_BYTES = 8 << 20


def tile_rows(*dtypes: Any) -> int:
    """Rows of a tile of TPU memory, that of the narrowest dtype."""
    return 8 * 4 // min(jnp.dtype(dtype).itemsize for dtype in dtypes)


def _nothing_to_write(latent_new: Any, rope_new: Any, latent: Any, *others: Any) -> str | None:
    return "there are no tokens or no slots." if 0 in (*latent_new.shape, *rope_new.shape, *latent.shape) else None


def _unfit_for_tpu(latent_new: Any, rope_new: Any, latent: Any, *others: Any) -> str | None:
    _, P, C = latent_new.shape
    if 12 * P * (C + rope_new.shape[-1]) > TPU_STAGED_BYTES:
        return f"{P} tokens a row exceed what a TPU program stages in vector memory; write a prompt as one slice."
    tile = tile_rows(latent.dtype, others[0].dtype)
    if latent.shape[1] > tile and latent.shape[1] % tile:
        return f"{latent.shape[1]} slots are not a multiple of {tile}, the rows of a tile: allocate some more."
    return _nothing_to_write(latent_new, rope_new, latent, *others)


ROPE_APPEND = (
    Implementation(
        name="gpu_triton", platform="gpu", module="pallas_kernels.rope_append.gpu_triton", function="rope_append",
        package="jax_triton", refuses=_nothing_to_write,
    ),
    Implementation(
        name="tpu", platform="tpu", module="pallas_kernels.rope_append.tpu", function="rope_append",
        refuses=_unfit_for_tpu,
    ),
    Implementation(name=REFERENCE, module="pallas_kernels.rope_append.reference", function="rope_append"),
)  # fmt: skip


def rope_append(
    latent_new: Float[Array, "B P C"],
    rope_new: Float[Array, "B P R"],
    latent: Float[Array, "B S C"],
    rope: Float[Array, "B S R"],
    positions: Int[Array, " B"],
    cos: Float[Array, "B P half"],
    sin: Float[Array, "B P half"],
    *,
    impl: str | None = None,
) -> tuple[Float[Array, "B S C"], Float[Array, "B S R"]]:
    """The caches with row b's token p in slot positions[b] + p, its rope part rotated (arXiv 2104.09864, half-split).

    Half-split: dimension i of the rope part turns with i + R/2, by the angle whose cosine and sine are given. The rotation
    is float32; what is written is rounded once, to the cache's dtype. A slot outside [0, S) is dropped, never clamped onto
    another; every other slot keeps its bits. The caches are written in place where they are donated (`jax.jit` with
    donate_argnums, or a loop's carry); XLA copies them first where the old ones are still needed.

    It is for decoding and is not differentiated: the kernels have no gradient, and `jax.grad` through them is an error.

    Args:
        latent_new: the new tokens' normed latents.
        rope_new: their shared keys, not rotated yet.
        latent: the cache of latents.
        rope: the cache of rotated keys.
        positions: the slot of each row's first new token; any integer dtype of 32 bits at most.
        cos: cosines of each new token's angles, as its position has them.
        sin: sines.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Raises:
        ValueError: shapes or dtypes do not suit, or `impl` cannot serve them.
    """
    _validate(latent_new, rope_new, latent, rope, positions, cos, sin)
    arguments = (latent_new, rope_new, latent, rope, positions, cos, sin)
    return choose("rope_append", ROPE_APPEND, impl, *arguments).load()(*arguments)


def _validate(*arguments: jax.Array) -> None:
    latent_new, rope_new, latent, _, positions, cos, sin = arguments
    if latent_new.ndim == rope_new.ndim == latent.ndim == 3:
        (B, P, C), R, S = latent_new.shape, rope_new.shape[2], latent.shape[1]
        wanted = ((B, P, C), (B, P, R), (B, S, C), (B, S, R), (B,), (B, P, R // 2), (B, P, R // 2))
        fits = R % 2 == 0 and tuple(a.shape for a in arguments) == wanted
    else:
        fits = False
    if not fits:
        raise ValueError(
            "rope_append takes latent_new [B, P, C], rope_new [B, P, R], latent [B, S, C], rope [B, S, R], positions [B], "
            f"cos and sin [B, P, R/2] with R even, got {', '.join(str(a.shape) for a in arguments)}: mend what differs."
        )
    if not jnp.issubdtype(positions.dtype, jnp.integer) or positions.dtype.itemsize > 4:
        raise ValueError(f"rope_append takes positions of an integer dtype of 32 bits at most, got {positions.dtype}: cast.")
    for name, array in zip(("latent_new", "rope_new", "latent", "rope", "cos", "sin"), (*arguments[:4], cos, sin)):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"rope_append takes floating-point {name}, got {array.dtype}: cast it first.")
