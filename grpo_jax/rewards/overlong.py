"""The soft punishment of completions that come near the length limit (DAPO)."""

import dataclasses
import math

from grpo_jax.rewards.protocol import Reward, RewardInput

__all__ = ["OverlongConfig", "overlong_reward"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverlongConfig:
    """Soft overlong punishment (DAPO, 2503.14476, equation 13): a zone before the limit in which each further token costs.

    Attributes:
      buffer: width of that zone in tokens, in [1, limit]; the paper takes 4096 of 20480.
      factor: what is taken off at the limit and beyond; positive.
      limit: the limit L in tokens, at most the rollout's max_completion_tokens, which null stands for.
    """

    buffer: int
    factor: float = 1.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit!r}, but it must be at least 1 token, or null for max_completion_tokens")
        if self.buffer < 1:
            raise ValueError(f"buffer is {self.buffer!r}, but it must be at least 1 token: the punishment is divided by it")
        if self.limit is not None and self.buffer > self.limit:
            raise ValueError(f"buffer is {self.buffer!r}, but it must be at most {self.limit}, the limit. Lower it")
        if not 0.0 < self.factor < math.inf:
            raise ValueError(f"factor is {self.factor!r}, but it must be positive; set overlong to null for none")


def overlong_reward(config: OverlongConfig, limit: int) -> Reward:
    """The punishment of a row by its number of tokens, eos included: in [−factor, 0], however the row ended.

    With L = `limit` in tokens, whatever `config.limit` says:

        0                                       len ≤ L − buffer
        −factor · (len − (L − buffer)) / buffer    between
        −factor                                 L ≤ len
    """

    def overlong(row: RewardInput) -> float:
        over = len(row.ids) - (limit - config.buffer)
        # Taken by cases so that the zone's ends are exact, and nothing is −0.
        return -config.factor * min(over / config.buffer, 1.0) if over > 0 else 0.0

    return overlong
