"""Accuracy: 1 where the answer equals the reference, 0 where it does not."""

from grpo_jax.rewards.answers import Extractor
from grpo_jax.rewards.equality import Equality, equal_final
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
