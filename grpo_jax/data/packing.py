"""Demonstrations packed into rows: several side by side, so that little of a row is left unused."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int32

from grpo_jax.data.padding import check_lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedRows:
    """As many rows as there are demonstrations; those at the end are empty.

    Attributes:
      tokens: [B, T] int32, [prompt, completion, prompt, completion, …, unused].
      segments: [B, T] int32, 1 for the tokens of a row's first demonstration, 2 for its second, …, 0 where unused.
      completion_mask: [B, T], the completions' tokens, the eos included.
    """

    tokens: Int32[np.ndarray, "B T"]
    segments: Int32[np.ndarray, "B T"]
    completion_mask: Bool[np.ndarray, "B T"]


def pack_demonstrations(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], width: int, pad_id: int
) -> PackedRows:
    """Packs prompts with their completions into rows of `width`: the longest first, each into the fullest row that
    still holds it. Nothing is cut or split.

    Raises:
      ValueError: there are not as many completions as prompts, a prompt is empty, or a demonstration is longer than
        `width`.
    """
    check_lengths(np.array([len(prompt) for prompt in prompts], dtype=np.int32), width)
    joined = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    lengths = np.array([len(row) for row in joined], dtype=np.int32)
    check_lengths(lengths, width)
    packed = PackedRows(
        tokens=np.full((len(joined), width), pad_id, dtype=np.int32),
        segments=np.zeros((len(joined), width), dtype=np.int32),
        completion_mask=np.zeros((len(joined), width), dtype=bool),
    )
    used = np.zeros(len(joined), dtype=np.int32)
    for index in np.argsort(-lengths, kind="stable"):
        length = lengths[index]
        row = int(np.argmax(np.where(used + length <= width, used, -1)))
        start, stop = used[row], used[row] + length
        packed.tokens[row, start:stop] = joined[index]
        packed.segments[row, start:stop] = packed.segments[row].max() + 1
        packed.completion_mask[row, start + len(prompts[index]) : stop] = True
        used[row] = stop
    return packed
