"""Terms that restrain the few tokens whose log-prob and advantage covary most, which drive the fall of entropy.

"The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (2505.22617): under a policy gradient the
entropy changes by minus the covariance of log π and A, and a few tokens carry nearly all of it.

The tokens are selected once for a rollout, over all its rows, from π_old. (Selected within each micro-batch, the loss
would depend on how the batch is split.)
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from grpo_jax.objectives.log_ratio import saturate
from grpo_jax.objectives.policy.clipped import clipped
from grpo_jax.objectives.policy.term import TermInputs, TokenTerm, no_token

__all__ = ["SELECTIONS", "clip_cov", "kl_cov", "token_covariance"]


def clip_cov(
    inputs: TermInputs, *, clip_low: float, clip_high: float, cov_ratio: float, cov_low: float, cov_high: float
) -> TokenTerm:
    """`clipped`, with the selected tokens taken out of value and gradient (2505.22617, Clip-Cov)."""
    term = clipped(inputs, clip_low=clip_low, clip_high=clip_high)
    return term._replace(loss_BT=jnp.where(_selected(inputs), 0.0, term.loss_BT))


def kl_cov(inputs: TermInputs, *, cov_ratio: float, cov_kl_coef: float) -> TokenTerm:
    """−ρA, and cov_kl_coef · |log ρ| more on the selected tokens (2505.22617, KL-Cov)."""
    log_ratio_BT = saturate(inputs.log_ratio_BT)
    # |log ρ| with slope 0 at ρ = 1, where JAX gives `abs` the slope 1: on-policy there is no distance to reduce.
    distance_BT = jax.lax.stop_gradient(jnp.sign(log_ratio_BT)) * log_ratio_BT
    penalty_BT = jnp.where(_selected(inputs), cov_kl_coef * distance_BT, 0.0)
    return TokenTerm(-jnp.exp(log_ratio_BT) * inputs.advantages_BT + penalty_BT, no_token(inputs), no_token(inputs))


def _selected(inputs: TermInputs) -> Bool[Array, "B T"]:
    if inputs.selected_BT is None:
        raise ValueError("selected is None, but a covariance term needs the tokens that `select_tokens` gives it")
    return inputs.selected_BT & inputs.mask_BT


def token_covariance(
    old_logprobs_BT: Float[np.ndarray, "B T"], advantages_BT: Float[np.ndarray, "B T"], mask_BT: Bool[np.ndarray, "B T"]
) -> Float[np.ndarray, "B T"]:
    """(log π_old − its mean) · (A − its mean), the means over all unmasked tokens; 0 in masked places."""
    covariance_BT = np.zeros(mask_BT.shape)
    if mask_BT.any():
        logprobs, advantages = old_logprobs_BT[mask_BT].astype(np.float64), advantages_BT[mask_BT].astype(np.float64)
        covariance_BT[mask_BT] = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
    return covariance_BT


def _random_in_band(covariance: np.ndarray, noise: np.ndarray, count: int, options: dict[str, float]) -> np.ndarray:
    """Clip-Cov: `count` tokens at random among those whose covariance lies between cov_low and cov_high."""
    candidates = np.flatnonzero((covariance > options["cov_low"]) & (covariance < options["cov_high"]))
    return candidates[np.argsort(noise[candidates], kind="stable")[:count]]


def _greatest(covariance: np.ndarray, noise: np.ndarray, count: int, options: dict[str, float]) -> np.ndarray:
    """KL-Cov: the `count` tokens of greatest covariance; noise decides between equal ones."""
    return np.lexsort((noise, -covariance))[:count]


SELECTIONS: dict[str, Callable[[np.ndarray, np.ndarray, int, dict[str, float]], np.ndarray]] = {
    "random_in_band": _random_in_band,
    "greatest": _greatest,
}
