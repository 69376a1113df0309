"""Logical axis names: what they map to, and what is refused."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from grpo_jax.parallel import (
    AXES,
    LOGICAL_TO_MESH,
    MeshShape,
    constrain,
    make_mesh,
    named_sharding,
    partition_spec,
    replicated,
    row_sharding,
    shard_tree,
)


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape.parse("2x2x2"))


@pytest.mark.parametrize(
    "names, spec",
    [
        ((), ()),
        (("rows", None), (("data", "fsdp"), None)),
        (("layers", "embed", "mlp"), (None, "fsdp", "tensor")),
        (("heads", "head_dim", "embed"), ("tensor", None, "fsdp")),
        (("vocab", "embed"), ("tensor", "fsdp")),
        (("rows", None, "kv_heads", None), (("data", "fsdp"), None, "tensor", None)),
        (("kv_rank", "q_rank", "norm"), (None, None, None)),
    ],
)
def test_names_map_to_mesh_axes(names, spec):
    assert partition_spec(names) == PartitionSpec(*spec)


def test_the_table_knows_only_axes_of_the_mesh():
    for target in LOGICAL_TO_MESH.values():
        assert set((target,) if isinstance(target, str) else target or ()) <= set(AXES)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown logical axis 'width'") as error:
        partition_spec(("rows", "width"))
    assert all(name in str(error.value) for name in LOGICAL_TO_MESH)


@pytest.mark.parametrize(
    "names, axis", [(("heads", "mlp"), "tensor"), (("rows", "embed"), "fsdp"), (("embed", "embed"), "fsdp")]
)
def test_two_dimensions_on_one_mesh_axis_are_refused(names, axis):
    with pytest.raises(ValueError, match=f"'{names[0]}' and '{names[1]}' both map to the mesh axis '{axis}'"):
        partition_spec(names)


def test_constrain_without_a_mesh_is_the_identity():
    x = np.ones(3)
    assert constrain(x, None, ("no such name",)) is x


def test_constrain_pins_the_sharding_inside_jit(mesh):
    x = jax.jit(lambda x: constrain(x, mesh, ("rows", "mlp")))(np.ones((4, 6), np.float32))
    assert x.sharding.is_equivalent_to(named_sharding(mesh, ("rows", "mlp")), 2)
    assert x.sharding.shard_shape(x.shape) == (1, 3)


def test_rows_are_split_whatever_the_rank_and_replicas_are_whole(mesh):
    for shape in ((8,), (8, 3), (8, 3, 2)):
        assert row_sharding(mesh).shard_shape(shape) == (2, *shape[1:])
        assert replicated(mesh).shard_shape(shape) == shape


def test_shard_tree_places_every_leaf_and_keeps_its_values(mesh):
    tree = {"table": np.arange(32.0).reshape(8, 4), "inner": {"scale": np.arange(4.0)}}
    placed = shard_tree(tree, mesh, {"table": ("vocab", "embed"), "inner": {"scale": ("norm",)}})
    assert placed["table"].sharding.shard_shape((8, 4)) == (4, 2)
    assert placed["inner"]["scale"].sharding.is_fully_replicated
    jax.tree.map(np.testing.assert_array_equal, placed, tree)
