"""What decode attention accepts, checked before anything is traced."""

from typing import Any

import jax.numpy as jnp

QUANTIZED = ("int8", "float8_e4m3fn")


def check_group(query: Any, key: Any) -> None:
    if query.ndim != 4 or key.ndim != 4:
        raise ValueError(
            f"query is [B, P, N, H] and the keys [B or pages, K, slots, H], but their shapes are {query.shape} and "
            f"{key.shape}: add or split dimensions."
        )
    N, K = query.shape[2], key.shape[1]
    if 0 in query.shape[1:]:
        raise ValueError(f"query is [B, P, N, H] with P, N and H at least 1, but its shape is {query.shape}.")
    if K == 0 or N % K:
        raise ValueError(f"N={N} query heads do not divide into K={K} key/value heads: N must be a multiple of K.")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"query has heads of width {query.shape[3]} and key of width {key.shape[3]}: they must be equal.")


def check(
    query: Any, key: Any, value: Any, lengths: Any, mask: Any, key_scales: Any, value_scales: Any, num_splits: int | None
) -> None:
    """Raises ValueError unless shapes and dtypes fit together; pages stand for rows of the cache."""
    check_group(query, key)
    B, P = query.shape[:2]
    if value.shape[:3] != key.shape[:3] or value.ndim != 4:
        raise ValueError(f"key {key.shape} and value {value.shape} must agree in all dimensions but the last.")
    if lengths.shape != (B,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(f"lengths must be {B} integers, one a row of query, but are {lengths.dtype}{list(lengths.shape)}.")
    if mask is not None and (mask.shape not in ((P, P), (B, P, P)) or mask.dtype != jnp.bool_):
        raise ValueError(
            f"mask must be bool[{P}, {P}] or bool[{B}, {P}, {P}] for {P} positions and {B} rows, but is "
            f"{mask.dtype}{list(mask.shape)}: mask[b, p, j] says whether query p sees token j of the {P} newest."
        )
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"num_splits={num_splits} must be at least 1, or None to have it chosen from the shapes.")
    if key.dtype != value.dtype:
        raise ValueError(f"key is {key.dtype} and value {value.dtype}: a cache has one dtype.")
    if key.dtype.name in QUANTIZED:
        for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
            if scales is None:
                raise ValueError(f"a cache of {key.dtype} needs {name}, one float32 a slot and head: {list(key.shape[:3])}.")
            if scales.shape != key.shape[:3] or scales.dtype != jnp.float32:
                raise ValueError(
                    f"{name} must be float32{list(key.shape[:3])}, one a slot and head, but is "
                    f"{scales.dtype}{list(scales.shape)}."
                )
    elif key_scales is not None or value_scales is not None:
        raise ValueError(
            f"scales belong to a cache of {' or '.join(QUANTIZED)}, but key and value are {key.dtype}: leave them out."
        )
    elif key.dtype != query.dtype:
        raise ValueError(
            f"query is {query.dtype} and the cache {key.dtype}: cast one of them, or quantize the cache to "
            f"{' or '.join(QUANTIZED)}."
        )
