"""Multi-head latent attention decoding: every implementation against NumPy float64, and what must not change its result."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels.merge import merge_lse_across
from pallas_kernels.mla_decode import mla_decode, mla_decode_paged, mla_decode_shared_prefix, quantize_latent
from tests.pallas_kernels.garbage import garbage_for

IMPLEMENTATIONS = ["reference", "gpu_triton", "gpu_mosaic", "tpu"]
PAGED_IMPLEMENTATIONS = ["reference", "gpu_triton", "tpu"]
each_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS, indirect=True)
each_paged_implementation = pytest.mark.parametrize("impl", PAGED_IMPLEMENTATIONS, indirect=True)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])

SCALE = 0.2
LENGTHS = np.array([0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 95, 96], np.int32)  # S is the last
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def run(op: Callable[..., Any], impl: str, *arrays: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Calls an op; what an implementation other than the reference and Triton's refuses is skipped."""
    of_arrays = {name: value for name, value in options.items() if hasattr(value, "shape")}
    rest = {name: value for name, value in options.items() if name not in of_arrays}
    arrays, of_arrays = garbage_for(impl, arrays), garbage_for(impl, of_arrays)
    try:
        out, lse = jax.jit(functools.partial(op, impl=impl, **rest))(*arrays, **of_arrays)
    except ValueError as error:
        if impl not in ("reference", "gpu_triton") and "does not take these arguments" in str(error):
            pytest.skip(str(error))
        raise
    assert out.dtype == arrays[0].dtype and out.shape == arrays[0].shape
    assert lse.dtype == jnp.float32 and lse.shape == arrays[0].shape[:-1]
    return np.asarray(out, np.float64), np.asarray(lse, np.float64)


def random_arrays(
    *, P: int = 1, N: int = 3, C: int = 32, R: int = 16, lengths: np.ndarray = LENGTHS, dtype: str = "float32", seed: int = 0
) -> Arrays:
    """Queries, a cache with NaN past each length, lengths."""
    generator, B, S = np.random.default_rng(seed), len(lengths), int(lengths.max(initial=1))
    shapes = ((B, P, N, C), (B, P, N, R), (B, S, C), (B, S, R))
    q_latent, q_rope, latent, rope = (generator.normal(size=shape).astype(DTYPES[dtype]) for shape in shapes)
    return q_latent, q_rope, plant_nan(latent, lengths), plant_nan(rope, lengths), lengths


