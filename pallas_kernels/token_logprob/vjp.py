"""Log-probs, entropies and log-sum-exps with their gradients, over one device's vocabulary or a mesh axis of slices.

The gradient is written out rather than left to JAX for three reasons. With the log-sum-exp saved it needs one pass over
recomputed logits. The kernel's gradient is summed in float32. And a row without a cotangent is left out before it is
multiplied, so that whatever stands in an unused row cannot reach the kernel's gradient as 0 · NaN.

Collectives. A slice's logits need the log-sum-exp of the whole vocabulary and nothing else of other slices. JAX has two
ways to differentiate inside `shard_map`. With `check_vma=True` outputs are equal on all devices of the axis and so are
their cotangents: the gradient of the hidden states, which is a sum over slices, is added up here. With `check_vma=False`
JAX takes the cotangents of an output as parts of a sum, and those of an input likewise (psum transposes to psum): the
cotangents are added up here, and `shard_map` adds up the gradient of the hidden states.
"""

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob.partials import Partials, checks_types, merge_over
from pallas_kernels.token_logprob.slabs import RowCotangents


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What is static: the module that computes, and the op's options."""

    module: str
    temperature: float
    top_n: int
    vocab_axis: str | None


Outputs = tuple[Array, Array, Array, Array, Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def score(
    options: Options, hidden_MD: Float[Array, "M D"], kernel_DV: Float[Array, "D V"], targets_M: Int[Array, " M"]
) -> Outputs:
    """Log-probs, entropies, log-sum-exps, and the greatest log-probs with their ids, which carry no gradient."""
    return forward(options, hidden_MD, kernel_DV, targets_M)


def forward(options: Options, hidden_MD: Array, kernel_DV: Array, targets_M: Array) -> Outputs:
    """What `score` gives."""
    V = kernel_DV.shape[1]
    ids_before, vocabulary = _place(options, V)
    known_M = (targets_M >= 0) & (targets_M < vocabulary)
    local_M = _in_slice(options, targets_M, V)
    parts: Partials = importlib.import_module(options.module).forward(
        hidden_MD, kernel_DV.astype(hidden_MD.dtype), local_M, temperature=options.temperature, top_n=options.top_n
    )
    if options.vocab_axis is not None:
        parts = parts._replace(top_ids=parts.top_ids + ids_before)
        parts = merge_over(options.vocab_axis, parts, options.top_n)
    # Differences from the greatest logit: a sum with it would lose the digits that large logits have not.
    log_total_M = jnp.log(parts.total)
    logprobs_M = jnp.where(known_M, parts.target - parts.greatest - log_total_M, jnp.nan)
    entropy_M = log_total_M - parts.weighted / parts.total
    lse_M = parts.greatest + log_total_M
    top_logprobs = parts.top_logits - parts.greatest[:, None] - log_total_M[:, None]
    return logprobs_M, entropy_M, lse_M, top_logprobs, parts.top_ids


def _place(options: Options, V: int) -> tuple[Array | int, int]:
    """The ids before this slice of the vocabulary, and how many there are in all."""
    if options.vocab_axis is None:
        return 0, V
    return V * jax.lax.axis_index(options.vocab_axis), V * jax.lax.axis_size(options.vocab_axis)


def _in_slice(options: Options, targets_M: Array, V: int) -> Array:
    """Targets by their place in this slice; −1 where they are in another."""
    local_M = targets_M - _place(options, V)[0]
    return jnp.where((local_M >= 0) & (local_M < V), local_M, -1)


def gradients(
    options: Options,
    hidden_MD: Array,
    kernel_DV: Array,
    targets_M: Array,
    outputs: tuple[Array, Array],
    cotangents: tuple[Array, Array, Array],
    kernel_dtype: jnp.dtype,
) -> tuple[Float[Array, "M D"], Float[Array, "D V"]]:
    """This slice's part of the gradient of the hidden states, in float32, and the gradient of its kernel.

    Args:
        options: those of `forward`.
        hidden_MD: what `forward` took, as the next two.
        kernel_DV: this device's slice.
        targets_M: ids in the whole vocabulary.
        outputs: entropies and log-sum-exps that `forward` gave.
        cotangents: of log-probs, entropies and log-sum-exps.
        kernel_dtype: of the kernel's gradient.
    """
    entropy_M, lse_M = outputs
    d_logprobs_M, d_entropy_M, d_lse_M = cotangents
    local_M = _in_slice(options, targets_M, kernel_DV.shape[1])
    counts_M = (d_logprobs_M != 0) | (d_entropy_M != 0) | (d_lse_M != 0)

    def of_those_that_count(values: Array) -> Array:
        return jnp.where(counts_M, values, 0)

    rows = RowCotangents(
        targets_M=jnp.where(counts_M, local_M, -1),
        lse_M=of_those_that_count(lse_M),
        target_M=d_logprobs_M / options.temperature,
        constant_M=of_those_that_count(d_lse_M - d_logprobs_M - d_entropy_M * entropy_M) / options.temperature,
        slope_M=-d_entropy_M / options.temperature,
    )
    return importlib.import_module(options.module).backward(
        jnp.where(counts_M[:, None], hidden_MD, 0), kernel_DV.astype(hidden_MD.dtype), rows,
        temperature=options.temperature, kernel_dtype=kernel_dtype,
    )  # fmt: skip


def _forward(options: Options, hidden_MD: Array, kernel_DV: Array, targets_M: Array) -> tuple[Outputs, tuple[Array, ...]]:
    outputs = forward(options, hidden_MD, kernel_DV, targets_M)
    return outputs, (hidden_MD, kernel_DV, targets_M, outputs[1], outputs[2])


def _backward(options: Options, saved: tuple[Array, ...], cotangents: Outputs) -> tuple[Array, Array, None]:
    hidden_MD, kernel_DV, targets_M, entropy_M, lse_M = saved
    given = cotangents[:3]
    adds_here = options.vocab_axis is not None and checks_types(options.vocab_axis)
    if options.vocab_axis is not None and not adds_here:
        given = jax.lax.psum(given, options.vocab_axis)
    d_hidden_MD, d_kernel_DV = gradients(
        options, hidden_MD, kernel_DV, targets_M, (entropy_M, lse_M), given, kernel_DV.dtype
    )
    if adds_here:
        d_hidden_MD = jax.lax.psum(d_hidden_MD, options.vocab_axis)
    return d_hidden_MD.astype(hidden_MD.dtype), d_kernel_DV, None


score.defvjp(_forward, _backward)
