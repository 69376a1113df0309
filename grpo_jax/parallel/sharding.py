"""Logical axis names -> mesh axes: the one table that says what is sharded over what."""

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from grpo_jax.parallel.hosts import place
from grpo_jax.types import Array, AxesTree

LogicalAxes = tuple[str | None, ...]

# Rows go over data and fsdp alike. Parameters are split over fsdp along the model width and over tensor along heads,
# feed-forward width or vocabulary; the latent ranks of MLA are small and shared by all heads, so they stay whole.
# An activation's model width is not named: its rows already use fsdp.
LOGICAL_TO_MESH: dict[str, str | tuple[str, ...] | None] = {
    "rows": ("data", "fsdp"),
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "head_dim": None,
    "kv_rank": None,
    "q_rank": None,
    "layers": None,
    "norm": None,
}


def partition_spec(logical_axes: LogicalAxes) -> PartitionSpec:
    """The mesh axes of an array whose dimensions carry these logical names; None is a dimension left whole.

    Raises:
        ValueError: a name is not in LOGICAL_TO_MESH, or two dimensions claim the same mesh axis.
    """
    entries: list[str | tuple[str, ...] | None] = []
    claimed: dict[str, str] = {}
    for name in logical_axes:
        if name is None:
            entries.append(None)
            continue
        if name not in LOGICAL_TO_MESH:
            raise ValueError(f"unknown logical axis {name!r}; the known ones are {', '.join(sorted(LOGICAL_TO_MESH))}.")
        target = LOGICAL_TO_MESH[name]
        for axis in (target,) if isinstance(target, str) else target or ():
            if axis in claimed:
                raise ValueError(
                    f"logical axes {logical_axes}: {claimed[axis]!r} and {name!r} both map to the mesh axis {axis!r}, "
                    "which can split one dimension only; name one of them None."
                )
            claimed[axis] = name
        entries.append(target)
    return PartitionSpec(*entries)


def named_sharding(mesh: Mesh, logical_axes: LogicalAxes) -> NamedSharding:
    """The sharding on `mesh` of an array whose dimensions carry these logical names."""
    return NamedSharding(mesh, partition_spec(logical_axes))


def constrain(x: Array, mesh: Mesh | None, logical_axes: LogicalAxes) -> Array:
    """Pins the sharding of an intermediate inside jit; the identity where `mesh` is None."""
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, named_sharding(mesh, logical_axes))


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Splits the first dimension, the rows, over data and fsdp; for every array of a batch, whatever its rank."""
    return named_sharding(mesh, ("rows",))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def tree_shardings(mesh: Mesh, axes_tree: AxesTree) -> dict:
    """The sharding of every leaf of a tree whose leaves are tuples of logical axis names."""
    return jax.tree.map(lambda axes: named_sharding(mesh, axes), axes_tree, is_leaf=lambda node: isinstance(node, tuple))


def shard_tree[T](tree: T, mesh: Mesh, axes_tree: AxesTree) -> T:
    """Places a tree of arrays on `mesh`; `axes_tree` holds, in the same shape, each array's logical axis names."""
    return jax.tree.map(place, tree, tree_shardings(mesh, axes_tree))
