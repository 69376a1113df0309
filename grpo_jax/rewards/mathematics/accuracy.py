"""Accuracy: 1 where the answer equals the reference, 0 where it does not."""

from grpo_jax.rewards.mathematics import guard
from grpo_jax.rewards.mathematics.answers import Extractor, from_math
from grpo_jax.rewards.mathematics.config import MathConfig
from grpo_jax.rewards.mathematics.equality import Equality, equal_final, equality
from grpo_jax.rewards.protocol import Reward, RewardInput


def accuracy_reward(extract: Extractor, equal: Equality = equal_final) -> Reward:
    """A `QuickReward` that finds the answer with `extract` and compares it with `equal`.

    A completion without an answer, or with an empty one, scores 0. The reward does not apply where the reference is
    empty.
    """

    return _Accuracy(extract, equal)


class _Accuracy:
    """The reward, most of which needs no worker: a `QuickReward`."""

    def __init__(self, extract: Extractor, equal: Equality) -> None:
        self._extract, self._equal = extract, equal

    def __call__(self, row: RewardInput) -> float | None:
        if not row.reference.strip():
            return None
        answer = self._extract(row.completion)
        return float(answer is not None and self._equal(answer, row.reference))

    def quick(self, row: RewardInput) -> float | None:
        with guard.shut():
            return self(row)


def math_reward(config: MathConfig | None = None) -> Reward:
    """The reward "math": the answer where `from_math` finds it, compared in final form by the rules of `config`."""
    return accuracy_reward(from_math, equality(MathConfig() if config is None else config))
