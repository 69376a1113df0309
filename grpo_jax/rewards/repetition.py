"""How much of a completion repeats itself, and a punishment for it."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer

from grpo_jax.rewards.protocol import Reward, RewardInput

__all__ = ["RepetitionConfig", "ngram_repetition", "repetition_reward"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepetitionConfig:
    """A punishment in proportion to the share of a completion's n-grams that were there before.

    Attributes:
      ngram: length n of the n-grams, in tokens. A completion of fewer tokens has none and is not punished.
      penalty: what a completion would lose that did nothing but repeat; positive.
    """

    ngram: int = 4
    penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.ngram < 1:
            raise ValueError(f"ngram is {self.ngram!r}, but it must be at least 1 token")
        if not 0.0 < self.penalty < math.inf:
            raise ValueError(f"penalty is {self.penalty!r}, but it must be positive; set repetition to null for none")


def ngram_repetition(ids: Sequence[int] | Integer[np.ndarray, " T"], n: int) -> float:
    """The share of the n-grams of `ids` that repeat an earlier one: 1 − distinct / total, in [0, 1).

    Exact: nothing is hashed. n-grams overlap, so a sequence of T ids has T − n + 1 of them; with T < n the share is 0.

    Raises:
      ValueError: n is less than 1.
    """
    if n < 1:
        raise ValueError(f"n is {n!r}, but it must be at least 1")
    total = len(ids) - n + 1
    if total < 1:
        return 0.0
    # Prefix doubling (as suffix arrays are sorted): once every window of `width` ids is known by its rank, a pair of ranks
    # says the same as a window of up to twice the width. ⌈log2 n⌉ + 1 sorts of at most T numbers, whatever the vocabulary.
    codes, width = np.asarray(ids), 1
    while width < n:
        known, ranks = np.unique(codes, return_inverse=True)
        step = min(width, n - width)  # the last pair overlaps where n is no power of two
        codes = ranks[:-step] * known.size + ranks[step:]
        width += step
    return 1.0 - np.unique(codes).size / total


def repetition_reward(config: RepetitionConfig) -> Reward:
    """The punishment of a row by its token ids, eos included: −penalty · ngram_repetition, in (−penalty, 0]."""

    def repetition(row: RewardInput) -> float:
        repeated = ngram_repetition(row.ids, config.ngram)
        return -config.penalty * repeated if repeated else 0.0

    return repetition
