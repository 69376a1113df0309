"""What a reward is: a function of one judged row, or a judge of a whole batch."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

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

AsyncReward = Callable[[RewardInput], Awaitable[float | None]]
"""The same, awaited: for rewards that wait for others, a server for example. Those of many rows wait together."""


class Undecided(Exception):
    """A reward cannot be given at once."""


@runtime_checkable
class QuickReward(Protocol):
    """A reward that most rows get at once, and that only the others need a process for."""

    def __call__(self, row: RewardInput) -> float | None:
        """The reward, however long it takes."""
        ...

    def quick(self, row: RewardInput) -> float | None:
        """The same, within moments and whatever the row holds.

        Raises:
          Undecided: it takes longer.
        """
        ...


@runtime_checkable
class BatchReward(Protocol):
    """Judges all rows of a batch at once, in the trainer's process, where the devices are: the place of a trained judge.

    It has no time limit, for nothing can end it but the trainer.
    """

    def judge_batch(self, rows: Sequence[RewardInput]) -> Sequence[float | None]:
        """The reward of each row, in order; None or NaN where it does not apply."""
        ...
