"""A CPU runs plain jnp: what the dispatcher chooses there compiles to the very program that is asked for by name."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.model import abstract_params, decode_step, hidden_states, init_cache, unstack_layers
from tests.model.cases import CONFIGS

ROWS, SLOTS = 2, 8


def programs(config) -> list[str]:
    """The lowered forward pass, its gradient, and a decode step."""
    params = abstract_params(config)
    tokens = jax.ShapeDtypeStruct((ROWS, SLOTS), jnp.int32)
    ids = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    cache = jax.eval_shape(lambda: init_cache(config, ROWS, SLOTS, "float32"))

    def loss(params, tokens):
        return jnp.sum(hidden_states(config, params, tokens))

    def step(params, ids, positions, cache):
        return decode_step(config, params, unstack_layers(params), ids, positions, cache)

    lowered = jax.jit(jax.grad(loss)).lower(params, tokens), jax.jit(step).lower(params, ids, ids, cache)
    return [program.as_text() for program in lowered]


@pytest.mark.parametrize("name", ["mla_yarn", "gqa_yarn"])
def test_on_a_cpu_the_dispatcher_costs_nothing(name):
    config = CONFIGS[name]
    assert config.kernels == "auto"
    for chosen, plain in zip(programs(config), programs(dataclasses.replace(config, kernels="reference")), strict=True):
        assert chosen == plain


def test_an_unknown_choice_of_kernels_is_refused():
    with pytest.raises(ValueError, match=r"model\.kernels='fast' is unknown; the known ones are auto, reference"):
        dataclasses.replace(CONFIGS["gqa"], kernels="fast")