def plant_nan(cache: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    past = np.arange(cache.shape[1]) >= lengths[:, None]
    return np.where(past[..., None], np.array(np.nan, cache.dtype), cache)


def oracle(
    q_latent: np.ndarray, q_rope: np.ndarray, latent: np.ndarray, rope: np.ndarray, lengths: np.ndarray,
    mask: np.ndarray | None = None, scale: float = SCALE,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    B, P, N, _ = q_latent.shape
    outs, lses = np.zeros(q_latent.shape), np.full((B, P, N), -1e30)
    mask = np.tril(np.ones((P, P), bool)) if mask is None else mask
    mask = np.broadcast_to(mask, (B, P, P))
    for b in range(B):
        length = int(lengths[b])
        for p in range(P):
            seen = [s for s in range(length) if s < length - P or mask[b, p, s - (length - P)]]
            if not seen:
                continue
            values, keys = latent[b, seen].astype(np.float64), rope[b, seen].astype(np.float64)
            for n in range(N):
                logits = scale * (values @ q_latent[b, p, n].astype(np.float64) + keys @ q_rope[b, p, n].astype(np.float64))
                weights = np.exp(logits - logits.max())
                outs[b, p, n] = weights @ values / weights.sum()
                lses[b, p, n] = logits.max() + math.log(weights.sum())
    return outs, lses


def assert_close(got: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray], dtype: str) -> None:
    allowed = {"float32": 1e-5, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(got[0], expected[0], atol=allowed, rtol=allowed)
    # Products of bfloat16 numbers are exact in float32: log-sum-exps are as good in either dtype.
    np.testing.assert_allclose(got[1], expected[1], atol=1e-5, rtol=1e-5)


def paged(cache: np.ndarray, table: np.ndarray, pages: int, page: int) -> np.ndarray:
    """Lays the rows of a cache into pages; what no row uses is NaN, or 0 in a dtype that has none."""
    absent = 0 if np.issubdtype(cache.dtype, np.integer) else np.nan
    laid = np.full((pages, page, cache.shape[-1]), absent, cache.dtype)
    for b, row in enumerate(table):
        for block, at in enumerate(row):
            slots = cache[b, block * page : (block + 1) * page]
            laid[at, : len(slots)] = slots
    return laid


@each_implementation
@each_dtype
@pytest.mark.parametrize(("P", "N"), [(1, 1), (1, 3), (1, 16), (1, 20), (4, 5), (3, 16)])
def test_decode_is_its_definition_at_every_length(impl: str, dtype: str, P: int, N: int) -> None:
    arrays = random_arrays(P=P, N=N, dtype=dtype)
    assert_close(run(mla_decode, impl, *arrays, scale=SCALE), oracle(*arrays), dtype)


@each_implementation
@pytest.mark.parametrize(("C", "R"), [(128, 64), (48, 8), (16, 24)])
def test_widths_need_not_be_powers_of_two(impl: str, C: int, R: int) -> None:
    arrays = random_arrays(P=2, C=C, R=R, lengths=np.array([7, 40], np.int32))
    assert_close(run(mla_decode, impl, *arrays, scale=SCALE), oracle(*arrays), "float32")


@each_implementation
@pytest.mark.parametrize(("P", "one_for_all"), [(5, True), (5, False), (40, True)])
def test_a_mask_says_which_new_tokens_see_which(impl: str, P: int, one_for_all: bool) -> None:
    lengths = np.array([0, 2, 4, 5, 6, 15, 17, 40, 66] if P == 5 else [39, 66], np.int32)
    arrays = random_arrays(P=P, lengths=lengths, N=3 if P == 5 else 1)
    mask = np.random.default_rng(1).random((P, P) if one_for_all else (len(lengths), P, P)) < 0.5
    assert_close(run(mla_decode, impl, *arrays, scale=SCALE, mask=mask), oracle(*arrays, mask), "float32")


@each_implementation
def test_a_tree_of_drafts_is_each_of_its_branches_alone(impl: str) -> None:
    parents = [-1, 0, 0, 1, 2, 2]
    P, context = len(parents), 20
    q_latent, q_rope, latent, rope, lengths = random_arrays(P=P, lengths=np.array([context + P], np.int32))
    tree = np.eye(P, dtype=bool)
    for token, parent in enumerate(parents):
        if parent >= 0:
            tree[token] |= tree[parent]
    out, lse = run(mla_decode, impl, q_latent, q_rope, latent, rope, lengths, scale=SCALE, mask=tree)
    for leaf in (3, 4, 5):
        branch = np.flatnonzero(tree[leaf])
        slots = np.concatenate([np.arange(context), context + branch])
        alone = run(
            mla_decode, "reference", q_latent[:, branch], q_rope[:, branch], latent[:, slots], rope[:, slots],
            np.array([len(slots)], np.int32), scale=SCALE,
        )  # fmt: skip
        assert_close((out[:, branch], lse[:, branch]), alone, "float32")


@each_implementation
def test_a_query_that_sees_nothing_reads_zero(impl: str) -> None:
    arrays = random_arrays(P=4, lengths=np.array([0, 1, 3, 4], np.int32))
    out, lse = run(mla_decode, impl, *arrays, scale=SCALE)
    for b, blind in enumerate([4, 3, 1, 0]):
        assert (out[b, :blind] == 0).all() and (lse[b, :blind] == np.float32(-1e30)).all()
        assert (lse[b, blind:] > -1e3).all()


@each_implementation
@each_dtype
def test_logits_of_ten_thousand_do_not_overflow(impl: str, dtype: str) -> None:
    """Every logit is -1e4, 0 or 1e4: a query reads the mean of those that tie for the greatest."""
    q_latent, q_rope, latent, rope, lengths = random_arrays(P=2, lengths=np.array([1, 5, 70, 96], np.int32), dtype=dtype)
    q_latent[:], q_rope[:], rope[...] = 0, 0, 0
    q_rope[..., 0] = 1
    rope[..., 0] = np.random.default_rng(2).choice([-5e4, 0.0, 5e4], rope.shape[:2], p=[0.6, 0.35, 0.05])
    rope[0, :, 0] = -5e4
    rope = plant_nan(rope, lengths)
    arrays = (q_latent, q_rope, latent, rope, lengths)
    assert_close(run(mla_decode, impl, *arrays, scale=SCALE), oracle(*arrays), dtype)


@each_implementation
def test_lengths_beyond_the_cache_count_as_its_end(impl: str) -> None:
    arrays = random_arrays(lengths=np.array([40, 40, 0], np.int32))
    beyond = run(mla_decode, impl, *arrays[:4], np.array([41, 2**31 - 1, -5], np.int32), scale=SCALE)
    assert_close(beyond, oracle(*arrays), "float32")


@pytest.mark.parametrize("impl", ["reference", "gpu_triton"], indirect=True)
def test_a_cache_without_slots_and_a_batch_without_rows_are_served(impl: str) -> None:
    q_latent, q_rope, latent, rope, lengths = random_arrays(lengths=np.array([3, 3], np.int32))
    out, lse = run(mla_decode, impl, q_latent, q_rope, latent[:, :0], rope[:, :0], lengths, scale=SCALE)
    assert (out == 0).all() and (lse == np.float32(-1e30)).all()
    run(mla_decode, impl, q_latent[:0], q_rope[:0], latent[:0], rope[:0], lengths[:0], scale=SCALE)


@each_implementation
@each_dtype
def test_the_number_of_splits_changes_nothing(impl: str, dtype: str) -> None:
    arrays = random_arrays(P=2, dtype=dtype)
    expected = oracle(*arrays)
    for splits in (1, 2, 7):
        assert_close(run(mla_decode, impl, *arrays, scale=SCALE, num_splits=splits), expected, dtype)


@each_implementation
def test_products_take_the_dtype_of_the_queries(impl: str) -> None:
    q_latent, q_rope, latent, rope, lengths = random_arrays(P=2)
    latent, rope = latent.astype(ml_dtypes.bfloat16), rope.astype(ml_dtypes.bfloat16)
    arrays = (q_latent, q_rope, latent, rope, lengths)
    assert_close(run(mla_decode, impl, *arrays, scale=SCALE), oracle(*arrays), "float32")


@each_paged_implementation
@each_dtype
@pytest.mark.parametrize("page", [16, 48, 64])
def test_it_does_not_matter_where_pages_lie(impl: str, dtype: str, page: int) -> None:
    q_latent, q_rope, latent, rope, lengths = arrays = random_arrays(P=2, dtype=dtype)
    expected, B, blocks = oracle(*arrays), len(lengths), -(-int(lengths.max()) // page)
    for seed in (0, 1):
        pages = B * blocks + 3
        table = np.random.default_rng(seed).permutation(pages)[: B * blocks].reshape(B, blocks).astype(np.int32)
        laid = paged(latent, table, pages, page), paged(rope, table, pages, page)
        # What a table says past a row's length is never followed.
        table = np.where(np.arange(blocks) * page >= lengths[:, None], np.int32(10**8), table)
        assert_close(run(mla_decode_paged, impl, q_latent, q_rope, *laid, table, lengths, scale=SCALE), expected, dtype)


@each_paged_implementation
def test_pages_take_masks_splits_and_quantized_latents(impl: str) -> None:
    P, page, lengths = 4, 32, np.array([3, 31, 33, 64], np.int32)
    q_latent, q_rope, latent, rope, _ = random_arrays(P=P, lengths=lengths)
    latent, scales = (np.asarray(a) for a in quantize_latent(jnp.nan_to_num(latent), "int8", 8))
    scales = plant_nan(scales, lengths)
    table = np.random.default_rng(3).permutation(8).reshape(4, 2).astype(np.int32)
    mask = np.random.default_rng(4).random((P, P)) < 0.6
    got = run(
        mla_decode_paged, impl, q_latent, q_rope, paged(latent, table, 8, page), paged(rope, table, 8, page), table, lengths,
        scale=SCALE, mask=mask, num_splits=2, latent_scales=paged(scales, table, 8, page),
    )  # fmt: skip
    dequantized = latent.astype(np.float64) * np.repeat(scales.astype(np.float64), 8, axis=-1)
    assert_close(got, oracle(q_latent, q_rope, dequantized, rope, lengths, mask), "float32")


@each_implementation
@each_dtype
@pytest.mark.parametrize("quantized", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("tile", [8, 32])
def test_quantized_latents_are_read_as_number_times_scale(impl: str, dtype: str, quantized: str, tile: int) -> None:
    lengths = np.array([0, 1, 17, 64, 65], np.int32)
    q_latent, q_rope, latent, rope, _ = random_arrays(P=2, lengths=lengths, dtype=dtype)
    latent, scales = (np.array(a) for a in quantize_latent(jnp.nan_to_num(latent), quantized, tile))
    dequantized = latent.astype(np.float64) * np.repeat(scales.astype(np.float64), tile, axis=-1)
    if quantized == "float8_e4m3fn":
        latent = plant_nan(latent, lengths)
    scales = plant_nan(scales, lengths)
    got = run(mla_decode, impl, q_latent, q_rope, latent, rope, lengths, scale=SCALE, latent_scales=scales)
    # The product of number and scale is rounded to the queries' dtype before it is multiplied.
    rounded = dequantized.astype(DTYPES[dtype])
    assert_close(got, oracle(q_latent, q_rope, rounded, rope, lengths), dtype)


@each_implementation
def test_absorbed_attention_is_multi_head_attention(impl: str) -> None:
    """Keys and values of every head, rebuilt from the latents, give the same as queries that took key_up in."""
    generator, lengths = np.random.default_rng(5), np.array([2, 30, 66], np.int32)
    B, P, N, C, R, H, V = 3, 2, 4, 32, 16, 12, 10
    _, q_rope, latent, rope, _ = random_arrays(P=P, N=N, C=C, R=R, lengths=lengths)
    q_nope = generator.normal(size=(B, P, N, H)).astype(np.float32)
    key_up, value_up = (generator.normal(size=(C, N, width)).astype(np.float32) * 0.3 for width in (H, V))
    q_latent = np.einsum("bpnh,cnh->bpnc", q_nope, key_up)
    out, _ = run(mla_decode, impl, q_latent, q_rope, latent, rope, lengths, scale=(H + R) ** -0.5)
    got = np.einsum("bpnc,cnv->bpnv", out, value_up)
    for b in range(B):
        for p in range(P):
            seen = int(lengths[b]) - P + p + 1
            for n in range(N):
                lie = latent[b, :seen].astype(np.float64)
                keys = np.concatenate([lie @ key_up[:, n], rope[b, :seen]], axis=-1)
                values = lie @ value_up[:, n]
                logits = keys @ np.concatenate([q_nope[b, p, n], q_rope[b, p, n]]) / math.sqrt(H + R)
                weights = np.exp(logits - logits.max())
                np.testing.assert_allclose(got[b, p, n], weights @ values / weights.sum(), atol=1e-4, rtol=1e-4)


@each_implementation
@each_dtype
@pytest.mark.parametrize(("P", "G"), [(1, 3), (2, 2)])
def test_a_shared_prefix_is_a_concatenated_cache(impl: str, dtype: str, P: int, G: int) -> None:
    prefix_lengths = np.array([0, 1, 40], np.int32)
    A = len(prefix_lengths)
    _, _, prefix_latent, prefix_rope, _ = random_arrays(lengths=prefix_lengths, dtype=dtype)
    lengths = (np.arange(A * G) * 5 % 23 + P).astype(np.int32)
    q_latent, q_rope, latent, rope, _ = random_arrays(P=P, lengths=lengths, dtype=dtype, seed=1)
    got = run(
        mla_decode_shared_prefix, impl, q_latent, q_rope, prefix_latent, prefix_rope, prefix_lengths, latent, rope, lengths,
        scale=SCALE,
    )  # fmt: skip

    def joined(prefix: np.ndarray, cache: np.ndarray) -> np.ndarray:
        rows = []
        for b in range(A * G):
            row = np.concatenate([prefix[b // G, : prefix_lengths[b // G]], cache[b, : lengths[b]]])
            rows.append(np.pad(row, ((0, 80 - len(row)), (0, 0))))
        return np.stack(rows)

    total = np.repeat(prefix_lengths, G) + lengths
    assert_close(got, oracle(q_latent, q_rope, joined(prefix_latent, latent), joined(prefix_rope, rope), total), dtype)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    P=st.integers(1, 5),
    N=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_the_reference_is_its_definition(lengths: list[int], P: int, N: int, seed: int) -> None:
    arrays = random_arrays(P=P, N=N, lengths=np.array(lengths, np.int32), seed=seed)
    mask = np.random.default_rng(seed).random((P, P)) < 0.5
    assert_close(run(mla_decode, "reference", *arrays, scale=SCALE, mask=mask), oracle(*arrays, mask), "float32")


def test_a_cache_sharded_along_the_sequence_merges_across_devices() -> None:
    lengths = np.array([0, 3, 24, 25, 64], np.int32)
    arrays = garbage_for("reference", random_arrays(lengths=lengths))
    mesh = jax.make_mesh((8,), ("context",), axis_types=(AxisType.Auto,))
    slots = 64 // 8
    whole, sharded = PartitionSpec(), PartitionSpec(None, "context")

    @functools.partial(
        jax.shard_map, mesh=mesh, out_specs=PartitionSpec(), check_vma=False,
        in_specs=(whole, whole, sharded, sharded, whole),
    )  # fmt: skip
    def decode(q_latent: Any, q_rope: Any, latent: Any, rope: Any, lengths: Any) -> Any:
        here = lengths - jax.lax.axis_index("context") * slots
        out, lse = mla_decode(q_latent, q_rope, latent, rope, here, scale=SCALE, impl="reference")
        return merge_lse_across(out, lse, "context")

    out, lse = jax.jit(decode)(*arrays)
    assert_close((np.asarray(out), np.asarray(lse)), oracle(*arrays), "float32")


@pytest.mark.parametrize("quantized", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e30])
def test_quantizing_keeps_latents_to_the_precision_of_the_dtype(quantized: str, magnitude: float) -> None:
    latent = (np.random.default_rng(6).normal(size=(3, 5, 256)) * magnitude).astype(np.float32)
    latent[1, 2] = 0
    got, scales = quantize_latent(jnp.asarray(latent), quantized)
    assert got.dtype == jnp.dtype(quantized) and got.shape == latent.shape
    assert scales.dtype == jnp.float32 and scales.shape == (3, 5, 2)
    back = np.asarray(got, np.float64) * np.repeat(np.asarray(scales, np.float64), 128, axis=-1)
    greatest = np.repeat(np.abs(latent).reshape(3, 5, 2, 128).max(-1), 128, axis=-1)
    if quantized == "int8":
        assert (np.abs(back - latent) <= greatest / 127 * 0.501).all()
    else:
        # Three bits of mantissa, and below 2 ** -6 of the format steps of 2 ** -9.
        assert (np.abs(back - latent) <= np.maximum(np.abs(latent) / 16, greatest / 448 * 2**-10) * 1.001).all()
    assert (back[1, 2] == 0).all() and (np.asarray(scales)[1, 2] == 0).all()


def test_a_quantized_token_takes_656_bytes() -> None:
    latent, scales = quantize_latent(jnp.ones((1, 512)), "float8_e4m3fn")
    assert latent.nbytes + scales.nbytes + 64 * 2 == 656


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_latent": np.zeros((2, 1, 3, 32), np.int32)}, "q_latent must be"),
        ({"q_latent": np.zeros((2, 3, 32), np.float32)}, "q_latent must be"),
        ({"q_rope": np.zeros((2, 1, 4, 16), np.float32)}, "q_rope must be"),
        ({"q_rope": np.zeros((2, 1, 3, 16), np.float16)}, "q_rope must be"),
        ({"latent": np.zeros((2, 9, 31), np.float32)}, "latent must be"),
        ({"latent": np.zeros((3, 9, 32), np.float32)}, "latent must be"),
        ({"latent": np.zeros((2, 9, 32), np.int8)}, "int8 latents need latent_scales"),
        ({"latent": np.zeros((2, 9, 32), np.int16)}, "must be of float32"),
        ({"latent_scales": np.zeros((2, 9, 1), np.float32)}, "latent_scales belong to"),
        (
            {"latent": np.zeros((2, 9, 32), np.int8), "latent_scales": np.zeros((2, 9, 5), np.float32)},
            "Z dividing C=32",
        ),
        ({"rope": np.zeros((2, 8, 16), np.float32)}, "rotary keys must be"),
        ({"rope": np.zeros((2, 9, 16), np.int8)}, "rotary keys must be"),
        ({"lengths": np.zeros(3, np.int32)}, "lengths must be"),
        ({"lengths": np.zeros(2, np.float32)}, "lengths must be"),
        ({"mask": np.zeros((2, 2), bool)}, "mask must be"),
        ({"mask": np.zeros((1, 1), np.float32)}, "mask must be"),
        ({"num_splits": 0}, "num_splits must be"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"impl": "cuda"}, "is unknown"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "q_latent": np.zeros((2, 1, 3, 32), np.float32), "q_rope": np.zeros((2, 1, 3, 16), np.float32),
        "latent": np.zeros((2, 9, 32), np.float32), "rope": np.zeros((2, 9, 16), np.float32),
        "lengths": np.zeros(2, np.int32), "scale": 1.0,
    }  # fmt: skip
    mla_decode(**arguments)
    with pytest.raises(ValueError, match=message):
        mla_decode(**{**arguments, **change})


def test_pages_and_prefixes_that_do_not_fit_are_refused() -> None:
    q_latent, q_rope, latent, rope, lengths = random_arrays(lengths=np.array([16, 16], np.int32))
    table = np.array([[0], [1]], np.int32)
    mla_decode_paged(q_latent, q_rope, latent, rope, table, lengths, scale=1.0)
    with pytest.raises(ValueError, match="a multiple of 16 slots"):
        mla_decode_paged(q_latent, q_rope, latent[:, :8], rope[:, :8], table, lengths, scale=1.0)
    with pytest.raises(ValueError, match="block_table must be"):
        mla_decode_paged(q_latent, q_rope, latent, rope, table[:1], lengths, scale=1.0)
    three = np.concatenate([latent, latent[:1]]), np.concatenate([rope, rope[:1]]), np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="A dividing B=2"):
        mla_decode_shared_prefix(q_latent, q_rope, *three, latent, rope, lengths, scale=1.0)
    with pytest.raises(ValueError, match="must be one of int8"):
        quantize_latent(jnp.ones((2, 8)), "int4", 8)
    with pytest.raises(ValueError, match="3 does not divide 8"):
        quantize_latent(jnp.ones((2, 8)), "int8", 3)


def test_latents_too_wide_for_a_program_are_refused_by_name() -> None:
    pytest.importorskip("jax_triton")
    arrays = random_arrays(C=1024, lengths=np.array([2], np.int32))
    with pytest.raises(ValueError, match="latents of width 1024"):
        mla_decode(*arrays, scale=1.0, impl="gpu_triton")


def test_splits_fill_the_gpu_and_are_worth_their_while() -> None:
    pytest.importorskip("jax_triton")
    from pallas_kernels.mla_decode.gpu_triton import choose_splits

    for programs in range(1, 600):
        splits = choose_splits(programs, 1 << 20)
        assert 132 < programs * splits <= 264 or (splits == 1 and programs > 132)
        assert choose_splits(programs, 512) <= 2 and choose_splits(programs, 0) == 1
