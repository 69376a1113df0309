"""Attention for training: every implementation, forward and backward, against NumPy float64 and JAX's own derivative."""

import dataclasses
import functools
import importlib.util
import os
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.flash_attention import FLASH_ATTENTION, flash_attention
from pallas_kernels.flash_attention.cases import CASES

each_implementation = pytest.mark.parametrize("impl", ["reference", "gpu_triton", "tpu"], indirect=True)
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def oracle(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, causal: bool, lengths: Any, segments: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Query after query, over the keys that it sees and no others."""
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    (B, T, N, _), (S, K) = query.shape, key.shape[1:3]
    out, lse = np.zeros((B, T, N, value.shape[-1])), np.full((B, T, N), np.float32(-1e30), np.float64)
    for b in range(B):
        for t in range(T):
            length = S if lengths is None else lengths[b]
            seen = [
                s for s in range(min(S, t + 1) if causal else S)
                if s < length and not (T == S and t >= length)
                and (segments is None or segments[b, t] == segments[b, s])
            ]  # fmt: skip
            for n in range(N if seen else 0):
                head = n // (N // K)
                logits = scale * key[b, seen, head] @ query[b, t, n]
                lse[b, t, n] = logits.max() + np.log(np.exp(logits - logits.max()).sum())
                out[b, t, n] = np.exp(logits - lse[b, t, n]) @ value[b, seen, head]
    return out, lse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """A property to check the kernels at."""

    B: int = 1
    T: int = 33
    S: int | None = None
    N: int = 2
    K: int = 1
    H: int = 16
    V: int = 16
    causal: bool = True
    lengths: tuple[int, ...] | None = None
    packed: int = 0
    size: float = 1.0
    scale: float = 0.25
    tolerance: float = 1e-4  # of gradients

    def make(self, dtype: str) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], dict[str, Any]]:
        """query, key, value; cotangents of out and lse; options. What lengths hide is NaN, in the cotangents as well."""
        generator = np.random.default_rng(0)
        S = self.S or self.T
        inputs = [
            (self.size * generator.standard_normal(shape)).astype(DTYPES[dtype])
            for shape in ((self.B, self.T, self.N, self.H), (self.B, S, self.K, self.H), (self.B, S, self.K, self.V))
        ]
        if self.size != 1:
            inputs[2] = (inputs[2].astype(np.float32) / self.size).astype(DTYPES[dtype])
        d_out = generator.standard_normal((self.B, self.T, self.N, self.V)).astype(DTYPES[dtype])
        d_lse = generator.standard_normal((self.B, self.T, self.N), np.float32)
        segments = None
        if self.packed:
            segments = np.sort(generator.integers(-1, self.packed, (self.B, self.T)), axis=1).astype(np.int32)
        lengths = None if self.lengths is None else np.asarray(self.lengths, np.int32)
        for b, length in enumerate(self.lengths or ()):
            for array in inputs[1:] + ([inputs[0], d_out, d_lse] if self.T == S else []):
                array[b, length:] = np.nan
        options = {"scale": self.scale, "causal": self.causal, "lengths": lengths, "segments": segments}
        return tuple(inputs), (d_out, d_lse), options


SHAPES = {
    "one token": Shape(B=2, T=1, N=3, K=3),
    "a block less one, odd heads": Shape(T=31, N=3, K=3, H=20, V=24),
    "a block": Shape(T=32, N=3, K=1),
    "a block and one, width in two parts": Shape(T=33, H=48, V=32, N=2, K=2),
    "lengths about a block": Shape(B=6, T=40, N=1, lengths=(0, 1, 31, 32, 33, 40)),
    "other queries than keys": Shape(B=3, T=5, S=70, causal=False, lengths=(0, 33, 70)),
    "all keys": Shape(T=40, S=65, causal=False),
    "packed": Shape(B=2, T=70, packed=3),
    "packed, ragged, not causal": Shape(B=2, T=40, N=1, packed=2, lengths=(33, 40), causal=False),
    # Backward's weights are exp(logit - lse), and float32 numbers of 1e4 lie 1e-3 apart.
    "logits of 1e4": Shape(T=33, size=50.0, scale=1.0, tolerance=1e-2),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@functools.partial(jax.jit, static_argnames=("scale", "causal", "impl"))
def forward_and_backward(
    inputs: Any, cotangents: Any, *, scale: float, causal: bool, lengths: Any, segments: Any, impl: str
) -> tuple[Any, Any]:
    attend = functools.partial(
        flash_attention, scale=scale, causal=causal, lengths=lengths, segments=segments, impl=impl
    )  # fmt: skip
    outputs, pull = jax.vjp(attend, *inputs)
    return outputs, pull(cotangents)


def run(inputs: Any, cotangents: Any, options: dict[str, Any], impl: str) -> tuple[Any, Any]:
    # Another implementation's interpret mode must not stand in a trace that is kept.
    forward_and_backward.clear_cache()
    got = forward_and_backward(inputs, cotangents, **options, impl=impl)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), got)


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = max(1.0, np.abs(np.where(expected > -1e29, expected, 0)).max())
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale)


@each_implementation
@each_shape
def test_attention_and_its_gradients(impl: str, shape: Shape) -> None:
    inputs, cotangents, options = shape.make("float32")
    (out, lse), gradients = run(inputs, cotangents, options, impl)
    expected_out, expected_lse = oracle(*inputs, **options)
    close(out, expected_out, 1e-5)
    close(lse, expected_lse, 1e-5)
    if impl != "reference":
        for got, expected in zip(gradients, run(inputs, cotangents, options, "reference")[1], strict=True):
            close(got, expected, shape.tolerance)
    for gradient, array in zip(gradients, inputs, strict=True):
        assert not gradient[np.isnan(array)].any(), "what a length hides has no gradient"


@pytest.mark.parametrize("name", ["a block and one, width in two parts", "lengths about a block", "packed"])
def test_gradients_of_the_reference_are_differences_of_the_oracle(name: str) -> None:
    shape = SHAPES[name]
    inputs, (d_out, d_lse), options = shape.make("float32")
    _, gradients = run(inputs, (d_out, d_lse), options, "reference")
    visible = [np.nan_to_num(array.astype(np.float64)) for array in (d_out, d_lse)]

    def loss(*arrays: np.ndarray) -> float:
        out, lse = oracle(*arrays, **options)
        return (out * visible[0]).sum() + (np.where(lse > -1e29, lse, 0) * visible[1]).sum()

    generator = np.random.default_rng(1)
    for i in range(3):
        step = np.where(np.isnan(inputs[i]), 0, generator.standard_normal(inputs[i].shape)) * 1e-4
        ahead = loss(*(np.float64(x) + (step if i == j else 0) for j, x in enumerate(inputs)))
        behind = loss(*(np.float64(x) - (step if i == j else 0) for j, x in enumerate(inputs)))
        assert (gradients[i] * step).sum() == pytest.approx((ahead - behind) / 2, rel=1e-3, abs=1e-7)


@each_implementation
@pytest.mark.parametrize("name", ["a block and one, width in two parts", "lengths about a block"])
def test_bfloat16(impl: str, name: str) -> None:
    inputs, cotangents, options = SHAPES[name].make("bfloat16")
    (out, lse), gradients = run(inputs, cotangents, options, impl)
    expected_out, expected_lse = oracle(*inputs, **options)
    close(out, expected_out, 1e-2)
    close(lse, expected_lse, 1e-2)
    wide = tuple(x.astype(np.float32) for x in inputs), tuple(x.astype(np.float32) for x in cotangents)
    for got, expected in zip(gradients, run(*wide, options, "reference")[1], strict=True):
        close(got, expected, 1e-2)


def test_out_has_the_dtype_of_queries_and_lse_is_float32() -> None:
    x = jax.ShapeDtypeStruct((1, 4, 2, 16), jnp.bfloat16)
    out, lse = jax.eval_shape(functools.partial(flash_attention, scale=1.0, impl="reference"), x, x, x)
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)


@each_implementation
def test_no_key_learns_from_an_earlier_query(impl: str) -> None:
    inputs, (d_out, d_lse), options = Shape(T=40, N=1).make("float32")
    t = 20
    d_out, d_lse = (np.where((np.arange(40) == t).reshape(1, -1, *[1] * (x.ndim - 2)), x, 0) for x in (d_out, d_lse))
    _, (d_query, d_key, d_value) = run(inputs, (d_out, d_lse), options, impl)
    assert not d_key[:, t + 1 :].any() and not d_value[:, t + 1 :].any()
    assert not np.delete(d_query, t, axis=1).any()
    assert d_key[:, : t + 1].any(axis=-1).all()


@each_implementation
def test_a_packed_row_is_its_sequences(impl: str) -> None:
    inputs, cotangents, options = Shape(T=48, N=1).make("float32")
    options["segments"] = np.repeat([[7, 3]], [33, 15], axis=1).astype(np.int32)
    together = jax.tree.leaves(run(inputs, cotangents, options, impl))
    options["segments"] = None
    for part in (slice(0, 33), slice(33, 48)):
        apart = run(tuple(x[:, part] for x in inputs), tuple(x[:, part] for x in cotangents), options, impl)
        for whole, piece in zip(together, jax.tree.leaves(apart), strict=True):
            close(whole[:, part], piece, 1e-5)


@each_implementation
def test_a_length_is_a_shorter_row(impl: str) -> None:
    inputs, cotangents, options = Shape(T=40, N=1, lengths=(33,)).make("float32")
    whole = jax.tree.leaves(run(inputs, cotangents, options, impl))
    options["lengths"] = None
    short = run(tuple(x[:, :33] for x in inputs), tuple(x[:, :33] for x in cotangents), options, impl)
    for ragged, cut in zip(whole, jax.tree.leaves(short), strict=True):
        close(ragged[:, :33], cut, 1e-6)
    out, lse, *gradients = (x[:, 33:] for x in whole)
    assert not out.any() and (lse == np.float32(-1e30)).all() and not any(x.any() for x in gradients)


@each_implementation
def test_grouped_heads_are_repeated_heads(impl: str) -> None:
    inputs, cotangents, options = Shape(T=34, N=4, K=2).make("float32")
    grouped, (d_query, d_key, d_value) = run(inputs, cotangents, options, impl)
    repeated = (inputs[0], *(np.repeat(x, 2, axis=2) for x in inputs[1:]))
    single, (d_query_1, d_key_1, d_value_1) = run(repeated, cotangents, options, impl)
    for got, expected in (
        (grouped[0], single[0]), (grouped[1], single[1]), (d_query, d_query_1),
        (d_key, d_key_1.reshape(1, 34, 2, 2, -1).sum(3)), (d_value, d_value_1.reshape(1, 34, 2, 2, -1).sum(3)),
    ):  # fmt: skip
        close(got, expected, 1e-5)


@pytest.mark.parametrize("impl", ["gpu_triton"], indirect=True)
@pytest.mark.parametrize("packed", [0, 2])
@pytest.mark.parametrize("tiling", ["hopper narrow", "hopper wide", "blackwell narrow", "ampere narrow", "ampere wide"])
def test_every_tiling_of_triton(impl: str, tiling: str, packed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from pallas_kernels.flash_attention.gpu_triton import backward, forward, tiles

    generation, width = tiling.split()
    for module in (forward, backward):
        monkeypatch.setattr(module, "tilings", lambda *_: tiles.TILINGS[generation, width == "narrow"])
    inputs, cotangents, options = Shape(T=150, packed=packed, lengths=None if packed else (140,)).make("float32")
    got = run(inputs, cotangents, options, impl)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(run(inputs, cotangents, options, "reference")), strict=True):
        close(a, b, 1e-4)


@pytest.mark.parametrize("impl", ["tpu"], indirect=True)
def test_several_blocks_of_a_tpu(impl: str) -> None:
    # 300 tokens are three blocks of 128; of those above the diagonal splash visits none.
    inputs, cotangents, options = Shape(T=300, N=1).make("float32")
    got = run(inputs, cotangents, options, impl)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(run(inputs, cotangents, options, "reference")), strict=True):
        close(a, b, 1e-4)


def test_new_lengths_and_segments_compile_nothing() -> None:
    inputs, _, _ = Shape(B=2, T=8).make("float32")
    attend = jax.jit(lambda *x: flash_attention(*inputs, scale=1.0, lengths=x[0], segments=x[1]))
    for length in range(4):
        attend(np.full(2, length, np.int32), np.full((2, 8), length, np.int32))
    assert attend._cache_size() == 1


def arrays(B: int = 2, T: int = 4, N: int = 4, S: int = 4, K: int = 2, H: int = 8, V: int = 8) -> tuple[np.ndarray, ...]:
    return np.ones((B, T, N, H), np.float32), np.ones((B, S, K, H), np.float32), np.ones((B, S, K, V), np.float32)


REFUSALS: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any]]] = {
    "as many queries as keys": (arrays(S=5), {}),
    "multiple of 3 key heads": (arrays(K=3), {}),
    "agree in rows": ((*arrays()[:2], np.ones((2, 5, 2, 8), np.float32)), {}),
    "four dimensions": ((np.ones((2, 4, 8), np.float32), *arrays()[1:]), {}),
    "one number for each of 2 rows": (arrays(), {"lengths": np.ones(3, np.int32)}),
    "lengths are integers": (arrays(), {"lengths": np.ones(2, np.float32)}),
    "number the tokens of queries and keys": (arrays(S=5), {"segments": np.ones((2, 4), np.int32), "causal": False}),
    "dtypes are the same": ((arrays()[0].astype(ml_dtypes.bfloat16), *arrays()[1:]), {}),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_does_not_fit_is_refused(message: str) -> None:
    given, options = REFUSALS[message]
    with pytest.raises(ValueError, match=message):
        flash_attention(*given, scale=1.0, **options)


def test_heads_too_wide_for_registers_are_refused_by_triton_only() -> None:
    wide = arrays(H=256, V=256)
    triton, *_, reference = FLASH_ATTENTION
    options = {"scale": 1.0, "causal": True, "lengths": None, "segments": None}
    assert "256" in (triton.refuses(*wide, **options) or "")
    assert triton.refuses(*arrays(H=192, V=128), **options) is None
    assert reference.refuses(*wide, **options) is None


def test_tokamax_is_named_where_it_is_missing() -> None:
    if next(i for i in FLASH_ATTENTION if i.name == "tokamax").installed:
        pytest.skip("tokamax is installed")
    with pytest.raises(ModuleNotFoundError, match="pip install 'tokamax'"):
        flash_attention(*arrays(), scale=1.0, impl="tokamax")


@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == "float32"], ids=lambda case: case.label)
def test_cases_expect_what_the_reference_gives(case: Any) -> None:
    given = case.fill(np.random.default_rng(0), case.arguments)
    got = jax.jit(functools.partial(case.run, impl="reference"))(*given)
    for result, expected in zip(got, case.expected(*given), strict=True):
        leading = np.asarray(result, np.float64)[tuple(slice(0, n) for n in expected.shape)]
        np.testing.assert_allclose(leading, expected, atol=1e-5, rtol=1e-5)


def test_empty_arrays_are_refused_by_name() -> None:
    for shape in ((0, 8, 2, 16), (1, 0, 2, 16)):
        nothing = jnp.zeros(shape)
        with pytest.raises(ValueError, match="no dimension is empty"):
            flash_attention(nothing, nothing, nothing, scale=1.0, impl="reference")


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None or importlib.util.find_spec("jax_triton") is None,
    reason="the GPU's compiler is not installed: run make test-aot",
)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton's interpreter takes the place of its compiler")
@pytest.mark.parametrize("width", [80, 96, 112])
@pytest.mark.parametrize("target", ["a100", "h200"])
def test_widths_between_powers_of_two_spill_no_registers(target: str, width: int) -> None:
    from pallas_kernels.resources import compile_for
    from pallas_kernels.targets import TARGETS

    def loss(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return flash_attention(query, key, value, scale=0.1, impl="gpu_triton")[0].astype(jnp.float32).sum()

    query = jax.ShapeDtypeStruct((1, 300, 4, width), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((1, 300, 2, width), jnp.bfloat16)
    compiled = compile_for(TARGETS[target], jax.grad(loss, argnums=(0, 1, 2)), query, key, key)
    assert len(compiled.kernels) == 4 and not any(kernel.spilled_bytes for kernel in compiled.kernels), compiled.kernels
