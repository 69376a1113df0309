"""Rows of ids to right-padded arrays and their lengths."""

import dataclasses
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
    _check_lengths(lengths, width)
    tokens = np.full((len(rows), width), pad_id, dtype=np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
    return tokens, lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class SFTRows:
    """Prompt and completion side by side, one pair a row.

    Attributes:
      tokens: [B, T] int32, [prompt, completion, unused].
      prompt_lengths: [B] int32, prompt tokens.
      lengths: [B] int32, prompt and completion tokens, the eos included.
    """

    tokens: Int32[np.ndarray, "B T"]
    prompt_lengths: Int32[np.ndarray, " B"]
    lengths: Int32[np.ndarray, " B"]


def sft_rows(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], width: int, pad_id: int) -> SFTRows:
    """Joins each prompt with its completion and pads on the right to `width`.

    Raises:
      ValueError: there are not as many completions as prompts, a prompt is empty, or a row is longer than `width`.
    """
    prompt_lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    _check_lengths(prompt_lengths, width)
    joined = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    tokens, lengths = pad_rows(joined, width, pad_id)
    return SFTRows(tokens=tokens, prompt_lengths=prompt_lengths, lengths=lengths)


def _check_lengths(lengths: Int32[np.ndarray, " B"], width: int) -> None:
    if lengths.size == 0:
        raise ValueError("a batch has at least one row, got none")
    if lengths.min() < 1:
        raise ValueError(f"a row has at least one token; row {int(lengths.argmin())} has none")
    if lengths.max() > width:
        raise ValueError(
            f"row {int(lengths.argmax())} has {int(lengths.max())} tokens, but a row holds {width}; raise the limit in "
            f"the config or drop long problems when the task is built (limit_length)"
        )
