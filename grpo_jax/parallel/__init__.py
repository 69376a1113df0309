"""The processes of a run, the device mesh, and the table that maps logical axis names onto it."""

from grpo_jax.parallel.hosts import from_first, gathered, is_first, place, start_hosts, to_host, together
from grpo_jax.parallel.kernels import on_shards, platform_of
from grpo_jax.parallel.mesh import AXES, MeshShape, ensure_devices, make_mesh
from grpo_jax.parallel.sharding import (
    LOGICAL_TO_MESH,
    constrain,
    named_sharding,
    partition_spec,
    replicated,
    row_sharding,
    shard_tree,
    tree_shardings,
)

__all__ = [
    "AXES",
    "LOGICAL_TO_MESH",
    "MeshShape",
    "constrain",
    "ensure_devices",
    "from_first",
    "gathered",
    "is_first",
    "make_mesh",
    "named_sharding",
    "on_shards",
    "partition_spec",
    "place",
    "platform_of",
    "replicated",
    "row_sharding",
    "shard_tree",
    "start_hosts",
    "to_host",
    "together",
    "tree_shardings",
]
