"""Pure math of training: log-probs, masks and rewards in; loss and metrics out. docs/objectives.md has the formulas.

Never sees a model, a tokenizer or a pad id.
"""

from grpo_jax.objectives.advantages import (
    ADVANTAGE_ESTIMATORS,
    AdvantageConfig,
    Advantages,
    AdvantageStats,
    group_advantages,
)
from grpo_jax.objectives.aggregation import AGGREGATIONS
from grpo_jax.objectives.gae import GAEResult, gae
from grpo_jax.objectives.groups import GroupsConfig, row_weights
from grpo_jax.objectives.grpo import Coefficients, GRPOConfig, grpo_denominator, grpo_loss
from grpo_jax.objectives.kl import KL_ESTIMATORS, KLConfig, KLTerms, kl_penalty, kl_terms
from grpo_jax.objectives.log_ratio import LOG_RATIO_LIMIT
from grpo_jax.objectives.logprobs import TokenStats, token_logprobs
from grpo_jax.objectives.masks import completion_mask
from grpo_jax.objectives.off_policy import CORRECTIONS, OffPolicyConfig
from grpo_jax.objectives.policy import (
    POLICY_TERMS,
    RATIO_OPTIONS,
    PolicyConfig,
    PolicyTerm,
    TermInputs,
    TokenTerm,
    select_tokens,
)
from grpo_jax.objectives.sft import sft_denominator, sft_loss
from grpo_jax.objectives.sums import LossSums, add_sums, finalize_metrics, no_sums, reduce_sums

__all__ = [
    "ADVANTAGE_ESTIMATORS",
    "AGGREGATIONS",
    "CORRECTIONS",
    "KL_ESTIMATORS",
    "LOG_RATIO_LIMIT",
    "POLICY_TERMS",
    "RATIO_OPTIONS",
    "AdvantageConfig",
    "AdvantageStats",
    "Advantages",
    "Coefficients",
    "GAEResult",
    "GRPOConfig",
    "GroupsConfig",
    "KLConfig",
    "KLTerms",
    "LossSums",
    "OffPolicyConfig",
    "PolicyConfig",
    "PolicyTerm",
    "TermInputs",
    "TokenStats",
    "TokenTerm",
    "add_sums",
    "completion_mask",
    "finalize_metrics",
    "gae",
    "group_advantages",
    "grpo_denominator",
    "grpo_loss",
    "kl_penalty",
    "kl_terms",
    "no_sums",
    "reduce_sums",
    "row_weights",
    "select_tokens",
    "sft_denominator",
    "sft_loss",
    "token_logprobs",
]
