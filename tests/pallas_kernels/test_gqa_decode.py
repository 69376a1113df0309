"""Grouped-query decode: every implementation against NumPy float64, and what must not change the result."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import gqa_decode, gqa_decode_paged, gqa_decode_shared_prefix
from tests.pallas_kernels.garbage import garbage_for

Arrays = tuple[np.ndarray, ...]

IMPLEMENTATIONS = ["reference", "gpu_triton", "tpu"]
each_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS, indirect=True)
DTYPES = {
    "float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
}  # fmt: skip


def oracle(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, lengths: np.ndarray, scale: float, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    query, key, value = (array.astype(np.float64) for array in (query, key, value))
    B, P, N, _ = query.shape
    K, S = key.shape[1:3]
    out, lse = np.zeros((B, P, N, value.shape[-1])), np.full((B, P, N), -1e30)
    for b in range(B):
        length = min(max(int(lengths[b]), 0), S)
        for p in range(P):
            allowed = np.arange(P) <= p if mask is None else mask[p] if mask.ndim == 2 else mask[b, p]
            seen = [s for s in range(length) if s < length - P or allowed[s - (length - P)]]
            for n in range(N if seen else 0):
                k = n // (N // K)
                logits = scale * (key[b, k, seen] @ query[b, p, n])
                weights = np.exp(logits - logits.max())
                out[b, p, n] = weights @ value[b, k, seen] / weights.sum()
                lse[b, p, n] = logits.max() + np.log(weights.sum())
    return out, lse


def normals(generator: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return generator.normal(size=shape).astype(DTYPES[dtype])


def case(
    B: int, P: int, N: int, K: int, S: int, H: int, Hv: int, *, dtype: str = "float32", seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return (
        normals(generator, B, P, N, H, dtype=dtype),
        normals(generator, B, K, S, H, dtype=dtype),
        normals(generator, B, K, S, Hv, dtype=dtype),
    )


def with_nan_past(key: np.ndarray, value: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    key, value = key.copy(), value.copy()
    for b, length in enumerate(lengths):
        key[b, :, max(length, 0) :], value[b, :, max(length, 0) :] = np.nan, np.nan
    return key, value


def in_pages(generator: np.random.Generator, page: int, *caches: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Cuts [B, K, S, ...] into pages in a random order, and gives the table that finds them."""
    B, K, S = caches[0].shape[:3]
    table = generator.permutation(B * S // page).astype(np.int32).reshape(B, S // page)
    pages = []
    for cache in caches:
        cut = np.empty((B * S // page, K, page, *cache.shape[3:]), cache.dtype)
        for b in range(B):
            for i in range(S // page):
                cut[table[b, i]] = cache[b, :, i * page : (i + 1) * page]
        pages.append(cut)
    return table, pages


def run(op: Any, impl: str, *arrays: np.ndarray, **options: Any) -> Arrays:
    scale, splits = options.pop("scale", 0.3), options.pop("num_splits", None)
    extra = {"num_splits": splits} if op is not gqa_decode_shared_prefix else {}
    jitted = jax.jit(lambda arrays, options: op(*arrays, scale=scale, impl=impl, **options, **extra))
    given = garbage_for(impl, (arrays, {k: v for k, v in options.items() if v is not None}))
    return jax.tree.map(np.asarray, jitted(*given))


def assert_close(got: Arrays, expected: Arrays, dtype: str = "float32") -> None:
    assert got[1].dtype == np.float32
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(got[0].astype(np.float64), expected[0], atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(got[1], expected[1], atol=1e-5, rtol=1e-5)


@each_implementation
@pytest.mark.parametrize(
    "dtype,P,N,K,H,Hv",
    [("float32", 1, 2, 2, 16, 16), ("float32", 1, 9, 3, 64, 64), ("bfloat16", 1, 9, 3, 64, 64),
     ("float32", 3, 5, 1, 24, 128), ("bfloat16", 3, 5, 1, 24, 128)],
)  # fmt: skip
def test_it_is_attention_over_each_rows_length(impl: str, dtype: str, P: int, N: int, K: int, H: int, Hv: int) -> None:
    S, block = 128, 32 if dtype == "float32" else 64  # of the GPU kernel
    lengths = np.array([0, 1, block - 1, block, block + 1, S, S + 5, -2], np.int32)
    query, key, value = case(len(lengths), P, N, K, S, H, Hv, dtype=dtype)
    got = run(gqa_decode, impl, query, *with_nan_past(key, value, lengths), lengths)
    assert got[0].dtype == query.dtype and got[0].shape == (len(lengths), P, N, Hv)
    assert_close(got, oracle(query, key, value, lengths, 0.3), dtype)
    assert not got[0][0].any() and (got[1][0] == np.float32(-1e30)).all()


SHAPES = st.tuples(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 40, 130]),
    st.sampled_from([8, 16, 80]), st.integers(0, 3), st.sampled_from([None, 1, 3]),
)  # fmt: skip


@each_implementation
def test_any_shape_mask_and_split_agree_with_the_oracle(impl: str) -> None:
    @settings(max_examples=3, deadline=None, derandomize=True)
    @given(SHAPES)
    def holds(shape: tuple[Any, ...]) -> None:
        B, P, K, group, S, H, masks, num_splits = shape
        generator = np.random.default_rng(B + S)
        query, key, value = case(B, P, K * group, K, S, H, H, seed=S)
        lengths = generator.integers(0, S + 1, B).astype(np.int32)
        mask = [None, generator.random((P, P)) < 0.5, generator.random((B, P, P)) < 0.5, np.zeros((P, P), bool)][masks]
        got = run(
            gqa_decode, impl, query, *with_nan_past(key, value, lengths), lengths, mask=mask, num_splits=num_splits
        )  # fmt: skip
        assert_close(got, oracle(query, key, value, lengths, 0.3, mask))

    holds()


@each_implementation
@pytest.mark.parametrize("paged", [False, True])
def test_what_lies_in_a_slot_that_no_query_sees_does_not_matter(impl: str, paged: bool) -> None:
    query, key, value = case(2, 3, 4, 2, 128, 16, 16)
    lengths, mask = np.array([35, 3], np.int32), np.array([[1, 0, 0], [0, 0, 0], [1, 0, 1]], bool)
    dirty_key, dirty_value = with_nan_past(key, value, lengths)
    for b, length in enumerate(lengths):
        dirty_key[b, :, length - 2] = dirty_value[b, :, length - 2] = np.nan
    if paged:
        table, pages = in_pages(np.random.default_rng(0), 16, dirty_key, dirty_value)
        table[0, 3:], table[1, 1:] = -7, 1 << 30  # past the lengths
        got = run(gqa_decode_paged, impl, query, *pages, table, lengths, mask=mask)
    else:
        got = run(gqa_decode, impl, query, dirty_key, dirty_value, lengths, mask=mask)
    expected = oracle(query, key, value, lengths, 0.3, mask)
    assert_close(got, expected)
    assert not got[0][1, 1].any() and (got[1][1, 1] == np.float32(-1e30)).all()


@each_implementation
def test_logits_of_ten_thousand_neither_overflow_nor_vanish(impl: str) -> None:
    query, key, value = case(2, 1, 4, 2, 96, 16, 16)
    # Whole numbers, so that every logit is exact and ties are ties.
    query, key = np.round(query), np.round(key)
    query[..., 0], key[..., 0] = 100, np.where(np.arange(96) % 3 == 0, 100, -100)
    lengths = np.array([50, 96], np.int32)
    assert_close(run(gqa_decode, impl, query, key, value, lengths, scale=1.0), oracle(query, key, value, lengths, 1.0))


@each_implementation
def test_the_number_of_splits_changes_nothing(impl: str) -> None:
    query, key, value = case(2, 2, 2, 1, 160, 16, 16)
    lengths = np.array([5, 130], np.int32)
    expected = oracle(query, key, value, lengths, 0.3)
    for num_splits in (1, 2, 7):
        assert_close(run(gqa_decode, impl, query, key, value, lengths, num_splits=num_splits), expected)


@each_implementation
@pytest.mark.parametrize("page", [8, 64])
def test_pages_in_any_order_are_the_contiguous_cache(impl: str, page: int) -> None:
    query, key, value = case(2, 2, 4, 2, 128, 16, 24)
    lengths = np.array([70, 128], np.int32)
    table, pages = in_pages(np.random.default_rng(1), page, *with_nan_past(key, value, lengths))
    got = run(gqa_decode_paged, impl, query, *pages, table, lengths, num_splits=2)
    assert_close(got, oracle(query, key, value, lengths, 0.3))


@each_implementation
def test_a_tree_mask_gives_each_path_what_it_would_get_alone(impl: str) -> None:
    # Token 0 is the root; 1-2 and 3-4 are two continuations of it.
    parents, P = [-1, 0, 1, 0, 3], 5
    mask = np.zeros((P, P), bool)
    for p in range(P):
        at = p
        while at >= 0:
            mask[p, at] = True
            at = parents[at]
    query, key, value = case(1, P, 2, 1, 48, 16, 16)
    length = 40
    tree = run(gqa_decode, impl, query, key, value, np.array([length], np.int32), mask=mask)
    for path in ([0, 1, 2], [0, 3, 4]):
        slots = [*range(length - P), *(length - P + j for j in path)]
        alone_key, alone_value = np.zeros_like(key), np.zeros_like(value)
        alone_key[:, :, : len(slots)], alone_value[:, :, : len(slots)] = key[:, :, slots], value[:, :, slots]
        lengths = np.array([len(slots)], np.int32)
        alone = run(gqa_decode, impl, query[:, path], alone_key, alone_value, lengths)
        assert_close((tree[0][:, path], tree[1][:, path]), alone)


@each_implementation
def test_a_shared_prefix_is_the_concatenated_cache(impl: str) -> None:
    A, G, S0, S, P = 2, 3, 48, 40, 2
    query, key, value = case(A * G, P, 6, 3, S, 16, 16)
    _, prefix_key, prefix_value = case(A, 1, 6, 3, S0, 16, 16, seed=1)
    prefix_lengths, lengths = np.array([0, 33], np.int32), np.array([P, 40, 17, 0, 33, 20], np.int32)
    whole_key, whole_value = np.zeros((A * G, 3, S0 + S, 16)), np.zeros((A * G, 3, S0 + S, 16))
    totals = np.repeat(prefix_lengths, G) + lengths
    for b in range(A * G):
        prefix = prefix_lengths[b // G]
        for whole, front, own in ((whole_key, prefix_key, key), (whole_value, prefix_value, value)):
            whole[b, :, :prefix] = front[b // G, :, :prefix]
            whole[b, :, prefix : prefix + lengths[b]] = own[b, :, : lengths[b]]
    got = run(
        gqa_decode_shared_prefix, impl, query, *with_nan_past(prefix_key, prefix_value, prefix_lengths), prefix_lengths,
        *with_nan_past(key, value, lengths), lengths,
    )  # fmt: skip
    expected = oracle(query, whole_key, whole_value, totals, 0.3)
    # A row without tokens of its own has no query token in its cache: every query sees the prompt, and all of it.
    for b in np.flatnonzero(lengths == 0):
        prefix = prefix_lengths[b // G]
        row = slice(b, b + 1)
        for p in range(P):
            alone = oracle(query[row, p : p + 1], whole_key[row], whole_value[row], np.array([prefix]), 0.3)
            expected[0][b, p], expected[1][b, p] = alone[0][0, 0], alone[1][0, 0]
    assert_close(got, expected)


@each_implementation
@pytest.mark.parametrize(
    "compute,dtype,page",
    [("float32", "int8", 0), ("bfloat16", "float8_e4m3fn", 0), ("float32", "float8_e4m3fn", 32), ("bfloat16", "int8", 32)],
)
def test_a_quantized_cache_is_attention_over_what_it_stands_for(impl: str, compute: str, dtype: str, page: int) -> None:
    generator = np.random.default_rng(0)
    B, P, N, K, S, H = 3, 2, 4, 2, 96, 16
    query = normals(generator, B, P, N, H, dtype=compute)
    numbers = generator.integers(-128, 128, (2, B, K, S, H))
    # Every finite number of e4m3 occurs, its subnormals too.
    codes = generator.choice([code for code in range(256) if code & 0x7F != 0x7F], (2, B, K, S, H)).astype(np.uint8)
    key, value = numbers.astype(np.int8) if dtype == "int8" else codes.view(ml_dtypes.float8_e4m3fn)
    scales = generator.uniform(0.001, 0.02, (2, B, K, S)).astype(np.float32)
    lengths = np.array([1, 77, 96], np.int32)
    wide = [array.astype(np.float64) * scale[..., None] for array, scale in zip((key, value), scales, strict=True)]
    expected = oracle(query, *wide, lengths, 0.3)
    for b, length in enumerate(lengths):
        scales[:, b, :, length:] = np.nan
    if page:
        table, (key, value, *paged_scales) = in_pages(generator, page, key, value, *scales)
        arrays: Arrays = (query, key, value, table, lengths)
        got = run(gqa_decode_paged, impl, *arrays, key_scales=paged_scales[0], value_scales=paged_scales[1])
    else:
        got = run(gqa_decode, impl, query, key, value, lengths, key_scales=scales[0], value_scales=scales[1])
    np.testing.assert_allclose(
        got[0].astype(np.float64),
        expected[0],
        atol=1e-5 if compute == "float32" else 2e-2,
        rtol=1e-5 if compute == "float32" else 1e-2,
    )
    np.testing.assert_allclose(got[1], expected[1], atol=1e-5, rtol=1e-5)


@each_implementation
def test_nothing_is_compiled_again_when_lengths_change(impl: str) -> None:
    query, key, value = case(2, 1, 2, 1, 64, 16, 16)
    traces = []

    @jax.jit
    def step(lengths: jax.Array) -> Any:
        traces.append(1)
        return gqa_decode(jnp.asarray(query), jnp.asarray(key), jnp.asarray(value), lengths, scale=0.3, impl=impl)

    for lengths in ([3, 60], [64, 0]):
        assert_close(
            jax.tree.map(np.asarray, step(jnp.asarray(lengths))), oracle(query, key, value, np.asarray(lengths), 0.3)
        )
    assert len(traces) == 1


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("heads", {"query": (2, 1, 5, 16)}, "N=5 query heads do not divide into K=2"),
    ("width", {"query": (2, 1, 4, 8)}, "width 8 and key of width 16"),
    ("values", {"value": (2, 2, 31, 16)}, "must agree in all dimensions but the last"),
    ("lengths", {"lengths": (3,)}, "lengths must be 2 integers"),
    ("mask", {"mask": (3, 3)}, "mask must be bool"),
    ("splits", {"num_splits": 0}, "num_splits=0 must be at least 1"),
    ("unscaled", {"dtype": "int8"}, "a cache of int8 needs key_scales"),
    ("scaled", {"key_scales": (2, 2, 32)}, "scales belong to a cache of int8 or float8_e4m3fn"),
    ("mixed", {"dtype": "bfloat16"}, "query is float32 and the cache bfloat16"),
]


@pytest.mark.parametrize("change,message", [(c, m) for _, c, m in WRONG], ids=[name for name, _, _ in WRONG])
def test_an_error_names_what_does_not_fit(change: dict[str, Any], message: str) -> None:
    dtype = jnp.dtype(change.get("dtype", "float32"))
    call = functools.partial(
        gqa_decode,
        jnp.zeros(change.get("query", (2, 1, 4, 16))),
        jnp.zeros((2, 2, 32, 16), dtype),
        jnp.zeros(change.get("value", (2, 2, 32, 16)), dtype),
        jnp.zeros(change.get("lengths", (2,)), jnp.int32),
        scale=1.0,
        mask=jnp.zeros(change["mask"], bool) if "mask" in change else None,
        key_scales=jnp.zeros(change["key_scales"]) if "key_scales" in change else None,
        num_splits=change.get("num_splits"),
    )
    with pytest.raises(ValueError, match=message):
        call()


def test_nothing_to_read_gives_nothing_and_queries_without_heads_are_refused() -> None:
    lengths = np.zeros(0, np.int32)
    out, lse = gqa_decode(np.zeros((0, 1, 4, 8)), np.zeros((0, 2, 6, 8)), np.zeros((0, 2, 6, 5)), lengths, scale=1.0)
    assert out.shape == (0, 1, 4, 5) and lse.shape == (0, 1, 4)
    for shape in ((1, 0, 4, 8), (1, 1, 0, 8)):
        with pytest.raises(ValueError, match="with P, N and H at least 1"):
            gqa_decode(np.zeros(shape), np.zeros((1, 2, 6, 8)), np.zeros((1, 2, 6, 8)), np.zeros(1, np.int32), scale=1.0)
