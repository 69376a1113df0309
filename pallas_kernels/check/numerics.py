"""How far an implementation is from float64."""

from typing import Any

import jax
import numpy as np


def difference(got: Any, expected: Any) -> float:
    """The greatest |got - expected| / (1 + |expected|); infinite where one is NaN or infinite and the other is not.

    Args:
        got: a tree of arrays.
        expected: a tree with as many leaves, each the leading part of its counterpart along any dimension.

    Raises:
        ValueError: the trees do not match.
    """
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    if len(got) != len(expected):
        raise ValueError(f"the op gives {len(got)} arrays, and its case expects {len(expected)}.")
    greatest = 0.0
    for mine, theirs in zip(got, expected):
        theirs = np.asarray(theirs, np.float64)
        if mine.ndim != theirs.ndim or any(n > m for n, m in zip(theirs.shape, mine.shape)):
            raise ValueError(f"the op gives an array of shape {mine.shape}, and its case expects {theirs.shape}.")
        # Sliced where it lies: only the part that is compared leaves the device.
        leading = np.asarray(mine[tuple(slice(0, n) for n in theirs.shape)], np.float64)
        with np.errstate(invalid="ignore"):
            error = np.abs(leading - theirs) / (1 + np.abs(theirs))
        error = np.where(leading == theirs, 0.0, np.where(np.isnan(error), np.inf, error))
        greatest = max(greatest, float(error.max(initial=0.0)))
    return greatest
