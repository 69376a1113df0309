"""Kernels on a mesh: each device runs them on its own part of the arrays."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from grpo_jax.parallel.sharding import LogicalAxes, partition_spec
from pallas_kernels.dispatch import lowering_platform


def platform_of(mesh: Mesh | None) -> str:
    """What a program on this mesh is compiled for: "cpu", "gpu" or "tpu". None is the device that JAX computes on."""
    return lowering_platform() if mesh is None else mesh.devices.flat[0].platform


def on_shards(
    kernel: Callable[..., Any], mesh: Mesh | None, inputs: tuple[LogicalAxes, ...], outputs: Any
) -> Callable[..., Any]:
    """`kernel`, run by every device of the mesh on its own parts, where no part needs another.

    The compiler cannot split a kernel by itself. On a CPU there are none: references are plain jnp, which it does split,
    and better than by hand where a dimension is not divisible.

    Args:
        kernel: takes arrays, gives arrays.
        mesh: None calls it as it is.
        inputs: the logical axes of each array that it takes.
        outputs: those of what it gives, in its own tree structure.

    Raises:
        ValueError: (when called, on a mesh of accelerators) a dimension is not divisible by its shards.
    """
    if mesh is None or platform_of(mesh) == "cpu":
        return kernel
    specs = jax.tree.map(partition_spec, outputs, is_leaf=_is_axes)
    # Triton kernels do not say over which axes their outputs vary, so that is not checked.
    sharded = jax.shard_map(kernel, mesh=mesh, in_specs=tuple(map(partition_spec, inputs)), out_specs=specs, check_vma=False)

    def run(*arrays: jax.Array) -> Any:
        for array, axes in zip(arrays, inputs, strict=True):
            check_shards(mesh, array.shape, axes)
        return sharded(*arrays)

    return run


def check_shards(mesh: Mesh, shape: tuple[int, ...], axes: LogicalAxes) -> None:
    """Raises ValueError where a dimension cannot be split evenly over its mesh axes."""
    for size, name, target in zip(shape, axes, partition_spec(axes)):
        parts = [mesh.shape[axis] for axis in ((target,) if isinstance(target, str) else target or ())]
        if size % math.prod(parts):
            raise ValueError(
                f"an array of shape {shape} has {size} {name}, which mesh axes {target} cannot split into "
                f"{math.prod(parts)} equal parts: make {name} a multiple of {math.prod(parts)}, or the mesh smaller."
            )


def _is_axes(node: Any) -> bool:
    return isinstance(node, tuple) and all(name is None or isinstance(name, str) for name in node)
