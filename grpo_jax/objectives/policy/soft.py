"""Terms that keep a gradient on every token where PPO's clipping lets it go."""

import jax
import jax.numpy as jnp

from grpo_jax.objectives.log_ratio import saturate
from grpo_jax.objectives.policy.term import TermInputs, TokenTerm, no_token

__all__ = ["cispo", "sapo"]


def cispo(inputs: TermInputs, *, ratio_cap: float) -> TokenTerm:
    """−sg(min(ρ, ratio_cap)) · A · log π: the weight is capped, the gradient never cut (CISPO, 2506.13585, eq. 4, 5).

    `ratio_cap` is the cap itself. The field calls it ε_high, by which some mean the cap and some 1 + ε_high.
    """
    ratio_BT = jax.lax.stop_gradient(jnp.exp(saturate(inputs.log_ratio_BT)))
    loss_BT = -jnp.minimum(ratio_BT, ratio_cap) * inputs.advantages_BT * inputs.logprobs_BT
    return TokenTerm(loss_BT, no_token(inputs), (ratio_BT > ratio_cap) & inputs.mask_BT)


def sapo(inputs: TermInputs, *, gate_positive: float, gate_negative: float) -> TokenTerm:
    """−(4/τ) σ(τ(ρ − 1)) A with τ = gate_positive where A > 0, else gate_negative (SAPO, 2511.20347, eq. 5).

    A soft gate in place of a clip: its slope is 1 at ρ = 1 and falls on both sides, the faster the larger τ.
    """
    ratio_BT = jnp.exp(saturate(inputs.log_ratio_BT))
    gate_BT = jnp.where(inputs.advantages_BT > 0, gate_positive, gate_negative)
    loss_BT = -4.0 / gate_BT * jax.nn.sigmoid(gate_BT * (ratio_BT - 1.0)) * inputs.advantages_BT
    return TokenTerm(loss_BT, no_token(inputs), no_token(inputs))
