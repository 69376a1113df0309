"""Whether an answer is the reference's value: where it stands in a completion, how it is read, and what proves it equal."""

from grpo_jax.rewards.mathematics.accuracy import accuracy_reward, math_reward
from grpo_jax.rewards.mathematics.answers import EXTRACTORS, Extractor
from grpo_jax.rewards.mathematics.config import MathConfig
from grpo_jax.rewards.mathematics.equality import EQUALITIES, Equality, equal_final, equal_value, equality

__all__ = [
    "EQUALITIES",
    "EXTRACTORS",
    "Equality",
    "Extractor",
    "MathConfig",
    "accuracy_reward",
    "equal_final",
    "equal_value",
    "equality",
    "math_reward",
]
