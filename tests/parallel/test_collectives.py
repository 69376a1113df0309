"""Collectives are read from a compiled program: each kind, how often, and how many bytes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from grpo_jax.parallel import MeshShape, make_mesh, on_shards
from grpo_jax.parallel.collectives import collectives
from grpo_jax.parallel.kernels import check_shards

MESH = make_mesh(MeshShape(fsdp=4, tensor=2))


def _read(function, *shapes):
    mapped = jax.shard_map(function, mesh=MESH, in_specs=P("fsdp"), out_specs=P(), check_vma=False)
    return collectives(jax.jit(mapped).lower(*shapes).compile().as_text())


def test_each_kind_is_counted_with_the_bytes_of_its_result():
    def exchange(x):
        whole = jax.lax.all_gather(x, "fsdp", tiled=True)
        return jax.lax.psum(whole * 2, "tensor")

    found = _read(exchange, jax.ShapeDtypeStruct((8, 16), jnp.float32))
    assert found.counts == {"all-gather": 1, "all-reduce": 1}
    assert found.bytes == {"all-gather": 8 * 16 * 4, "all-reduce": 8 * 16 * 4}
    assert str(found) == "1 all-gather of 0.0 MB, 1 all-reduce of 0.0 MB"


def test_a_program_without_exchange_has_none():
    assert not _read(lambda x: x * 2, jax.ShapeDtypeStruct((8, 16), jnp.float32)).counts


def test_asynchronous_and_several_results_are_read_and_names_are_not_taken_for_operations():
    text = """
      %all-reduce-start.1 = (bf16[4,2]{1,0}, f32[3]{0}) all-reduce-start(%a, %b), channel_id=1
      %all-reduce-done.1 = (bf16[4,2]{1,0}, f32[3]{0}) all-reduce-done(%all-reduce-start.1)
      %fusion = pred[8]{0} fusion(%all-gather.3), kind=kLoop
      ROOT %reduce-scatter = s8[10]{0} reduce-scatter(%x), dimensions={0}
    """
    found = collectives(text)
    assert found.counts == {"all-reduce": 1, "reduce-scatter": 1}
    assert found.bytes == {"all-reduce": 16 + 12, "reduce-scatter": 10}


def test_references_are_left_to_the_compiler_on_a_cpu():
    def kernel(x):
        return x

    assert on_shards(kernel, MESH, (("rows",),), ("rows",)) is kernel
    assert on_shards(kernel, None, (("rows",),), ("rows",)) is kernel


def test_what_a_mesh_cannot_split_is_refused_with_the_axis_and_its_size():
    with pytest.raises(ValueError, match=r"has 1 kv_heads, which mesh axes tensor cannot split into 2 equal parts"):
        check_shards(MESH, (4, 8, 1, 16), ("rows", None, "kv_heads", None))
    with pytest.raises(ValueError, match=r"has 3 rows, which mesh axes \('data', 'fsdp'\) cannot split into 4 equal parts"):
        check_shards(MESH, (3, 8), ("rows", None))
    check_shards(MESH, (4, 8, 2, 16), ("rows", None, "kv_heads", None))
