"""Log-probs and entropies of given tokens, computed so that the logits [B, T, V] never exist.

At V = 131072 the logits of 8 rows of 2048 tokens are 8 GiB in float32, and a plain backward pass holds several such
arrays at once. Here the vocabulary projection runs over chunks of positions, forward and backward, so that only
[B, chunk, V] is alive.

The backward pass is written out rather than left to `jax.checkpoint`, for three reasons. With the log-normaliser
saved it needs one pass over the recomputed logits in place of a softmax's several. The kernel's gradient is added up
over chunks in float32, also where the kernel is bfloat16. And a position without a cotangent is left out before it
is multiplied, so that whatever stands in an unused place cannot reach the kernel's gradient as 0 · NaN.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.parallel import LOGICAL_TO_MESH, on_shards, platform_of
from pallas_kernels import LogprobPasses

__all__ = ["TokenStats", "token_logprobs"]


class TokenStats(NamedTuple):
    """What `token_logprobs` gives, in nats and float32. Index 0 is 0: nothing comes before it to score it from.

    Attributes:
        logprobs_BT: log π of tokens[t] given the tokens before it.
        entropy_BT: entropy of the distribution that tokens[t] was scored under; it carries a gradient where that was
            asked for.
    """

    logprobs_BT: Float[Array, "B T"]
    entropy_BT: Float[Array, "B T"]


def token_logprobs(
    hidden_BTD: Float[Array, "B T D"],
    kernel_DV: Float[Array, "D V"],
    tokens_BT: Int[Array, "B T"],
    *,
    temperature: float = 1.0,
    chunk: int,
    entropy_gradient: bool = False,
    mesh: Mesh | None = None,
    kernels: bool = True,
) -> TokenStats:
    """Log-probs of `tokens_BT` under softmax(hidden · kernel / temperature), and the entropies.

    Args:
        hidden_BTD: hidden states after the final norm; tokens[t] is scored from hidden[t − 1]. Their dtype is that
            of the matmul's inputs; logits are float32 always.
        kernel_DV: the unembedding, cast to the dtype of `hidden_BTD`. Its gradient comes back in its own dtype.
        tokens_BT: the tokens. An id outside [0, V) gives NaN, which a mask removes and nothing else hides.
        temperature: the sampler's; a policy is scored at the temperature it was sampled at.
        chunk: positions projected at a time; [B, chunk, V] float32 is the peak. T or more is a single chunk.
        entropy_gradient: whether the entropies carry a gradient, for an entropy bonus; it costs no more memory.
        mesh: where the arrays lie: rows over data and fsdp, the vocabulary over tensor.
        kernels: whether a GPU or a TPU computes by kernels, tile by tile, where `chunk` has no say. A CPU computes by chunks
            always.

    Rows stay the leading axis of a chunk, so rows that are sharded stay where they are.

    Raises:
        ValueError: temperature or chunk is not positive.
    """
    if not 0.0 < temperature < float("inf"):
        raise ValueError(
            f"temperature is {temperature!r}, but it must be positive to score tokens: at 0 every log-prob is 0 or −∞; "
            "score greedy completions at 1"
        )
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}, but it must be at least 1: it is a number of positions")
    # All T positions are scored and the last, which has no next token, is dropped: T − 1 of them would seldom be a
    # whole number of chunks.
    targets_BT = jnp.pad(tokens_BT[:, 1:], ((0, 0), (0, 1)))
    placed = _kernels(mesh, kernel_DV) if kernels and platform_of(mesh) != "cpu" else None
    if placed is None:
        scored = _score(hidden_BTD, kernel_DV, targets_BT, temperature, chunk, entropy_gradient)
    else:
        scored = _score_by_kernels(placed, hidden_BTD, kernel_DV, targets_BT, temperature)
    logprobs_BT, entropy_BT = (jnp.pad(values_BT[:, :-1], ((0, 0), (1, 0))) for values_BT in scored)
    return TokenStats(logprobs_BT, entropy_BT if entropy_gradient else jax.lax.stop_gradient(entropy_BT))


def _logits(hidden_BTD: Array, kernel_DV: Array, temperature: float) -> Float[Array, "B T V"]:
    return jnp.einsum("BTD,DV->BTV", hidden_BTD, kernel_DV, preferred_element_type=jnp.float32) / temperature


def _is_target(targets_BT: Array, vocabulary: int) -> Bool[Array, "B T V"]:
    # A comparison that fuses into its reader. A gather along V would move logits between devices where V is
    # sharded, and a scatter would be its transpose.
    return jnp.arange(vocabulary) == targets_BT[..., None]


def _chunk_forward(hidden_BTD: Array, kernel_DV: Array, targets_BT: Array, temperature: float) -> tuple[Array, ...]:
    logits_BTV = _logits(hidden_BTD, kernel_DV, temperature)
    greatest_BT1 = jnp.max(logits_BTV, axis=-1, keepdims=True)
    shifted_BTV = logits_BTV - greatest_BT1
    exp_BTV = jnp.exp(shifted_BTV)
    total_BT = jnp.sum(exp_BTV, axis=-1)
    log_total_BT = jnp.log(total_BT)
    vocabulary = kernel_DV.shape[1]
    target_BT = jnp.sum(jnp.where(_is_target(targets_BT, vocabulary), shifted_BTV, 0.0), axis=-1)
    known_BT = (targets_BT >= 0) & (targets_BT < vocabulary)
    logprobs_BT = jnp.where(known_BT, target_BT - log_total_BT, jnp.nan)
    entropy_BT = log_total_BT - jnp.sum(exp_BTV * shifted_BTV, axis=-1) / total_BT
    return logprobs_BT, entropy_BT, log_total_BT + greatest_BT1[..., 0]


class _Saved(NamedTuple):
    """What the backward pass needs of each token besides its hidden state; `entropy_BT` and `entropy_cotangent_BT` are
    None where the entropy carries no gradient."""

    targets_BT: Array
    normaliser_BT: Array
    cotangent_BT: Array
    entropy_BT: Array | None
    entropy_cotangent_BT: Array | None


def _chunk_backward(
    hidden_BTD: Array, kernel_DV: Array, saved: _Saved, temperature: float
) -> tuple[Float[Array, "B T D"], Float[Array, "D V"]]:
    counts_BT = saved.cotangent_BT != 0
    if saved.entropy_cotangent_BT is not None:
        counts_BT |= saved.entropy_cotangent_BT != 0
    counts_BT1 = counts_BT[..., None]
    hidden_BTD = jnp.where(counts_BT1, hidden_BTD, 0)
    log_probs_BTV = _logits(hidden_BTD, kernel_DV, temperature) - saved.normaliser_BT[..., None]
    probs_BTV = jnp.exp(log_probs_BTV)
    one_hot_BTV = jnp.where(_is_target(saved.targets_BT, kernel_DV.shape[1]), 1.0, 0.0)
    scale_BT1 = (saved.cotangent_BT / temperature)[..., None]
    d_logits_BTV = (one_hot_BTV - probs_BTV) * scale_BT1
    if saved.entropy_BT is not None and saved.entropy_cotangent_BT is not None:
        # dH/dz_v = −p_v (log p_v + H)
        d_entropy_BTV = -probs_BTV * (log_probs_BTV + saved.entropy_BT[..., None])
        d_logits_BTV += d_entropy_BTV * (saved.entropy_cotangent_BT / temperature)[..., None]
    d_logits_BTV = jnp.where(counts_BT1, d_logits_BTV, 0.0).astype(hidden_BTD.dtype)
    d_hidden_BTD = jnp.einsum("BTV,DV->BTD", d_logits_BTV, kernel_DV, preferred_element_type=jnp.float32)
    d_kernel_DV = jnp.einsum("BTD,BTV->DV", hidden_BTD, d_logits_BTV, preferred_element_type=jnp.float32)
    return d_hidden_BTD.astype(hidden_BTD.dtype), d_kernel_DV


def _split(values: Array, chunk: int) -> Array:
    """[B, T, ...] -> [chunks, B, positions, ...]: as many chunks as `chunk` asks for, made equal, zeros at the end."""
    B, T = values.shape[:2]
    chunks = -(-T // chunk)
    positions = -(-T // chunks)
    padding = [(0, 0), (0, chunks * positions - T)] + [(0, 0)] * (values.ndim - 2)
    return jnp.moveaxis(jnp.pad(values, padding).reshape(B, chunks, positions, *values.shape[2:]), 1, 0)


def _join(values: Array, T: int) -> Array:
    """The inverse of `_split`."""
    return jnp.moveaxis(values, 0, 1).reshape(values.shape[1], -1, *values.shape[3:])[:, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _score(
    hidden_BTD: Array, kernel_DV: Array, targets_BT: Array, temperature: float, chunk: int, entropy_gradient: bool
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probs of targets[t] given hidden[t], and entropies."""
    return _score_forward(hidden_BTD, kernel_DV, targets_BT, temperature, chunk, entropy_gradient)[0]


