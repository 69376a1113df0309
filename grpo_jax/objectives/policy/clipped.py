"""PPO's clipped surrogate, per token, and the forms that bound it further."""

import jax.numpy as jnp

from grpo_jax.objectives.log_ratio import saturate
from grpo_jax.objectives.policy.term import TermInputs, TokenTerm

__all__ = ["clipped", "dual_clipped"]


def clipped(inputs: TermInputs, *, clip_low: float, clip_high: float) -> TokenTerm:
    """−min(ρA, clip(ρ, 1 − clip_low, 1 + clip_high) A) with ρ = π / π_old (PPO, 1707.06347, eq. 7)."""
    ratio_BT = jnp.exp(saturate(inputs.log_ratio_BT))
    clipped_low_BT = (ratio_BT < 1.0 - clip_low) & (inputs.advantages_BT < 0)
    clipped_high_BT = (ratio_BT > 1.0 + clip_high) & (inputs.advantages_BT > 0)
    # The minimum is written as the two cases in which it takes the clipped side. jnp.minimum would split the
    # gradient of a tie in halves, and every unclipped token is a tie.
    bounded_BT = jnp.where(clipped_low_BT, 1.0 - clip_low, jnp.where(clipped_high_BT, 1.0 + clip_high, ratio_BT))
    return TokenTerm(-bounded_BT * inputs.advantages_BT, clipped_low_BT, clipped_high_BT)


def dual_clipped(inputs: TermInputs, *, clip_low: float, clip_high: float, dual_clip: float) -> TokenTerm:
    """`clipped`, with the ratio of a token with A < 0 held at `dual_clip` from above (1912.09729, eq. 5).

    Without it a token that has become far more probable and turns out bad dominates the gradient: ρ has no bound there.
    """
    term = clipped(inputs, clip_low=clip_low, clip_high=clip_high)
    over_BT = (inputs.advantages_BT < 0) & (jnp.exp(saturate(inputs.log_ratio_BT)) > dual_clip)
    loss_BT = jnp.where(over_BT, -dual_clip * inputs.advantages_BT, term.loss_BT)
    return TokenTerm(loss_BT, term.clipped_low_BT, term.clipped_high_BT | over_BT)
