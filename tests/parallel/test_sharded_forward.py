"""A model on a mesh of eight devices computes what it computes on one."""

import jax
import numpy as np
import pytest

from grpo_jax.model import (
    check_divisible,
    decode_step,
    hidden_states,
    init_cache,
    init_params,
    param_axes,
    prefill,
    unstack_layers,
)
from grpo_jax.parallel import MeshShape, make_mesh, row_sharding, shard_tree, tree_shardings
from tests.model.cases import CONFIGS, LENGTH, full, tokens, weights

ROWS, PROMPT = 4, 5
LENGTHS = np.array([3, 5, 1, 4])


@pytest.mark.parametrize("name, shape", [("mla_q_rank", "2x4"), ("gqa", "4x2")])
def test_sharded_forward_and_decode_match_one_device(name, shape):
    config, shape = CONFIGS[name], MeshShape.parse(shape)
    check_divisible(config, shape)
    mesh = make_mesh(shape)
    params = shard_tree(weights(config), mesh, param_axes(config))
    gate = params["layers"]["mlp"]["gate"]
    split = (config.num_layers, config.embed_dim // shape.fsdp, config.mlp_dim // shape.tensor)
    assert gate.addressable_shards[0].data.shape == split

    @jax.jit
    def everything(params, ids, lengths, following):
        kept = init_cache(config, ROWS, LENGTH, "float32")
        last, kept = prefill(config, params, ids[:, :PROMPT], lengths, kept, mesh)
        decoded, _ = decode_step(config, params, unstack_layers(params), following, lengths, kept, mesh)
        return hidden_states(config, params, ids, mesh), last, decoded

    ids = tokens(ROWS)
    rows = np.arange(ROWS)
    batch = jax.device_put((ids, LENGTHS, ids[rows, LENGTHS]), row_sharding(mesh))
    hidden, last, decoded = everything(params, *batch)
    assert hidden.sharding.shard_shape(hidden.shape)[0] == ROWS // shape.row_shards

    _, expected = jax.device_get(full(config, weights(config), ids))
    np.testing.assert_allclose(hidden, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(last, expected[rows, LENGTHS - 1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(decoded, expected[rows, LENGTHS], rtol=0, atol=1e-5)


def test_parameters_drawn_onto_a_mesh_are_those_drawn_on_one_device():
    config = CONFIGS["mla_q_rank"]
    shardings = tree_shardings(make_mesh(MeshShape.parse("2x4")), param_axes(config))
    draw = jax.jit(init_params, static_argnums=0, out_shardings=shardings)
    alone = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, draw(config, jax.random.key(0)), alone)
