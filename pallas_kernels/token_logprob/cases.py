"""The shapes that log-probs are checked on: a training microbatch scored, and scored and differentiated."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.cases import Arrays, Case
from pallas_kernels.token_logprob import TOKEN_LOGPROB, token_logprob

# Rows that `expected` computes, and columns of the kernel's gradient.
LEADING = 8
LEADING_COLUMNS = 4096
# The other rows' weight in the sum that is differentiated: they cost what any row costs, and do not show in the kernel's
# gradient.
SLIGHT = 1e-9


def _fill(generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...]) -> Arrays:
    """Standard normal hidden states, a kernel that gives logits of standard deviation 4, and any ids,
    those of the leading rows within the leading columns."""
    hidden, kernel, targets = arguments
    ids = generator.integers(0, kernel.shape[1], targets.shape, dtype=np.int32)
    ids[:LEADING] %= LEADING_COLUMNS
    return (
        generator.standard_normal(hidden.shape, np.float32).astype(hidden.dtype),
        (generator.standard_normal(kernel.shape, np.float32) * (4 / hidden.shape[1] ** 0.5)).astype(kernel.dtype),
        ids,
    )


def _log_probs(hidden: np.ndarray, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs and log-sum-exps of the leading rows, with the kernel taken in parts for want of memory."""
    leading = hidden[:LEADING].astype(np.float64)
    parts = range(0, kernel.shape[1], 16384)
    logits = np.concatenate([leading @ kernel[:, i : i + 16384].astype(np.float64) for i in parts], axis=1)
    greatest = logits.max(1, keepdims=True)
    lse = greatest + np.log(np.exp(logits - greatest).sum(1, keepdims=True))
    return logits - lse, lse[:, 0]


def _expected(hidden: np.ndarray, kernel: np.ndarray, targets: np.ndarray, *, top_n: int) -> tuple[np.ndarray, ...]:
    log_probs, lse = _log_probs(hidden, kernel)
    scored = np.take_along_axis(log_probs, targets[:LEADING, None], axis=1)[:, 0]
    top = -np.sort(-log_probs, axis=1)[:, :top_n]
    return scored, -(np.exp(log_probs) * log_probs).sum(1), lse, top


def _run(hidden: Any, kernel: Any, targets: Any, *, top_n: int, impl: str | None) -> tuple[Any, ...]:
    # Ids are left out: where two logits are equal but for their rounding, either is right.
    return tuple(token_logprob(hidden, kernel, targets, top_n=top_n, impl=impl)[:4])


def _expected_gradients(hidden: np.ndarray, kernel: np.ndarray, targets: np.ndarray) -> tuple[Any, ...]:
    log_probs, _ = _log_probs(hidden, kernel)
    d_logits = -np.exp(log_probs)
    d_logits[np.arange(len(d_logits)), targets[:LEADING]] += 1
    parts = range(0, kernel.shape[1], 16384)
    d_hidden = sum(d_logits[:, i : i + 16384] @ kernel[:, i : i + 16384].astype(np.float64).T for i in parts)
    d_kernel = hidden[:LEADING].astype(np.float64).T @ d_logits[:, :LEADING_COLUMNS]
    return np.take_along_axis(log_probs, targets[:LEADING, None], axis=1)[:, 0], d_hidden, d_kernel


def _run_gradients(hidden: Any, kernel: Any, targets: Any, *, impl: str | None) -> tuple[Any, ...]:
    """Log-probs, and the gradients of a weighted sum of them for the hidden states and the kernel."""
    weights = jnp.where(jnp.arange(hidden.shape[0]) < LEADING, 1.0, SLIGHT)

    def total(hidden: Any, kernel: Any) -> tuple[Any, Any]:
        logprobs = token_logprob(hidden, kernel, targets, impl=impl).logprobs
        return jnp.sum(weights * logprobs), logprobs

    (_, logprobs), (d_hidden, d_kernel) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(hidden, kernel)
    return logprobs, d_hidden, d_kernel


def _case(M: int, D: int, V: int, dtype: str, *, top_n: int = 0, backward: bool = False) -> Case:
    hidden, kernel = jax.ShapeDtypeStruct((M, D), jnp.dtype(dtype)), jax.ShapeDtypeStruct((D, V), jnp.dtype(dtype))
    itemsize = jnp.dtype(dtype).itemsize
    run: Callable[..., Any] = _run_gradients if backward else functools.partial(_run, top_n=top_n)
    once = (M * D + D * V) * itemsize
    return Case(
        op="token_logprob", label=f"M={M} D={D} V={V}" + (f" top_n={top_n}" if top_n else ""), dtype=dtype,
        table=TOKEN_LOGPROB, arguments=(hidden, kernel, jax.ShapeDtypeStruct((M,), jnp.int32)), run=run,
        expected=_expected_gradients if backward else functools.partial(_expected, top_n=top_n),
        # Backward, hidden states and kernel are read again and their gradients written, and logits are recomputed.
        bytes=(3 if backward else 1) * once + M * (16 + 8 * top_n), flops=(8 if backward else 2) * M * D * V,
        fill=_fill, backward=backward,
    )  # fmt: skip


CASES = (
    _case(8192, 2048, 131072, "bfloat16"),
    _case(8192, 2048, 131072, "bfloat16", backward=True),
    _case(8192, 2048, 131072, "bfloat16", top_n=8),
    _case(8192, 2048, 102400, "bfloat16", backward=True),
    _case(8191, 2000, 50257, "bfloat16", top_n=4),
    _case(512, 512, 32768, "float32", backward=True),
)
