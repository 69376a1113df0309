"""What a reward is: a function of one judged row."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

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
      metadata: what else the problem's record holds that a reward judges by (unit tests, for example), in JSON's types.
    """

    prompt: str
    completion: str
    reference: str
    ids: Sequence[int]
    end: End
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Reward = Callable[[RewardInput], float | None]
"""Judges one row. None or NaN says that the reward does not apply to it."""
