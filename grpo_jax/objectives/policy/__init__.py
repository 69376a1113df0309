"""Policy terms: what a token adds to the loss for its advantage, each a small function in one table."""

from grpo_jax.objectives.policy.config import POLICY_TERMS, RATIO_OPTIONS, PolicyConfig, policy_term, select_tokens
from grpo_jax.objectives.policy.term import PolicyTerm, TermInputs, TokenTerm

__all__ = [
    "POLICY_TERMS",
    "RATIO_OPTIONS",
    "PolicyConfig",
    "PolicyTerm",
    "TermInputs",
    "TokenTerm",
    "policy_term",
    "select_tokens",
]
