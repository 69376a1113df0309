"""The logits [B, T, V] never exist: read from the compiled program, forward and backward, at a size no test could run."""

import math
import re

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.objectives import token_logprobs

B, T, D, V = 8, 2048, 64, 131072
CHUNK = 64


def compiled(chunk, dtype):
    def loss(hidden, kernel, tokens):
        stats = token_logprobs(hidden, kernel, tokens, chunk=chunk)
        return jnp.sum(stats.logprobs_BT), jnp.sum(stats.entropy_BT)

    shapes = (
        jax.ShapeDtypeStruct((B, T, D), dtype),
        jax.ShapeDtypeStruct((D, V), dtype),
        jax.ShapeDtypeStruct((B, T), jnp.int32),
    )
    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True)).lower(*shapes).compile()


def largest_array(program):
    """Elements of the largest array named anywhere in the compiled program, inside fusions and loops too."""
    return max(math.prod(map(int, shape.split(","))) for shape in re.findall(r"\w\[(\d[\d,]*)\]", program.as_text()))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_array_of_the_compiled_gradient_is_larger_than_a_chunk_of_logits(dtype):
    program = compiled(CHUNK, dtype)
    assert largest_array(program) == B * CHUNK * V
    assert not re.search(r"\bscatter\(", program.as_text())
    # A few chunks of logits and the kernel's gradient, against 8 GiB for one array of all logits.
    temporary = program.memory_analysis().temp_size_in_bytes
    assert temporary < 5 * (B * CHUNK * V * 4) < B * T * V * 4 // 6


def test_the_check_sees_the_logits_where_they_do_exist():
    program = compiled(T, jnp.float32)
    assert largest_array(program) >= B * T * V
    assert program.memory_analysis().temp_size_in_bytes >= B * T * V * 4
