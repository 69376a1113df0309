"""Parameters: the documented tree, drawn from one key, with names for every dimension."""

import math
from functools import cache

import jax
import numpy as np
import pytest

from grpo_jax.model import abstract_params, check_divisible, init_params, param_axes, unembedding, unstack_layers
from grpo_jax.parallel import MeshShape, partition_spec
from tests.model.cases import CONFIGS, weights

L, D, F, V, N, K, H = 2, 16, 32, 24, 4, 2, 8
C, R, NOPE, HV, Q = 6, 8, 10, 5, 7

COMMON = {
    "embed.embedding": (V, D),
    "layers.attention_norm.scale": (L, D),
    "layers.mlp_norm.scale": (L, D),
    "layers.mlp.gate": (L, D, F),
    "layers.mlp.up": (L, D, F),
    "layers.mlp.down": (L, F, D),
    "final_norm.scale": (D,),
}
LATENT = {
    "layers.attention.kv_down": (L, D, C + R),
    "layers.attention.kv_norm.scale": (L, C),
    "layers.attention.key_up": (L, C, N, NOPE),
    "layers.attention.value_up": (L, C, N, HV),
    "layers.attention.out": (L, N, HV, D),
}
SHAPES = {
    "mla": COMMON | LATENT | {"layers.attention.query": (L, D, N, NOPE + R)},
    "mla_q_rank": COMMON
    | LATENT
    | {
        "layers.attention.query_down": (L, D, Q),
        "layers.attention.query_norm.scale": (L, Q),
        "layers.attention.query_up": (L, Q, N, NOPE + R),
        "unembed.kernel": (D, V),
    },
    "gqa": COMMON
    | {
        "layers.attention.query": (L, D, N, H),
        "layers.attention.key": (L, D, K, H),
        "layers.attention.value": (L, D, K, H),
        "layers.attention.out": (L, N, H, D),
    },
}

CONFIG = CONFIGS["mla_q_rank"]
RESIDUAL = ("layers.attention.out", "layers.mlp.down")
draw = jax.jit(init_params, static_argnums=0)


def _named(tree, is_leaf=None):
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    return {".".join(key.key for key in path): leaf for path, leaf in leaves}


@cache
def _drawn(seed):
    return _named(jax.device_get(draw(CONFIG, jax.random.key(seed))))


@pytest.mark.parametrize("name", SHAPES)
def test_tree_has_the_documented_names_and_shapes(name):
    assert {key: leaf.shape for key, leaf in _named(abstract_params(CONFIGS[name])).items()} == SHAPES[name]


def test_init_makes_what_abstract_params_announces():
    announced = _named(abstract_params(CONFIG))
    assert {name: (array.shape, array.dtype) for name, array in _drawn(0).items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in announced.items()
    }


def test_equal_keys_give_equal_parameters_and_other_keys_others():
    again = _named(jax.device_get(draw(CONFIG, jax.random.key(0))))
    for name, array in _drawn(0).items():
        np.testing.assert_array_equal(again[name], array)
        if not name.endswith("scale"):
            assert (array != _drawn(1)[name]).any()


def test_weights_have_the_configured_deviation_and_residual_ones_a_smaller():
    for name, array in _drawn(0).items():
        if name.endswith("scale"):
            np.testing.assert_array_equal(array, 1)
            continue
        expected = CONFIG.initializer_range
        if name in RESIDUAL:
            expected /= math.sqrt(2 * CONFIG.num_layers)
        # Four standard errors of a standard deviation.
        assert array.std() == pytest.approx(expected, rel=4 / math.sqrt(2 * array.size)), name
        assert abs(array.mean()) < 4 * expected / math.sqrt(array.size), name


def test_no_layer_or_weight_repeats_the_draw_of_another():
    drawn = {name: array for name, array in _drawn(0).items() if not name.endswith("scale")}
    units = {name: array / (array.std() + 1e-12) for name, array in drawn.items()}
    blocks = [(name, block) for name, array in units.items() if name.startswith("layers") for block in array]
    blocks += [(name, array) for name, array in units.items() if not name.startswith("layers")]
    for number, (name, block) in enumerate(blocks):
        for other_name, other in blocks[number + 1 :]:
            size = min(block.size, other.size)
            alike = np.corrcoef(block.ravel()[:size], other.ravel()[:size])[0, 1]
            assert abs(alike) < 0.5, (name, other_name)


@pytest.mark.parametrize("name", SHAPES)
def test_every_dimension_has_a_logical_axis_and_no_two_collide(name):
    axes = _named(param_axes(CONFIGS[name]), is_leaf=lambda node: isinstance(node, tuple))
    assert {key: len(names) for key, names in axes.items()} == {key: len(shape) for key, shape in SHAPES[name].items()}
    for key, names in axes.items():
        partition_spec(names)
        assert (names[0] == "layers") == key.startswith("layers")


def test_large_arrays_are_split_both_ways():
    axes = _named(param_axes(CONFIGS["gqa"]), is_leaf=lambda node: isinstance(node, tuple))
    for name, names in axes.items():
        if not name.endswith("scale"):
            spec = partition_spec(names)
            assert "fsdp" in spec and "tensor" in spec, name


def test_unembedding_is_the_embedding_transposed_only_where_tied():
    tied, untied = CONFIGS["gqa"], CONFIG
    np.testing.assert_array_equal(unembedding(tied, weights(tied)), weights(tied)["embed"]["embedding"].T)
    np.testing.assert_array_equal(unembedding(untied, weights(untied)), weights(untied)["unembed"]["kernel"])


def test_unstacked_layers_are_slices_of_the_stack():
    layers = unstack_layers(weights(CONFIG))
    assert len(layers) == CONFIG.num_layers
    for number, layer in enumerate(layers):
        for name, array in _named(layer).items():
            np.testing.assert_array_equal(array, _named(weights(CONFIG))[f"layers.{name}"][number])


@pytest.mark.parametrize(
    "name, mesh, key, axis",
    [
        ("gqa", "1x3", "model.mlp_dim=32", "tensor axis of 3"),
        ("gqa", "1x16", "model.vocab_size=24", "tensor axis of 16"),
        ("gqa", "3", "model.embed_dim=16", "fsdp axis of 3"),
        ("gqa", "1x4", "model.gqa.num_kv_heads=2", "tensor axis of 4"),
        ("gqa", "1x8", "model.gqa.num_heads=4", "tensor axis of 8"),
        ("mla", "1x8", "model.mla.num_heads=4", "tensor axis of 8"),
    ],
)
def test_mesh_that_does_not_divide_the_model_is_refused_by_name(name, mesh, key, axis):
    with pytest.raises(ValueError, match=key) as error:
        check_divisible(CONFIGS[name], MeshShape.parse(mesh))
    assert axis in str(error.value)


@pytest.mark.parametrize("name, mesh", [("gqa", "8x2"), ("mla", "2x4x4"), ("mqa", "1"), ("mla", "data=7")])
def test_mesh_that_divides_the_model_is_accepted(name, mesh):
    check_divisible(CONFIGS[name], MeshShape.parse(mesh))
