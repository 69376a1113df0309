"""What a reward is: a function of one judged row."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

End = Literal["eos", "length"]
"""How a completion ended: by an eos token, or because it reached the length limit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardInput:
    """One completion to judge.

    Attributes:
      prompt: the question, without what the prompt template adds.
      completion: the text generated, special tokens included, without the eos token that ended it.
      reference: the reference answer, "" where there is none.
      ids: the completion's token ids, the eos id included.
      end: how the completion ended.
    """

    prompt: str
    completion: str
    reference: str
    ids: Sequence[int]
    end: End


Reward = Callable[[RewardInput], float | None]
"""Judges one row. None or NaN says that the reward does not apply to it."""
