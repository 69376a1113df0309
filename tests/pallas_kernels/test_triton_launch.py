"""Launching Triton kernels: outputs, arrays written in place, empty grids, and what a wrong platform says."""

import functools
import inspect
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jax_triton", reason="jax-triton is not installed: run make test-aot")

import triton
import triton.language as tl
from jax_triton import triton_lib

from pallas_kernels import resources, rms_norm, triton_launch
from pallas_kernels.targets import TARGETS, compiling_for
from pallas_kernels.triton_launch import InPlace, launch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Skips outside Triton's interpreter, and puts gpu_triton into the test's name, by which its process selects them.
interpreted = pytest.mark.parametrize("impl", ["gpu_triton"], indirect=True)
compiled = pytest.mark.skipif(INTERPRETED, reason="Triton's interpreter takes the place of its compiler")


@triton.jit
def _scale(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr + at, x * factor, mask=at < n)


@triton.jit
def _add_to(x_ptr, total_ptr, count_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(total_ptr + at) + tl.load(x_ptr + at)
    tl.store(total_ptr + at, total)
    tl.store(count_ptr + tl.program_id(0), tl.program_id(0) + 1)
    tl.store(out_ptr + at, -total)


def scale(x: jax.Array, factor: float = 3.0, written: int | None = None) -> jax.Array:
    (out,) = launch(
        _scale, x, outputs=[jax.ShapeDtypeStruct(x.shape, x.dtype)], grid=(triton.cdiv(x.size, 16),),
        scalars={"n": x.size if written is None else written, "factor": factor}, constants={"BLOCK": 16},
    )  # fmt: skip
    return out


def add_to(x: jax.Array, total: jax.Array, count: jax.Array) -> tuple[jax.Array, ...]:
    return launch(
        _add_to, x, InPlace(total), InPlace(count), outputs=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
        grid=(x.size // 16,), constants={"BLOCK": 16},
    )  # fmt: skip


@interpreted
@pytest.mark.parametrize("n", [1, 16, 37])
def test_scalars_constants_and_partial_blocks_reach_the_kernel(impl: str, n: int) -> None:
    x = jnp.arange(n, dtype=jnp.float32)
    np.testing.assert_array_equal(jax.jit(scale)(x), 3 * np.arange(n))


@interpreted
def test_outputs_that_a_kernel_does_not_write_show(impl: str) -> None:
    out = np.asarray(scale(jnp.ones(20, jnp.float32), written=5))
    assert (out[:5] == 3).all() and np.isnan(out[5:]).all()
    integers = np.asarray(scale(jnp.ones(20, jnp.int32), factor=3, written=5))
    assert (integers[5:] == np.iinfo(np.int32).min).all()


@interpreted
@pytest.mark.parametrize("jitted", [False, True])
def test_arrays_in_place_come_after_the_outputs_and_the_caller_s_own_stay(impl: str, jitted: bool) -> None:
    x, total, count = jnp.arange(32.0), jnp.full(32, 10.0), jnp.zeros(2, jnp.int32)
    out, new_total, new_count = (jax.jit(add_to) if jitted else add_to)(x, total, count)
    np.testing.assert_array_equal(new_total, 10 + np.arange(32))
    np.testing.assert_array_equal(out, -10 - np.arange(32))
    np.testing.assert_array_equal(new_count, [1, 2])
    assert (total == 10).all() and (count == 0).all()


def test_an_empty_grid_launches_nothing() -> None:
    total, count = jnp.full((0,), 1.0), jnp.full(3, 7, jnp.int32)
    out, new_total, new_count = add_to(jnp.zeros(0), total, count)
    assert out.shape == (0,) and new_total is total and new_count is count
    (zeros,) = launch(_scale, total, outputs=[jax.ShapeDtypeStruct((2,), jnp.bfloat16)], grid=(4, 0))
    assert zeros.dtype == jnp.bfloat16 and (zeros == 0).all()


@compiled
def test_a_triton_kernel_lowered_for_a_cpu_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"_scale: a Triton kernel runs on a GPU, .* for cpu: use impl='reference'"):
        jax.jit(scale).lower(jax.ShapeDtypeStruct((32,), jnp.float32))


def gpu(name: str = "h200"):
    if not TARGETS[name].installed:
        pytest.skip(f"{TARGETS[name].package} is not installed: run make test-aot")
    return TARGETS[name]


@compiled
def test_a_launch_is_one_call_of_its_name() -> None:
    made = resources.compile_for(gpu(), scale, jax.ShapeDtypeStruct((4096,), jnp.float32))
    assert made.calls == 1 and [kernel.name for kernel in made.kernels] == ["_scale"]
    assert 0 < made.kernels[0].registers <= 255 and made.kernels[0].spilled_bytes == 0


@compiled
def test_a_kernel_that_was_compiled_before_is_counted_again() -> None:
    x, weight = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 64), (64,)))
    norm = functools.partial(rms_norm, impl="gpu_triton")
    first, second = (resources.compile_for(gpu(), norm, x, weight) for _ in range(2))
    assert len(first.kernels) == 1 and first == second


