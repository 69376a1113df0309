"""Log-probs, entropies and top-n from hidden states: every implementation against NumPy float64, and their gradients."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from pallas_kernels.resources import compile_for
from pallas_kernels.targets import TARGETS, compiling_for
from pallas_kernels.token_logprob import TokenLogprob, reference, slabs, token_logprob

IMPLEMENTATIONS = ["reference", "gpu_triton", "tpu"]
each_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS, indirect=True)


@pytest.fixture
def small_blocks(impl: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks so small that arrays of a test have several along every dimension, the last of them partial."""
    monkeypatch.setattr(slabs, "SLAB_STEP", 128)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 1)
    if impl == "gpu_triton":
        # Two splits, of several tiles each.
        monkeypatch.setattr(importlib.import_module("pallas_kernels.token_logprob.gpu_triton"), "PROGRAMS", 2)
    if impl == "tpu":
        tpu = importlib.import_module("pallas_kernels.token_logprob.tpu")
        monkeypatch.setattr(tpu, "_blocks", lambda M, D, V, *_: (min(32, M), min(128, V), min(128, D)))
    yield


def oracle(
    hidden: np.ndarray, kernel: np.ndarray, targets: np.ndarray, temperature: float, top_n: int
) -> tuple[np.ndarray, ...]:
    logits = hidden.astype(np.float64) @ kernel.astype(np.float64) / temperature
    greatest = logits.max(1, keepdims=True)
    lse = greatest[:, 0] + np.log(np.exp(logits - greatest).sum(1))
    log_probs = logits - lse[:, None]
    known = (targets >= 0) & (targets < logits.shape[1])
    scored = np.where(known, log_probs[np.arange(len(targets)), np.where(known, targets, 0)], np.nan)
    top_ids = np.argsort(-logits, axis=1, kind="stable")[:, :top_n]
    return scored, -(np.exp(log_probs) * log_probs).sum(1), lse, np.take_along_axis(log_probs, top_ids, 1), top_ids


def given(M: int, D: int, V: int, dtype: str = "float32", seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    as_dtype = np.dtype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
    hidden = generator.normal(size=(M, D)).astype(as_dtype)
    kernel = (2 * generator.normal(size=(D, V)) / D**0.5).astype(as_dtype)
    return hidden, kernel, generator.integers(0, V, M)


def plain(hidden: jax.Array, kernel: jax.Array, targets: Any, temperature: float) -> tuple[jax.Array, ...]:
    """Log-probs, entropies and log-sum-exps as anybody would write them."""
    logits = jnp.dot(hidden, kernel, precision="highest") / temperature
    log_probs = jax.nn.log_softmax(logits)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)
    return jnp.take_along_axis(log_probs, targets[:, None], 1)[:, 0], entropy, jax.nn.logsumexp(logits, axis=1)


def weights(M: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(3, M)).astype(np.float32)


def gradients(function: Callable[..., Any], hidden: Any, kernel: Any, weighted: Any) -> tuple[np.ndarray, ...]:
    """Of Σ weights · (log-probs, entropies, log-sum-exps), for hidden states and kernel."""

    def loss(hidden: Any, kernel: Any) -> Any:
        return sum(jnp.sum(w * v) for w, v in zip(weighted, function(hidden, kernel)[:3]))

    return tuple(np.asarray(g, np.float64) for g in jax.jit(jax.grad(loss, argnums=(0, 1)))(hidden, kernel))


@each_implementation
@pytest.mark.parametrize(
    ("M", "D", "V", "dtype", "temperature", "top_n"),
    [
        (1, 1, 1, "float32", 1.0, 1),
        (5, 7, 33, "float32", 0.5, 3),
        (33, 130, 200, "float32", 2.0, 16),
        (16, 128, 128, "bfloat16", 1.0, 2),
        (65, 33, 129, "bfloat16", 0.5, 0),
    ],
)
@pytest.mark.usefixtures("small_blocks")
def test_token_logprob_is_its_definition(
    impl: str, M: int, D: int, V: int, dtype: str, temperature: float, top_n: int
) -> None:
    arrays = given(M, D, V, dtype)
    got = jax.jit(functools.partial(token_logprob, temperature=temperature, top_n=top_n, impl=impl))(*arrays)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    *values, top_ids = oracle(*arrays, temperature, top_n)
    for name, expected in zip(TokenLogprob._fields, values):
        result = getattr(got, name)
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result, expected, atol=tolerance, rtol=tolerance, err_msg=name)
    np.testing.assert_array_equal(got.top_ids, top_ids)


