"""The arrays of a tree by dotted path, shape and dtype, and whether two such lists agree."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax.checkpoint.errors import CheckpointMismatchError


class Leaf(NamedTuple):
    """One array: its dotted path (`params.embed.embedding`), shape and dtype name."""

    path: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def flatten(tree: Any) -> dict[str, Any]:
    """Returns a tree's leaves by dotted path, in the tree's order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def describe(path: str, array: Any) -> Leaf:
    """Returns the `Leaf` of anything that has a shape and a dtype."""
    return Leaf(path, tuple(array.shape), np.dtype(array.dtype).name)


def restore_target(leaf: Any) -> jax.ShapeDtypeStruct:
    """Says where an array is to be restored: its own sharding, or the first local device if it has none."""
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def check_structure(saved: Sequence[Leaf], wanted: Sequence[Leaf], *, source: str) -> None:
    """Checks that a checkpoint holds exactly the wanted arrays.

    Args:
      saved: what the checkpoint holds.
      wanted: what the configuration needs.
      source: where the checkpoint is, for the message.

    Raises:
      CheckpointMismatchError: names the first leaf that is missing, differs in shape or dtype, or is not wanted.
    """
    by_path = {leaf.path: leaf for leaf in saved}
    for leaf in wanted:
        found = by_path.pop(leaf.path, None)
        if found is None:
            problem = f"the configuration needs {leaf.path} {leaf}, which the checkpoint does not hold"
        elif found != leaf:
            problem = f"{leaf.path} is {found} in the checkpoint and {leaf} by the configuration"
        else:
            continue
        raise CheckpointMismatchError(_message(source, problem))
    for leaf in by_path.values():
        raise CheckpointMismatchError(
            _message(source, f"it holds {leaf.path} {leaf}, which the configuration has no place for")
        )


def _message(source: str, problem: str) -> str:
    return (
        f"the checkpoint in {source} does not fit: {problem}. Use the configuration that it was saved with, or "
        "leave this checkpoint and start anew"
    )
