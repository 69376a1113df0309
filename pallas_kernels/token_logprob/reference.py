"""Log-probs, entropies and their gradients in plain jnp, a chunk of rows at a time, as the kernels must compute them."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob.partials import Partials, varying_as
from pallas_kernels.token_logprob.slabs import RowCotangents, product

# Float32 logits that are alive at a time.
CHUNK_BYTES = 64 << 20


def _rows_at_a_time(M: int, V: int) -> int:
    return min(M, max(8, CHUNK_BYTES // (4 * V)))


def _over_chunks(body: Any, carry: Any, rows: Any, chunk: int | None, V: int) -> tuple[Any, Any]:
    """`lax.scan` over chunks of the leading dimension of `rows`. Zeros fill the last chunk, and are cut off again."""
    M = jax.tree.leaves(rows)[0].shape[0]
    chunk = min(M, chunk) if chunk else _rows_at_a_time(M, V)
    chunks = -(-M // max(chunk, 1))
    if chunks <= 1:
        return body(carry, rows)

    def split(values: Array) -> Array:
        padding = [(0, chunks * chunk - M)] + [(0, 0)] * (values.ndim - 1)
        return jnp.pad(values, padding).reshape(chunks, chunk, *values.shape[1:])

    carry, stacked = jax.lax.scan(body, carry, jax.tree.map(split, rows))
    return carry, jax.tree.map(lambda values: values.reshape(chunks * chunk, *values.shape[2:])[:M], stacked)


def forward(
    hidden_MD: Float[Array, "M D"], kernel_DV: Float[Array, "D V"], targets_M: Int[Array, " M"],
    *, temperature: float, top_n: int, chunk: int | None = None,
) -> Partials:  # fmt: skip
    """See `Partials`; `chunk` rows of logits are alive at a time."""
    V = kernel_DV.shape[1]

    def body(carry: None, rows: tuple[Array, Array]) -> tuple[None, Partials]:
        hidden_MD, targets_M = rows
        logits_MV = product("MD,DV->MV", hidden_MD, kernel_DV) / temperature
        greatest_M = jnp.max(logits_MV, axis=-1)
        shifted_MV = logits_MV - greatest_M[:, None]
        exp_MV = jnp.exp(shifted_MV)
        is_target_MV = jnp.arange(V) == targets_M[:, None]
        return carry, Partials(
            greatest_M,
            jnp.sum(exp_MV, axis=-1),
            jnp.sum(exp_MV * shifted_MV, axis=-1),
            jnp.sum(jnp.where(is_target_MV, logits_MV, 0.0), axis=-1),
            *jax.lax.top_k(logits_MV, top_n),
        )

    return _over_chunks(body, None, (hidden_MD, targets_M), chunk, V)[1]


def backward(
    hidden_MD: Float[Array, "M D"], kernel_DV: Float[Array, "D V"], rows: RowCotangents,
    *, temperature: float, kernel_dtype: Any, chunk: int | None = None,
) -> tuple[Float[Array, "M D"], Float[Array, "D V"]]:  # fmt: skip
    """Gradients of hidden states, in float32, and of the kernel, summed in float32, in `kernel_dtype`."""
    V = kernel_DV.shape[1]

    def body(sum_DV: Array, rows: tuple[Array, RowCotangents]) -> tuple[Array, Array]:
        hidden_MD, given = rows
        log_probs_MV = product("MD,DV->MV", hidden_MD, kernel_DV) / temperature - given.lse_M[:, None]
        is_target_MV = jnp.arange(V) == given.targets_M[:, None]
        d_logits_MV = jnp.where(is_target_MV, given.target_M[:, None], 0.0)
        d_logits_MV += jnp.exp(log_probs_MV) * (given.constant_M[:, None] + given.slope_M[:, None] * log_probs_MV)
        d_logits_MV = d_logits_MV.astype(hidden_MD.dtype)
        d_hidden_MD = product("MV,DV->MD", d_logits_MV, kernel_DV)
        return sum_DV + product("MD,MV->DV", hidden_MD, d_logits_MV), d_hidden_MD

    zero_DV = varying_as(jnp.zeros(kernel_DV.shape, jnp.float32), hidden_MD, kernel_DV, rows.targets_M)
    d_kernel_DV, d_hidden_MD = _over_chunks(body, zero_DV, (hidden_MD, rows), chunk, V)
    return d_hidden_MD, d_kernel_DV.astype(kernel_dtype)
