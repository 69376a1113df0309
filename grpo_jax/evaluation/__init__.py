"""Tests of a policy on held-out problems."""

from grpo_jax.evaluation.heldout import HeldoutTest, Judging, begin_judging, judge
from grpo_jax.evaluation.scores import Scores, StageScore

__all__ = ["HeldoutTest", "Judging", "Scores", "StageScore", "begin_judging", "judge"]
