"""Decode attention over a cache of grouped-query heads: few queries a row against all its keys and values."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Num

from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.gqa_decode import arguments, support
from pallas_kernels.merge import merge_lse

__all__ = ["GQA_DECODE", "GQA_DECODE_PAGED", "gqa_decode", "gqa_decode_paged", "gqa_decode_shared_prefix"]


def _table(function: str) -> tuple[Implementation, ...]:
    return (
        Implementation(
            name="gpu_triton", platform="gpu", module="pallas_kernels.gqa_decode.gpu_triton", function=function,
            package="jax_triton", refuses=support.refuses_gpu_triton,
        ),
        Implementation(
            name="tpu", platform="tpu", module="pallas_kernels.gqa_decode.tpu", function=function,
            refuses=support.refuses_tpu,
        ),
        Implementation(name=REFERENCE, module="pallas_kernels.gqa_decode.reference", function=function),
    )  # fmt: skip


GQA_DECODE = _table("gqa_decode")
GQA_DECODE_PAGED = _table("gqa_decode_paged")


def gqa_decode(
    query: Float[Array, "B P N H"],
    key: Num[Array, "B K S H"],
    value: Num[Array, "B K S Hv"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    key_scales: Float32[Array, "B K S"] | None = None,
    value_scales: Float32[Array, "B K S"] | None = None,
    num_splits: int | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B P N Hv"], Float32[Array, "B P N"]]:
    """softmax(scale * q k^T) v of each row's P newest tokens over its cache; query head n reads head n // (N / K).

    The keys and values of the P query tokens are in the cache already, in slots [length - P, length). Slots before them are
    seen by every query; query p sees slot length - P + j where mask[p, j]. Slots from the length on are seen by none. They,
    and any slot that no query of the row sees, may hold any finite numbers; the kernels bear NaN there as well. Decoding is
    not differentiated: the kernels have no gradients.

    Args:
        query: P = 1 in plain decoding; the drafted tokens in speculative decoding.
        key: in query's dtype, or int8 or float8_e4m3fn with scales.
        value: in key's dtype.
        lengths: tokens in each row's cache, the queries' own among them; clamped to [0, S].
        scale: multiplies q k^T, usually H ** -0.5.
        mask: which of the P newest tokens each query sees; causal by default. A tree of drafts needs its own.
        key_scales: what each slot's quantized key is multiplied by.
        value_scales: likewise.
        num_splits: parts into which a GPU cuts each row's cache, to be read side by side; chosen from the shapes by default.
            The result is the same.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Returns:
        The attention in query's dtype, and the log-sum-exp of each query's scaled logits, with which attentions over
        disjoint slots are merged (`merge_lse`). A query that sees nothing gets 0 and -1e30.

    Raises:
        ValueError: shapes or dtypes do not fit together, or a quantized cache comes without scales.
    """
    arguments.check(query, key, value, lengths, mask, key_scales, value_scales, num_splits)
    options = {
        "scale": scale, "mask": mask, "key_scales": key_scales, "value_scales": value_scales, "num_splits": num_splits,
    }  # fmt: skip
    operands = (query, key, value, lengths.astype(jnp.int32))
    return choose("gqa_decode", GQA_DECODE, impl, *operands, **options).load()(*operands, **options)


def gqa_decode_paged(
    query: Float[Array, "B P N H"],
    key_pages: Num[Array, "pages K page H"],
    value_pages: Num[Array, "pages K page Hv"],
    block_table: Int[Array, "B blocks"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    key_scales: Float32[Array, "pages K page"] | None = None,
    value_scales: Float32[Array, "pages K page"] | None = None,
    num_splits: int | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B P N Hv"], Float32[Array, "B P N"]]:
    """`gqa_decode` over a cache of pages: slot s of row b is slot s % page of page block_table[b, s // page].

    Args:
        query: as there.
        key_pages: pages that rows may share.
        value_pages: likewise.
        block_table: the pages of each row in order; entries past its length are not followed.
        lengths: clamped to [0, blocks * page].
        scale: as there, and so the rest.
        mask: which of the P newest tokens each query sees.
        key_scales: what each slot's quantized key is multiplied by.
        value_scales: likewise.
        num_splits: parts into which a GPU cuts each row's cache.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Returns:
        The attention and the log-sum-exp.

    Raises:
        ValueError: shapes or dtypes do not fit together, or a quantized cache comes without scales.
    """
    arguments.check(query, key_pages, value_pages, lengths, mask, key_scales, value_scales, num_splits)
    if block_table.ndim != 2 or block_table.shape[0] != query.shape[0] or not jnp.issubdtype(block_table.dtype, jnp.integer):
        raise ValueError(
            f"block_table must be integers [{query.shape[0]}, blocks], the pages of each row of query, but is "
            f"{block_table.dtype}{list(block_table.shape)}."
        )
    options = {
        "scale": scale, "mask": mask, "key_scales": key_scales, "value_scales": value_scales, "num_splits": num_splits,
    }  # fmt: skip
    operands = (query, key_pages, value_pages, block_table.astype(jnp.int32), lengths.astype(jnp.int32))
    return choose("gqa_decode_paged", GQA_DECODE_PAGED, impl, *operands, **options).load()(*operands, **options)


def gqa_decode_shared_prefix(
    query: Float[Array, "B P N H"],
    prefix_key: Float[Array, "A K S0 H"],
    prefix_value: Float[Array, "A K S0 Hv"],
    prefix_lengths: Int[Array, " A"],
    key: Float[Array, "B K S H"],
    value: Float[Array, "B K S Hv"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | Bool[Array, "P P"] | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B P N Hv"], Float32[Array, "B P N"]]:
    """`gqa_decode` where B / A samples of each of A prompts share the prompt's cache: row b continues prompt b // (B // A).

    The queries of a prompt's samples stand together as the rows of one matrix, so the prompt's keys and values are read once
    rather than once a sample. The two attentions are merged by their log-sum-exps.

    Args:
        query: as in `gqa_decode`.
        prefix_key: the prompts' keys.
        prefix_value: their values.
        prefix_lengths: tokens of each prompt; every query of its samples sees all of them. Clamped to [0, S0].
        key: each sample's own keys, those of the P query tokens last.
        value: likewise.
        lengths: tokens in each sample's own cache, the prompt not counted; clamped to [0, S].
        scale: multiplies q k^T.
        mask: which of the P newest tokens each query sees; causal by default.
        impl: forces an implementation: gpu_triton, tpu or reference.

    Returns:
        The attention over both caches and its log-sum-exp.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    arguments.check_group(query, prefix_key)
    B, P, N, H = query.shape
    A, K = prefix_key.shape[:2]
    if A == 0 or B % A:
        raise ValueError(f"{B} rows do not divide into the samples of {A} prompts: B must be a multiple of A.")
    if key.ndim != 4 or key.shape[1] != K:
        raise ValueError(f"the prompts' cache has {K} heads and the samples' cache is {key.shape}: both need K heads.")
    if prefix_value.shape[-1] != value.shape[-1]:
        raise ValueError(
            f"the prompts' values are {prefix_value.shape[-1]} wide and the samples' {value.shape[-1]}: they must be equal."
        )
    samples, group = B // A, N // K
    # [A, samples, P, K, group, H]: samples and positions become heads of the same key/value head, seen at one position.
    stacked = query.reshape(A, samples, P, K, group, H).transpose(0, 3, 1, 2, 4, 5)
    prefix_out, prefix_lse = gqa_decode(
        stacked.reshape(A, 1, K * samples * P * group, H), prefix_key, prefix_value, prefix_lengths, scale=scale, impl=impl
    )
    prefix_out = prefix_out.reshape(A, K, samples, P, group, -1).transpose(0, 2, 3, 1, 4, 5).reshape(B, P, N, -1)
    prefix_lse = prefix_lse.reshape(A, K, samples, P, group).transpose(0, 2, 3, 1, 4).reshape(B, P, N)
    out, lse = gqa_decode(query, key, value, lengths, scale=scale, mask=mask, impl=impl)
    return merge_lse(jnp.stack([prefix_out, out]), jnp.stack([prefix_lse, lse]))