@each_implementation
@pytest.mark.parametrize(("M", "D", "V", "temperature"), [(5, 9, 40, 2.0), (33, 130, 300, 0.5)])
@pytest.mark.usefixtures("small_blocks")
def test_gradients_are_those_of_log_softmax(impl: str, M: int, D: int, V: int, temperature: float) -> None:
    hidden, kernel, targets = given(M, D, V)
    scored = functools.partial(token_logprob, targets=targets, temperature=temperature, entropy_gradient=True, impl=impl)
    got = gradients(scored, hidden, kernel, weights(M))
    expected = gradients(functools.partial(plain, targets=targets, temperature=temperature), hidden, kernel, weights(M))
    for g, e in zip(got, expected):
        np.testing.assert_allclose(g, e, atol=1e-4, rtol=1e-4)


@each_implementation
@pytest.mark.usefixtures("small_blocks")
def test_bfloat16_gradients_are_summed_in_float32_and_come_in_the_dtypes_of_their_arrays(impl: str) -> None:
    hidden, kernel, targets = given(34, 24, 120, "bfloat16")
    kernel = kernel.astype(np.float32)

    def loss(hidden: Any, kernel: Any) -> Any:
        return jnp.sum(token_logprob(hidden, kernel, targets, impl=impl).logprobs)

    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(hidden, kernel)
    assert [g.dtype for g in got] == [jnp.bfloat16, jnp.float32]
    expected = gradients(
        functools.partial(plain, targets=targets, temperature=1.0), hidden.astype(np.float32), kernel, [1.0]
    )
    for g, e in zip(got, expected):
        np.testing.assert_allclose(np.asarray(g, np.float64), e, atol=1e-2 * np.abs(e).max(), rtol=1e-2)


@each_implementation
@pytest.mark.usefixtures("small_blocks")
def test_rows_without_cotangents_may_hold_anything(impl: str) -> None:
    hidden, kernel, targets = given(40, 20, 120)
    used = np.arange(40) % 3 != 1
    used[8:32] = False
    weighted = weights(40) * used
    scored = functools.partial(token_logprob, targets=targets, entropy_gradient=True, impl=impl)
    spoilt = np.where(used[:, None], hidden, np.nan).astype(np.float32)
    got = gradients(_masked(scored, used), spoilt, kernel, weighted)
    whole = functools.partial(token_logprob, targets=targets, entropy_gradient=True, impl="reference")
    expected = gradients(whole, hidden, kernel, weighted)
    np.testing.assert_array_equal(got[0][~used], 0)
    for g, e in zip(got, expected):
        np.testing.assert_allclose(g, e, atol=1e-5)


def _masked(function: Callable[..., Any], used: np.ndarray) -> Callable[..., Any]:
    return lambda *arrays: [jnp.where(used, values, 0) for values in function(*arrays)[:3]]


@each_implementation
@pytest.mark.usefixtures("small_blocks")
def test_what_is_added_to_all_logits_has_no_gradient(impl: str) -> None:
    """A vector added to every column of the kernel adds the same to all logits of a row."""
    hidden, kernel, targets = given(20, 12, 120)
    scored = functools.partial(token_logprob, targets=targets, entropy_gradient=True, impl=impl)
    _, d_kernel = gradients(scored, hidden, kernel, weights(20)[:2])
    assert np.abs(d_kernel).max() > 0.1
    np.testing.assert_allclose(d_kernel.sum(1), 0, atol=1e-5)


