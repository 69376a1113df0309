"""The kernels' backward pass: a slab of the vocabulary at a time, whose logits' gradients a kernel recomputes.

Row by row the loss depends on logits z through log p_y, the entropy H = −Σ p log p and the log-sum-exp L. With their
cotangents g, h and l,

    dz_v = [v = y] g + p_v (l − g − h (log p_v + H)) = [v = y] g + p_v (constant + slope log p_v)

Both gradients are matrix products with dz, and dz comes from a third. A slab of dz, [M, width], is written once in the
dtype of the hidden states and read by the two products, which are XLA's: three products in all, which is the least that
recomputing leaves.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob.partials import varying_as

# A slab of dz, in device memory. It is also kept to a sixteenth of the vocabulary, for few rows.
SLAB_BYTES = 128 << 20
# Slabs are whole tiles of every kernel, so that each begins at one.
SLAB_STEP = 1024


class RowCotangents(NamedTuple):
    """What a row's dz is made of besides its logits, in float32. A row that does not count has zeros everywhere.

    Attributes:
        targets_M: ids in this slice of the vocabulary; −1 where the target is elsewhere.
        lse_M: log-sum-exp over the whole vocabulary.
        target_M: g / temperature.
        constant_M: (l − g − h H) / temperature.
        slope_M: −h / temperature.
    """

    targets_M: Int[Array, " M"]
    lse_M: Float[Array, " M"]
    target_M: Float[Array, " M"]
    constant_M: Float[Array, " M"]
    slope_M: Float[Array, " M"]


# Takes hidden states, kernel, the slab's first id as an array [1] and its width, rows and temperature; gives dz
# [M, width] in the dtype of the hidden states.
LogitGradients = Callable[..., Array]


def product(spec: str, a: Array, b: Array) -> Array:
    """A matrix product in float32; of float32 arrays, in float32 throughout, where a device would take fewer bits."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.einsum(spec, a, b, precision=precision, preferred_element_type=jnp.float32)


def slab_width(M: int, V: int, itemsize: int) -> int:
    """Columns of a slab: whole steps, or all of a vocabulary that is no wider than one."""
    most = min(SLAB_BYTES // max(M * itemsize, 1), V // 16)
    return min(V, max(SLAB_STEP, most // SLAB_STEP * SLAB_STEP))


def backward(
    logit_gradients: LogitGradients,
    hidden_MD: Float[Array, "M D"],
    kernel_DV: Float[Array, "D V"],
    rows: RowCotangents,
    *,
    temperature: float,
    kernel_dtype: jnp.dtype,
) -> tuple[Float[Array, "M D"], Float[Array, "D V"]]:
    """Gradients of hidden states, in float32, and of the kernel, in `kernel_dtype`: its sum over rows is one product."""
    M, V = hidden_MD.shape[0], kernel_DV.shape[1]
    width = slab_width(M, V, hidden_MD.dtype.itemsize)

    def add_slab(start: Array, width: int, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        d_hidden_MD, d_kernel_DV = sums
        d_logits = logit_gradients(hidden_MD, kernel_DV, start[None], width, rows, temperature=temperature)
        slab = jax.lax.dynamic_slice_in_dim(kernel_DV, start, width, axis=1)
        d_slab = product("MD,MW->DW", hidden_MD, d_logits).astype(kernel_dtype)
        return (
            d_hidden_MD + product("MW,DW->MD", d_logits, slab),
            jax.lax.dynamic_update_slice_in_dim(d_kernel_DV, d_slab, start, axis=1),
        )

    sums = (
        varying_as(jnp.zeros(hidden_MD.shape, jnp.float32), hidden_MD, kernel_DV, rows.targets_M),
        varying_as(jnp.zeros(kernel_DV.shape, kernel_dtype), hidden_MD, kernel_DV, rows.targets_M),
    )
    whole = V // width
    sums = jax.lax.fori_loop(0, whole, lambda i, sums: add_slab(jnp.int32(i * width), width, sums), sums)
    if whole * width < V:
        sums = add_slab(jnp.int32(whole * width), V - whole * width, sums)
    return sums
