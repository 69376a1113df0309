"""Attention for training and prefill: softmax(q k^T) v without the matrix of weights, and its gradients."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.flash_attention import reference, vjp

__all__ = ["FLASH_ATTENTION", "flash_attention"]


def _too_wide_for_triton(
    query: Any, key: Any, value: Any, *, scale: float, causal: bool, lengths: Any, segments: Any
) -> str | None:
    H, HV = query.shape[-1], value.shape[-1]
    if H > 192 or HV > 128:
        return f"heads of {H} and values of {HV} numbers exceed 192 and 128, which a program's registers hold."
    return None


def _float16_on_tpu(
    query: Any, key: Any, value: Any, *, scale: float, causal: bool, lengths: Any, segments: Any
) -> str | None:
    return "it is float16, which a TPU does not multiply." if query.dtype == jnp.float16 else None


def _without_tokamax(
    query: Any, key: Any, value: Any, *, scale: float, causal: bool, lengths: Any, segments: Any
) -> str | None:
    return "it is wrapped without lengths." if lengths is not None else None


FLASH_ATTENTION = (
    Implementation(
        name="gpu_triton", platform="gpu", module="pallas_kernels.flash_attention.gpu_triton", function="flash_attention",
        package="jax_triton", refuses=_too_wide_for_triton,
    ),
    Implementation(
        name="tpu", platform="tpu", module="pallas_kernels.flash_attention.tpu", function="flash_attention",
        refuses=_float16_on_tpu,
    ),
    Implementation(
        name="tokamax", platform="gpu", module="pallas_kernels.flash_attention.tokamax", function="flash_attention",
        package="tokamax", by_default=False, refuses=_without_tokamax,
    ),
    Implementation(name=REFERENCE, module="pallas_kernels.flash_attention.reference", function="flash_attention"),
)  # fmt: skip


def flash_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K Hv"],
    *,
    scale: float,
    causal: bool = True,
    lengths: Int[Array, " B"] | None = None,
    segments: Int[Array, "B T"] | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B T N"]]:
    """softmax(scale q k^T) v and the log of the softmax's sum (FlashAttention-2, arXiv 2307.08691).

    Query head n reads key/value head n // (N / K). Both results are differentiable. A query that sees nothing gives out 0,
    lse -1e30 and no gradient. Products accumulate and the softmax runs in float32.

    Args:
        query: the queries, not scaled.
        key: the keys.
        value: the values, whose width Hv may differ from H.
        scale: multiplies the logits, 1/sqrt(H) as a rule.
        causal: query t sees key s only if s <= t, and T equals S.
        lengths: keys at and past a row's length are hidden, whatever memory holds there. Where T equals S, the queries there
            see nothing.
        segments: numbers of the sequences packed into a row: a query sees the keys of its own only, and T equals S.
        impl: forces an implementation: gpu_triton, tpu, tokamax or reference.

    Returns:
        out, in the dtype of the queries, and lse = log(sum(exp(logits))), in float32.

    Raises:
        ValueError: the shapes or dtypes do not fit together, or `impl` does not serve them.
        ModuleNotFoundError: `impl` needs a package that is not installed.
    """
    _check(query, key, value, causal, lengths, segments)
    options = {"scale": scale, "causal": causal, "lengths": lengths, "segments": segments}
    chosen = choose("flash_attention", FLASH_ATTENTION, impl, query, key, value, **options)
    if chosen.name == REFERENCE:
        return reference.flash_attention(query, key, value, scale=scale, causal=causal, lengths=lengths, segments=segments)
    if chosen.name == "tokamax":
        return chosen.load()(query, key, value, **options)
    return vjp.flash_attention(chosen.module, scale, causal, query, key, value, lengths, segments)


def _check(query: Any, key: Any, value: Any, causal: bool, lengths: Any, segments: Any) -> None:
    def refuse(rule: str, remedy: str) -> ValueError:
        given = f"query {query.shape}, key {key.shape}, value {value.shape}"
        return ValueError(f"flash_attention: {rule}; got {given}: {remedy}")

    if not (query.ndim == key.ndim == value.ndim == 4):
        raise refuse("query, key and value have four dimensions [rows, tokens, heads, width]", "reshape them.")
    B, T, N, H = query.shape
    S, K = key.shape[1:3]
    if 0 in (*query.shape, *key.shape, *value.shape):
        raise refuse("no dimension is empty", "leave out the call where there is nothing to attend.")
    if key.shape[0] != B or key.shape[3] != H or value.shape[:3] != key.shape[:3]:
        raise refuse("they agree in rows, key and value in tokens and heads, query and key in width", "check the layout.")
    if K == 0 or N % K:
        raise refuse(f"{N} query heads are a multiple of {K} key heads", "repeat or drop heads.")
    if causal and T != S:
        raise refuse(f"causal attention has as many queries as keys, not {T} and {S}", "pass causal=False and lengths.")
    if segments is not None and (T != S or segments.shape != (B, T)):
        raise refuse(
            f"segments {segments.shape} number the tokens of queries and keys alike, [{B}, {T}]", "pass one for each."
        )
    if lengths is not None and lengths.shape != (B,):
        raise refuse(f"lengths {lengths.shape} are one number for each of {B} rows", "pass that many.")
    if not (query.dtype == key.dtype == value.dtype and query.dtype in (jnp.float32, jnp.bfloat16, jnp.float16)):
        raise refuse(
            f"dtypes are the same and floating, not {query.dtype}, {key.dtype} and {value.dtype}", "cast them to bfloat16."
        )
    for name, array in (("lengths", lengths), ("segments", segments)):
        if array is not None and not jnp.issubdtype(array.dtype, jnp.integer):
            raise refuse(f"{name} are integers, not {array.dtype}", "cast them to int32.")
