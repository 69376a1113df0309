"""Pure math of training: log-probs, masks and rewards in; loss and metrics out. docs/objectives.md has the formulas.

Never sees a model, a tokenizer or a pad id.
"""

from grpo_jax.objectives.advantages import AdvantageConfig, Advantages, AdvantageStats, group_advantages
from grpo_jax.objectives.grpo import GRPOConfig, grpo_denominator, grpo_loss, row_weights
from grpo_jax.objectives.kl import LOG_RATIO_LIMIT, KLTerms, k3_kl
from grpo_jax.objectives.logprobs import TokenStats, token_logprobs
from grpo_jax.objectives.masks import completion_mask
from grpo_jax.objectives.policy import Surrogate, clipped_surrogate
from grpo_jax.objectives.sft import sft_denominator, sft_loss
from grpo_jax.objectives.sums import LossSums, add_sums, finalize_metrics, no_sums, reduce_sums

__all__ = [
    "LOG_RATIO_LIMIT",
    "AdvantageConfig",
    "AdvantageStats",
    "Advantages",
    "GRPOConfig",
    "KLTerms",
    "LossSums",
    "Surrogate",
    "TokenStats",
    "add_sums",
    "clipped_surrogate",
    "completion_mask",
    "finalize_metrics",
    "group_advantages",
    "grpo_denominator",
    "grpo_loss",
    "k3_kl",
    "no_sums",
    "reduce_sums",
    "row_weights",
    "sft_denominator",
    "sft_loss",
    "token_logprobs",
]
