"""The policy term: PPO's clipped surrogate, per token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.objectives.kl import LOG_RATIO_LIMIT, saturate

__all__ = ["Surrogate", "clipped_surrogate"]


class Surrogate(NamedTuple):
    """What `clipped_surrogate` gives for each token; masked tokens have loss 0, ratio 1 and False.

    Attributes:
        loss_BT: the term to minimise.
        ratio_BT: ρ = π / π_old.
        clipped_low_BT: ρ < 1 − clip_low and A < 0, so the token has no gradient.
        clipped_high_BT: ρ > 1 + clip_high and A > 0, so the token has no gradient.
        clamped_BT: |log ρ| was beyond LOG_RATIO_LIMIT and so was held there.
    """

    loss_BT: Float[Array, "B T"]
    ratio_BT: Float[Array, "B T"]
    clipped_low_BT: Bool[Array, "B T"]
    clipped_high_BT: Bool[Array, "B T"]
    clamped_BT: Bool[Array, "B T"]


def clipped_surrogate(
    logprobs_BT: Float[Array, "B T"],
    old_logprobs_BT: Float[Array, "B T"],
    advantages_B: Float[Array, "B"],
    mask_BT: Bool[Array, "B T"],
    clip_low: float,
    clip_high: float,
) -> Surrogate:
    """−min(ρA, clip(ρ, 1 − clip_low, 1 + clip_high) A) with ρ = exp(log π − log π_old) (PPO, 1707.06347, eq. 7).

    Gradient flows to `logprobs_BT` alone. What stands in masked places, NaN and infinities too, reaches neither the
    values nor the gradient: it is replaced before the exponential, since a `where` after it would still pass
    0 · ∞ = NaN backwards.
    """
    old_BT = jax.lax.stop_gradient(old_logprobs_BT)
    log_ratio_BT = jnp.where(mask_BT, logprobs_BT - old_BT, 0.0)
    ratio_BT = jnp.exp(saturate(log_ratio_BT))
    advantages_BT = jnp.where(mask_BT, jax.lax.stop_gradient(advantages_B)[:, None], 0.0)
    clipped_low_BT = (ratio_BT < 1.0 - clip_low) & (advantages_BT < 0)
    clipped_high_BT = (ratio_BT > 1.0 + clip_high) & (advantages_BT > 0)
    # The minimum is written as the two cases in which it takes the clipped side. jnp.minimum would split the
    # gradient of a tie in halves, and every unclipped token is a tie.
    bounded_BT = jnp.where(clipped_low_BT, 1.0 - clip_low, jnp.where(clipped_high_BT, 1.0 + clip_high, ratio_BT))
    return Surrogate(
        loss_BT=-bounded_BT * advantages_BT,
        ratio_BT=ratio_BT,
        clipped_low_BT=clipped_low_BT,
        clipped_high_BT=clipped_high_BT,
        clamped_BT=jnp.abs(log_ratio_BT) > LOG_RATIO_LIMIT,
    )
