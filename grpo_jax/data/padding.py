"""Rows of ids to right-padded arrays and their lengths."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32


def pad_rows(
    rows: Sequence[Sequence[int]], width: int, pad_id: int
) -> tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, " B"]]:
    """`rows` in an array [B, width], each from its first column on, and their lengths.

    Raises:
      ValueError: a row is empty or longer than `width`; nothing is cut off silently.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    check_lengths(lengths, width)
    tokens = np.full((len(rows), width), pad_id, dtype=np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
    return tokens, lengths


def check_lengths(lengths: Int32[np.ndarray, " B"], width: int) -> None:
    """Raises ValueError where there is no row, or one without a token or with more than `width`."""
    if lengths.size == 0:
        raise ValueError("a batch has at least one row, got none")
    if lengths.min() < 1:
        raise ValueError(f"a row has at least one token; row {int(lengths.argmin())} has none")
    if lengths.max() > width:
        raise ValueError(
            f"row {int(lengths.argmax())} has {int(lengths.max())} tokens, but a row holds {width}; raise the limit in "
            f"the config or drop long problems when the task is built (limit_length)"
        )
