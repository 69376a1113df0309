"""Rematerialisation and unrolling change what is computed when, never the result."""

import dataclasses
from functools import cache

import jax
import numpy as np
import pytest

from grpo_jax.model import hidden_states
from tests.model.cases import CONFIGS, LENGTH, tokens, weights

CONFIG = CONFIGS["mla_q_rank"]
PROBE = np.random.default_rng(3).normal(size=(1, LENGTH, CONFIG.embed_dim)).astype(np.float32)


def _loss_and_gradient(remat, unroll):
    config = dataclasses.replace(CONFIG, remat=remat, scan_unroll=unroll)
    return jax.value_and_grad(lambda params: (hidden_states(config, params, tokens(1)) * PROBE).sum())


@cache
def _computed(remat, unroll):
    return jax.device_get(jax.jit(_loss_and_gradient(remat, unroll))(weights(CONFIG)))


@pytest.mark.parametrize("remat, unroll", [("full", 1), ("dots", 1), ("full", 2)])
def test_remat_and_unrolling_keep_outputs_and_gradients(remat, unroll):
    loss, gradient = _computed("none", 1)
    other_loss, other_gradient = _computed(remat, unroll)
    assert abs(loss) > 1
    np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
    for got, expected in zip(jax.tree.leaves(other_gradient), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_full_recomputes_more_products_than_dots_and_none_recomputes_none():
    products = {
        remat: str(jax.make_jaxpr(_loss_and_gradient(remat, 1))(weights(CONFIG))).count("dot_general")
        for remat in ("none", "dots", "full")
    }
    assert products["none"] < products["dots"] < products["full"], products
