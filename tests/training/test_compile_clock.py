"""Compilations are counted while the clock is entered, and only new ones."""

import jax
import jax.numpy as jnp

from grpo_jax.training.compile_clock import CompileClock


def test_only_a_new_shape_compiles() -> None:
    double = jax.jit(lambda x: x * 2 + 1)
    short, long = jnp.zeros(3), jnp.zeros(5)
    with CompileClock() as clock:
        double(short)
        assert (clock.count, clock.seconds > 0) == (1, True)
        double(short)
        assert clock.count == 1
        double(long)
        assert clock.count == 2
    seconds = clock.seconds
    double(jnp.zeros(7))
    assert (clock.count, clock.seconds) == (2, seconds)