def _score_forward(
    hidden_BTD: Array, kernel_DV: Array, targets_BT: Array, temperature: float, chunk: int, entropy_gradient: bool
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    T = targets_BT.shape[1]
    cast_DV = kernel_DV.astype(hidden_BTD.dtype)
    if chunk >= T:
        logprobs_BT, entropy_BT, normaliser_BT = _chunk_forward(hidden_BTD, cast_DV, targets_BT, temperature)
    else:

        def body(carry: None, xs: tuple[Array, Array]) -> tuple[None, tuple[Array, ...]]:
            return carry, _chunk_forward(xs[0], cast_DV, xs[1], temperature)

        _, stacked = jax.lax.scan(body, None, (_split(hidden_BTD, chunk), _split(targets_BT, chunk)))
        logprobs_BT, entropy_BT, normaliser_BT = (_join(values, T) for values in stacked)
    residuals = (hidden_BTD, kernel_DV, targets_BT, normaliser_BT, entropy_BT if entropy_gradient else None)
    return (logprobs_BT, entropy_BT), residuals


def _score_backward(
    temperature: float, chunk: int, entropy_gradient: bool, residuals: tuple[Any, ...], cotangents: tuple[Array, Array]
) -> tuple[Array, Array, None]:
    hidden_BTD, kernel_DV, targets_BT, normaliser_BT, entropy_BT = residuals
    saved = _Saved(targets_BT, normaliser_BT, cotangents[0], entropy_BT, cotangents[1] if entropy_gradient else None)
    T = targets_BT.shape[1]
    cast_DV = kernel_DV.astype(hidden_BTD.dtype)
    if chunk >= T:
        d_hidden_BTD, d_kernel_DV = _chunk_backward(hidden_BTD, cast_DV, saved, temperature)
    else:

        def body(sum_DV: Array, xs: tuple[Array, _Saved]) -> tuple[Array, Array]:
            d_hidden, d_kernel = _chunk_backward(xs[0], cast_DV, xs[1], temperature)
            return sum_DV + d_kernel, d_hidden

        zero_DV = jnp.zeros(kernel_DV.shape, jnp.float32)
        per_token = jax.tree.map(lambda values: _split(values, chunk), (hidden_BTD, saved))
        d_kernel_DV, stacked = jax.lax.scan(body, zero_DV, per_token)
        d_hidden_BTD = _join(stacked, T)
    return d_hidden_BTD, d_kernel_DV.astype(kernel_DV.dtype), None


_score.defvjp(_score_forward, _score_backward)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kernels:
    """Where kernels score: the mesh, and the axis that its vocabulary is split over, if there is one."""

    mesh: Mesh | None
    vocab_axis: str | None

    def passes(self, temperature: float) -> LogprobPasses:
        return LogprobPasses(temperature=temperature, vocab_axis=self.vocab_axis)


def _kernels(mesh: Mesh | None, kernel_DV: Array) -> _Kernels | None:
    """None where the mesh cannot split the vocabulary evenly: the chunks above are the way then."""
    axis = LOGICAL_TO_MESH["vocab"]
    assert axis is None or isinstance(axis, str)
    if mesh is None or axis is None or mesh.shape[axis] == 1:
        return _Kernels(mesh=mesh, vocab_axis=None)
    return None if kernel_DV.shape[1] % mesh.shape[axis] else _Kernels(mesh=mesh, vocab_axis=axis)


_ROWS_BT, _ROWS_BTD = ("rows", None), ("rows", None, None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 4))
def _score_by_kernels(
    kernels: _Kernels, hidden_BTD: Array, kernel_DV: Array, targets_BT: Array, temperature: float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probs of targets[t] given hidden[t], and entropies."""
    return _kernels_forward(kernels, hidden_BTD, kernel_DV, targets_BT, temperature)[0]


def _kernels_forward(
    kernels: _Kernels, hidden_BTD: Array, kernel_DV: Array, targets_BT: Array, temperature: float
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    def forward(hidden_BTD: Array, kernel_DV: Array, targets_BT: Array) -> tuple[Array, ...]:
        flat_MD = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
        found = kernels.passes(temperature).forward(flat_MD, kernel_DV, targets_BT.reshape(-1))
        return tuple(values_M.reshape(targets_BT.shape) for values_M in found)

    run = on_shards(forward, kernels.mesh, (_ROWS_BTD, (None, "vocab"), _ROWS_BT), (_ROWS_BT,) * 3)
    logprobs_BT, entropy_BT, lse_BT = run(hidden_BTD, kernel_DV.astype(hidden_BTD.dtype), targets_BT)
    return (logprobs_BT, entropy_BT), (hidden_BTD, kernel_DV, targets_BT, entropy_BT, lse_BT)


def _kernels_backward(
    kernels: _Kernels, temperature: float, saved: tuple[Array, ...], cotangents: tuple[Array, Array]
) -> tuple[Array, Array, None]:
    hidden_BTD, kernel_DV, targets_BT, entropy_BT, lse_BT = saved
    mesh = kernels.mesh
    row_axes = LOGICAL_TO_MESH["rows"] or ()
    scatter_axis = LOGICAL_TO_MESH["embed"]
    shards = 1 if mesh is None or scatter_axis is None else mesh.shape[scatter_axis]
    scatters = shards > 1 and kernel_DV.shape[0] % shards == 0

    def backward(hidden_BTD: Array, kernel_DV: Array, *per_token_BT: Array) -> tuple[Array, Array]:
        flat_MD = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])
        flat = [values_BT.reshape(-1) for values_BT in per_token_BT]
        d_flat_MD, d_kernel_DV = kernels.passes(temperature).backward(flat_MD, kernel_DV, *flat)
        if mesh is not None:
            if kernels.vocab_axis is not None:
                d_flat_MD = jax.lax.psum(d_flat_MD, kernels.vocab_axis)
            # Each device keeps the part of the sum over rows that its share of the parameters needs.
            if scatters:
                d_kernel_DV = jax.lax.psum_scatter(d_kernel_DV, scatter_axis, scatter_dimension=0, tiled=True)
            summed = tuple(axis for axis in row_axes if mesh.shape[axis] > 1 and not (scatters and axis == scatter_axis))
            if summed:
                d_kernel_DV = jax.lax.psum(d_kernel_DV, summed)
        return d_flat_MD.reshape(hidden_BTD.shape), d_kernel_DV

    inputs = (_ROWS_BTD, (None, "vocab"), *(_ROWS_BT,) * 5)
    run = on_shards(backward, mesh, inputs, (_ROWS_BTD, ("embed" if scatters else None, "vocab")))
    per_token = (targets_BT, entropy_BT, lse_BT, *cotangents)
    d_hidden_BTD, d_kernel_DV = run(hidden_BTD, kernel_DV.astype(hidden_BTD.dtype), *per_token)
    return d_hidden_BTD.astype(hidden_BTD.dtype), d_kernel_DV.astype(kernel_DV.dtype), None


_score_by_kernels.defvjp(_kernels_forward, _kernels_backward)
