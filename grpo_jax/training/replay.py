"""The replay buffer: groups with a signal from earlier rollouts, to train on in the place of groups without one.

It is arrays of a fixed shape, so that a checkpoint holds it like the parameters. A slot whose `version` is -1 is empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Int

from grpo_jax.training.rows import Rows, join, rows_of_groups


def empty_buffer(groups: int, group_size: int, width: int, components: Sequence[str]) -> Rows:
    """A buffer for so many groups of rows of `width` tokens, with nothing in it."""
    rows = groups * group_size
    return Rows(
        tokens=np.zeros((rows, width), np.int32),
        prompt_lengths=np.zeros(rows, np.int32),
        lengths=np.zeros(rows, np.int32),
        truncated=np.zeros(rows, bool),
        sampler_logprobs=np.zeros((rows, width), np.float32),
        old_logprobs=np.zeros((rows, width), np.float32),
        version=np.full(rows, -1, np.int32),
        reward=np.full(rows, np.nan, np.float32),
        components={name: np.full(rows, np.nan, np.float32) for name in components},
    )


def stored_groups(buffer: Rows, group_size: int) -> int:
    """How many groups the buffer holds."""
    return int((buffer.version[::group_size] >= 0).sum())


def take_groups(
    buffer: Rows, wanted: int, group_size: int, updates: int, max_staleness: int | None
) -> tuple[Rows | None, Rows]:
    """Up to `wanted` groups, the newest first, and the buffer without them and without groups that have become too old.

    Args:
        buffer: the buffer.
        wanted: groups asked for.
        group_size: G.
        updates: optimizer updates done.
        max_staleness: the most updates that a group may be behind; None is no bound.
    """
    version = buffer.version[::group_size].copy()
    if max_staleness is not None:
        version[updates - version > max_staleness] = -1
    newest = np.argsort(-version, kind="stable")[:wanted]
    chosen = newest[version[newest] >= 0]
    taken = buffer.take(rows_of_groups(chosen, group_size)) if chosen.size else None
    version[chosen] = -1
    return taken, _cleared(buffer, version, group_size)


def add_groups(buffer: Rows, fresh: Rows, group_size: int) -> Rows:
    """The buffer with these groups added; the oldest make room."""
    capacity = buffer.version.size // group_size
    everything = join([fresh, buffer])
    version = everything.version[::group_size]
    kept: Int[np.ndarray, " P"] = np.argsort(-version, kind="stable")[:capacity]
    return everything.take(rows_of_groups(kept, group_size))


def _cleared(buffer: Rows, version: Int[np.ndarray, " P"], group_size: int) -> Rows:
    rows = np.repeat(version, group_size).astype(np.int32)
    empty = empty_buffer(version.size, group_size, buffer.tokens.shape[1], list(buffer.components))
    keep = rows >= 0

    def chosen(values: np.ndarray, nothing: np.ndarray) -> np.ndarray:
        return np.where(keep.reshape(-1, *[1] * (values.ndim - 1)), values, nothing)

    return jax.tree.map(chosen, buffer._replace(version=rows), empty)
