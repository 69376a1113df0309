"""The cosine length reward: what a right and a wrong answer are worth at each length."""

import dataclasses
import math
from collections.abc import Callable

from grpo_jax.rewards.protocol import RewardInput

__all__ = ["CosineLengthConfig", "cosine_length_reward"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineLengthConfig:
    """The cosine reward of "Demystifying Long Chain-of-Thought Reasoning in LLMs" (2502.03373, section 4.2).

    It takes the place of accuracy in the sum. The defaults are the paper's: a right answer is worth the more the shorter
    it is, a wrong one costs the less the longer the policy has tried.

    Attributes:
      right_short: reward of a right answer at length 0.
      right_long: reward of a right answer at the limit.
      wrong_short: reward of a wrong answer at length 0.
      wrong_long: reward of a wrong answer at the limit.
      exceeded: reward of a completion, right or wrong, that reached the limit without ending.
      limit: the limit L in tokens, at most the rollout's max_completion_tokens, which null stands for.
    """

    right_short: float = 2.0
    right_long: float = 1.0
    wrong_short: float = -10.0
    wrong_long: float = 0.0
    exceeded: float = -10.0
    limit: int | None = None

    def __post_init__(self) -> None:
        for field in ("right_short", "right_long", "wrong_short", "wrong_long", "exceeded"):
            if not math.isfinite(getattr(self, field)):
                raise ValueError(f"{field} is {getattr(self, field)!r}, but it must be a finite number")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit!r}, but it must be at least 1 token, or null for max_completion_tokens")


def cosine_length_reward(config: CosineLengthConfig, limit: int) -> Callable[[RewardInput, float], float]:
    """The reward of a row, given its accuracy.

    With L = `limit` in tokens, whatever `config.limit` says, and len the number of tokens, eos included:

        exceeded                                          len > L, or len = L and no eos
        long + (short − long) · (1 + cos(π · len / L)) / 2    otherwise

    An accuracy of 0.5 or more counts as right, less as wrong.
    """

    def length(row: RewardInput, accuracy: float) -> float:
        tokens = len(row.ids)
        if tokens > limit or (tokens == limit and row.end == "length"):
            return config.exceeded
        short, long = (config.right_short, config.right_long) if accuracy >= 0.5 else (config.wrong_short, config.wrong_long)
        # A mean of the two ends by share, which is exact at both, where a difference from one of them need not be.
        share = (1.0 + math.cos(math.pi * tokens / limit)) / 2.0
        return share * short + (1.0 - share) * long

    return length
