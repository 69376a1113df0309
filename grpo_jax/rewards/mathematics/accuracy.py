"""Accuracy: 1 where the answer equals the reference, 0 where it does not."""

from grpo_jax.rewards.mathematics.answers import Extractor, from_math
from grpo_jax.rewards.mathematics.config import MathConfig
from grpo_jax.rewards.mathematics.equality import Equality, equal_final, equality
from grpo_jax.rewards.protocol import Reward, RewardInput


def accuracy_reward(extract: Extractor, equal: Equality = equal_final) -> Reward:
    """A reward that finds the answer with `extract` and compares it with `equal`.

    A completion without an answer, or with an empty one, scores 0. The reward does not apply where the reference is
    empty.
    """

    def accuracy(row: RewardInput) -> float | None:
        if not row.reference.strip():
            return None
        answer = extract(row.completion)
        return float(answer is not None and equal(answer, row.reference))

    return accuracy


def math_reward(config: MathConfig | None = None) -> Reward:
    """The reward "math": the answer where `from_math` finds it, compared in final form by the rules of `config`."""
    return accuracy_reward(from_math, equality(MathConfig() if config is None else config))