@each_implementation
@pytest.mark.usefixtures("small_blocks")
def test_extreme_logits_uniform_ones_and_unknown_targets(impl: str) -> None:
    V = 150
    hidden = np.zeros((6, 16), np.float32)
    kernel = np.zeros((16, V), np.float32)
    kernel[0], kernel[1] = np.where(np.arange(V) == 140, 1e4, -1e4), np.linspace(-1e4, 1e4, V)
    hidden[1, 0], hidden[2, 1], hidden[3, 1] = 1, 1, -1
    targets = np.array([0, 140, 3, 3, -1, V], np.int32)
    got = jax.jit(functools.partial(token_logprob, top_n=2, impl=impl))(hidden, kernel, targets)
    *expected, top_ids = oracle(hidden, kernel, targets, 1.0, 2)
    for result, value in zip(got, expected):
        np.testing.assert_allclose(result, value, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(np.isnan(got.logprobs), [False] * 4 + [True] * 2)
    np.testing.assert_allclose(got.entropy[np.array([0, 4, 5])], np.log(V), rtol=1e-6)
    np.testing.assert_array_equal(got.top_ids, top_ids)
    weighted = weights(6)
    weighted[:, 4:] = 0
    scored = functools.partial(token_logprob, targets=targets, entropy_gradient=True, impl=impl)
    known = _masked(scored, np.arange(6) < 4)
    of_plain = functools.partial(plain, targets=np.where(np.arange(6) < 4, targets, 0), temperature=1.0)
    for g, e in zip(gradients(known, hidden, kernel, weighted), gradients(of_plain, hidden, kernel, weighted)):
        np.testing.assert_allclose(g, e, atol=1e-4, rtol=1e-3)


@each_implementation
@pytest.mark.usefixtures("small_blocks")
def test_of_equal_logits_the_lowest_ids_come_first(impl: str) -> None:
    """Logits of a few whole numbers, so that hundreds are equal, within tiles and across them."""
    generator = np.random.default_rng(0)
    hidden = np.eye(16, dtype=np.float32)
    kernel = generator.integers(0, 3, (16, 400)).astype(np.float32)
    kernel[0] = np.arange(400) // 100
    kernel[1] = -np.arange(400) // 100
    got = jax.jit(functools.partial(token_logprob, top_n=7, impl=impl))(hidden, kernel, np.zeros(16, np.int32))
    values, ids = jax.lax.top_k(jax.nn.log_softmax(kernel), 7)
    np.testing.assert_array_equal(got.top_ids, ids)
    np.testing.assert_allclose(got.top_logprobs, values, atol=1e-5)


def test_entropy_carries_a_gradient_only_where_it_is_asked_for() -> None:
    hidden, kernel, targets = given(5, 9, 40)

    def entropy(hidden: Any, entropy_gradient: bool) -> Any:
        return jnp.sum(token_logprob(hidden, kernel, targets, entropy_gradient=entropy_gradient).entropy)

    assert not np.any(jax.grad(entropy)(hidden, False))
    assert np.any(jax.grad(entropy)(hidden, True))


def test_chunks_of_rows_change_nothing() -> None:
    hidden, kernel, targets = given(23, 9, 40)
    whole = reference.forward(hidden, kernel, targets, temperature=1.0, top_n=2, chunk=23)
    for chunk in (7, 100):
        parts = reference.forward(hidden, kernel, targets, temperature=1.0, top_n=2, chunk=chunk)
        for one, other in zip(whole, parts):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_sharded_vocabulary_is_the_whole_one(check_vma: bool, rows: int) -> None:
    """Forward and backward, with the rows sharded as well or not."""
    hidden, kernel, targets = given(12, 9, 40)
    targets[:3] = [-1, 40, 10]
    hidden[4] = np.nan
    used = np.isin(np.arange(12), [0, 1, 4], invert=True)
    mesh = Mesh(np.array(jax.devices()[: 4 * rows]).reshape(rows, 4), ("rows", "vocab"), axis_types=(AxisType.Auto,) * 2)
    options = {"temperature": 0.7, "top_n": 3, "entropy_gradient": True, "impl": "reference"}
    by_rows = PartitionSpec("rows")
    sharded = jax.shard_map(
        functools.partial(token_logprob, vocab_axis="vocab", **options), mesh=mesh, check_vma=check_vma,
        in_specs=(by_rows, PartitionSpec(None, "vocab"), by_rows), out_specs=by_rows,
    )  # fmt: skip
    whole = functools.partial(token_logprob, **options)
    for one, other in zip(jax.jit(sharded)(hidden, kernel, targets), whole(hidden, kernel, targets)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    weighted = weights(12) * used
    results = [
        gradients(_masked(lambda h, k, function=function: function(h, k, targets), used), hidden, kernel, weighted)
        for function in (sharded, whole)
    ]
    for one, other in zip(*results):
        assert np.isfinite(one).all() and np.abs(one).max() > 0.1
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


def test_gradients_taken_inside_shard_map_are_whole() -> None:
    hidden, kernel, targets = given(12, 9, 40)
    mesh = Mesh(np.array(jax.devices()[:4]), ("vocab",), axis_types=(AxisType.Auto,))
    w = weights(12)

    def inside(hidden: Any, kernel: Any) -> Any:
        scored = functools.partial(token_logprob, targets=targets, vocab_axis="vocab", entropy_gradient=True)
        return jax.grad(lambda *a: sum(jnp.sum(w * v) for w, v in zip(w, scored(*a)[:3])), argnums=(0, 1))(hidden, kernel)

    by_column = PartitionSpec(None, "vocab")
    specs = (PartitionSpec(), by_column)
    got = jax.jit(jax.shard_map(inside, mesh=mesh, in_specs=specs, out_specs=specs))(hidden, kernel)
    expected = gradients(functools.partial(token_logprob, targets=targets, entropy_gradient=True), hidden, kernel, w)
    for g, e in zip(got, expected):
        np.testing.assert_allclose(g, e, rtol=1e-5, atol=2e-6)


def _scored_and_differentiated(hidden: Any, kernel: Any, targets: Any, *, impl: str, vocab_axis: str | None = None) -> Any:
    def loss(hidden: Any, kernel: Any) -> Any:
        scored = token_logprob(hidden, kernel, targets, top_n=4, entropy_gradient=True, vocab_axis=vocab_axis, impl=impl)
        return jnp.sum(scored.logprobs) + jnp.sum(scored.entropy), scored

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, kernel)


def _needs(target: str, impl: str) -> None:
    if not TARGETS[target].installed:
        pytest.skip(f"{TARGETS[target].package} is not installed: run make test-aot")
    if impl == "gpu_triton":
        pytest.importorskip("jax_triton")
        if importlib.import_module("triton").knobs.runtime.interpret:
            pytest.skip("Triton's interpreter compiles nothing")


@pytest.mark.slow
@pytest.mark.parametrize(("target", "impl"), [("h200", "gpu_triton"), ("v5e", "tpu")])
def test_logits_are_never_in_device_memory(target: str, impl: str) -> None:
    """Forward and backward, with bfloat16 gradients of both arrays, in a twentieth of the float32 logits."""
    _needs(target, impl)
    M, D, V = 16384, 1024, 131072
    shapes = (
        jax.ShapeDtypeStruct((M, D), jnp.bfloat16),
        jax.ShapeDtypeStruct((D, V), jnp.bfloat16),
        jax.ShapeDtypeStruct((M,), jnp.int32),
    )
    compiled = compile_for(TARGETS[target], functools.partial(_scored_and_differentiated, impl=impl), *shapes)
    assert compiled.calls >= 2 and not any(kernel.spilled_bytes for kernel in compiled.kernels)
    assert compiled.temporary_bytes < M * V * 4 / 20


def test_the_reference_holds_a_chunk_of_logits() -> None:
    M, D, V = 16384, 64, 131072
    shapes = (
        jax.ShapeDtypeStruct((M, D), jnp.float32),
        jax.ShapeDtypeStruct((D, V), jnp.float32),
        jax.ShapeDtypeStruct((M,), jnp.int32),
    )
    run = jax.jit(functools.partial(_scored_and_differentiated, impl="reference"))
    assert run.lower(*shapes).compile().memory_analysis().temp_size_in_bytes < M * V * 4 / 20


@pytest.mark.parametrize(("target", "impl"), [("h200", "gpu_triton"), ("v5e", "tpu")])
def test_a_sharded_vocabulary_compiles(target: str, impl: str) -> None:
    _needs(target, impl)
    mesh = TARGETS[target].mesh((4,), ("vocab",))
    by_column = PartitionSpec(None, "vocab")
    specs = {"hidden": PartitionSpec(), "kernel": by_column, "targets": PartitionSpec()}
    run = jax.shard_map(
        functools.partial(_scored_and_differentiated, impl=impl, vocab_axis="vocab"), mesh=mesh, check_vma=False,
        in_specs=tuple(specs.values()), out_specs=(PartitionSpec(), (PartitionSpec(), by_column)),
    )  # fmt: skip
    shapes = [((512, 256), jnp.bfloat16), ((256, 8192), jnp.bfloat16), ((512,), jnp.int32)]
    with compiling_for(mesh):
        placed = [
            jax.ShapeDtypeStruct(*shape, sharding=jax.sharding.NamedSharding(mesh, spec))
            for shape, spec in zip(shapes, specs.values())
        ]
        text = jax.jit(run).lower(*placed).compile().as_text()
    assert "all-reduce" in text and "all-gather" in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": np.zeros((4, 9), np.float32)}, "must be"),
        ({"targets": np.zeros(5, np.int32)}, "must be"),
        ({"kernel": np.zeros((3, 9), np.int8)}, "floating"),
        ({"targets": np.zeros(2, np.float32)}, "integers"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_n": 10}, "top_n"),
        ({"top_n": -1}, "top_n"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changed: dict[str, Any], message: str) -> None:
    arguments = {
        "hidden": np.zeros((2, 3), np.float32), "kernel": np.zeros((3, 9), np.float32), "targets": np.zeros(2, np.int32)
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        token_logprob(**{**arguments, **changed})


def test_kernels_refuse_more_top_tokens_than_they_keep_and_the_reference_gives_them() -> None:
    hidden, kernel, targets = given(3, 4, 40)
    with pytest.raises(ValueError, match=r"top_n is 17.*These do: reference"):
        token_logprob(hidden, kernel, targets, top_n=17, impl="tpu")
    assert token_logprob(hidden, kernel, targets, top_n=40).top_ids.shape == (3, 40)