@compiled
def test_an_array_in_place_is_not_copied_where_it_is_donated() -> None:
    mesh = gpu().mesh((1,), ("device",))
    on_it = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    x = jax.ShapeDtypeStruct((2**20,), jnp.float32, sharding=on_it)
    count = jax.ShapeDtypeStruct((2**16,), jnp.int32, sharding=on_it)

    def written(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        # JAX gives a donated array's memory to the first result of its shape.
        out, *new = add_to(*arrays)
        return (*new, out)

    def temporaries(donated: tuple[int, ...]) -> tuple[int, int]:
        with compiling_for(mesh):
            program = jax.jit(written, donate_argnums=donated).lower(x, x, count).compile()
        text, memory = program.as_text(), program.memory_analysis()
        assert text is not None and memory is not None
        return sum(" copy(" in line and "f32[1048576]" in line for line in text.splitlines()), memory.alias_size_in_bytes

    copies, aliased = temporaries((1, 2))
    assert (copies, aliased) == (0, 4 * (2**20 + 2**16))
    assert temporaries(())[1] == 0


@compiled
@pytest.mark.parametrize("unused", ["out", "all"])
def test_results_that_nobody_reads_do_not_break_compiling(unused: str) -> None:
    """Dead code is what jax-triton's rule, which is mended, is called for."""

    def program(x: jax.Array, total: jax.Array, count: jax.Array) -> jax.Array:
        add_to(x, total, count)
        _, new_total, _ = add_to(x, total, count)
        return new_total if unused == "out" else x

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (((64,), "float32"),) * 2 + (((4,), "int32"),)]
    made = resources.compile_for(gpu(), lambda *arrays: jax.jit(program)(*arrays), *shapes)
    assert made.calls <= 2 if unused == "out" else made.calls <= 1


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="this jax hands rules two arguments")
def test_the_mended_rule_is_still_needed() -> None:
    """When this fails, jax-triton's rule takes live_ins itself: delete triton_launch._mend_dce_rule and its call."""
    assert len(inspect.signature(triton_lib._triton_kernel_call_dce_rule).parameters) == 2
    assert callable(triton_launch._mend_dce_rule)


@compiled
def test_the_rule_is_mended_once() -> None:
    from jax._src.interpreters import partial_eval

    triton_launch._mend_dce_rule()
    rule = partial_eval.dce_rules[triton_lib.triton_kernel_call_p]
    triton_launch._mend_dce_rule()
    assert partial_eval.dce_rules[triton_lib.triton_kernel_call_p] is rule
    assert len(inspect.signature(rule).parameters) == (3 if jax.__version_info__ >= (0, 12) else 2)


@compiled
@pytest.mark.parametrize("name", ["a100", "b200"])
def test_the_assembler_of_every_gpu_takes_the_ptx(name: str) -> None:
    made = resources.compile_for(gpu(name), functools.partial(scale, factor=2.0), jax.ShapeDtypeStruct((64,), jnp.bfloat16))
    assert [kernel.spilled_bytes for kernel in made.kernels] == [0]
