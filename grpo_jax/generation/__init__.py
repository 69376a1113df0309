"""Generation: token ids in, token ids out. Draws, their log-probs, and batched rollouts with a cache; never strings."""

from grpo_jax.generation.rollout import END_EOS, END_LENGTH, Rollout, rollout
from grpo_jax.generation.sampling import (
    SamplerConfig,
    gumbel_noise,
    position_keys,
    row_keys,
    sample_tokens,
    sampling_logits,
)
from grpo_jax.generation.tool_rollout import ToolCall, ToolRollout, rollout_with_tool

__all__ = [
    "END_EOS",
    "END_LENGTH",
    "Rollout",
    "SamplerConfig",
    "ToolCall",
    "ToolRollout",
    "gumbel_noise",
    "position_keys",
    "rollout",
    "rollout_with_tool",
    "row_keys",
    "sample_tokens",
    "sampling_logits",
]
