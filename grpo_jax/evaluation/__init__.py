"""Tests of a policy on held-out problems."""

from grpo_jax.evaluation.heldout import HeldoutTest, judge
from grpo_jax.evaluation.scores import Scores, StageScore

__all__ = ["HeldoutTest", "Scores", "StageScore", "judge"]
