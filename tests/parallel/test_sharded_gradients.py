"""Gradients of a model on a mesh of eight devices are those on one."""

import jax
import numpy as np
import pytest

from grpo_jax.model import hidden_states, param_axes
from grpo_jax.parallel import MeshShape, make_mesh, row_sharding, shard_tree
from tests.model.cases import CONFIGS, LENGTH, tokens, weights

ROWS = 4
PROBE = np.random.default_rng(3).normal(size=(ROWS, LENGTH, 16)).astype(np.float32)


def _gradient(config, mesh):
    return jax.jit(jax.grad(lambda params, ids: (hidden_states(config, params, ids, mesh) * PROBE).sum()))


@pytest.mark.parametrize("name, shape", [("mla_q_rank", "2x4"), ("gqa", "2x2x2")])
def test_sharded_gradients_match_one_device(name, shape):
    config, mesh = CONFIGS[name], make_mesh(MeshShape.parse(shape))
    params = shard_tree(weights(config), mesh, param_axes(config))
    got = _gradient(config, mesh)(params, jax.device_put(tokens(ROWS), row_sharding(mesh)))
    expected = _gradient(config, None)(weights(config), tokens(ROWS))
    for gradient, alone in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(gradient, alone, rtol=1e-5, atol=2e-5)
