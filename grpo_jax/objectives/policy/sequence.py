"""Terms whose ratio belongs to the row: its geometric mean over the tokens, which no single token can blow up."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.objectives.log_ratio import saturate
from grpo_jax.objectives.policy.clipped import clipped
from grpo_jax.objectives.policy.term import TermInputs, TokenTerm

__all__ = ["gmpo", "gspo", "gspo_token", "row_mean"]


def row_mean(values_BT: Float[Array, "B T"], inputs: TermInputs) -> Float[Array, "B T"]:
    """The mean over a row's unmasked tokens, at each of them; 0 in masked places."""
    tokens_B1 = jnp.maximum(jnp.sum(inputs.mask_BT, axis=1, keepdims=True), 1)
    mean_B1 = jnp.sum(jnp.where(inputs.mask_BT, values_BT, 0.0), axis=1, keepdims=True) / tokens_B1
    return jnp.where(inputs.mask_BT, mean_B1, 0.0)


def gspo(inputs: TermInputs, *, clip_low: float, clip_high: float) -> TokenTerm:
    """−min(sA, clip(s, 1 − clip_low, 1 + clip_high) A) with s = exp(mean log ρ) of the row (GSPO, 2507.18071, eq. 5, 7)."""
    log_ratio_BT = row_mean(inputs.log_ratio_BT, inputs)
    return clipped(inputs._replace(log_ratio_BT=log_ratio_BT), clip_low=clip_low, clip_high=clip_high)


def gspo_token(inputs: TermInputs, *, clip_low: float, clip_high: float) -> TokenTerm:
    """`gspo` with s_t = sg(s) · π / sg(π), which lets the tokens of a row have advantages of their own (eq. 13, 14).

    Where a row's tokens share one advantage its loss and its gradient are those of `gspo`.
    """
    log_ratio_BT = jax.lax.stop_gradient(row_mean(inputs.log_ratio_BT, inputs))
    moving_BT = inputs.logprobs_BT - jax.lax.stop_gradient(inputs.logprobs_BT)
    return clipped(inputs._replace(log_ratio_BT=log_ratio_BT + moving_BT), clip_low=clip_low, clip_high=clip_high)


def gmpo(inputs: TermInputs, *, log_clip_low: float, log_clip_high: float) -> TokenTerm:
    """−A · exp(mean over the row's tokens of the clipped log ρ), the geometric-mean objective (GMPO, 2507.20673, eq. 4).

    The log-ratio of a token is clipped before the mean and on the side that its advantage pushes to, as PPO's is: at
    `log_clip_high` from above where A > 0, at −`log_clip_low` from below where A < 0.
    """
    log_ratio_BT = saturate(inputs.log_ratio_BT)
    clipped_low_BT = (log_ratio_BT < -log_clip_low) & (inputs.advantages_BT < 0)
    clipped_high_BT = (log_ratio_BT > log_clip_high) & (inputs.advantages_BT > 0)
    bounded_BT = jnp.where(clipped_low_BT, -log_clip_low, jnp.where(clipped_high_BT, log_clip_high, log_ratio_BT))
    mean_BT = row_mean(bounded_BT, inputs)
    return TokenTerm(-jnp.exp(mean_BT) * inputs.advantages_BT, clipped_low_BT, clipped_high_BT)
