"""How far the policy has moved from the reference, per token.

With d = log π − log ref on tokens drawn from π, KL(π‖ref) has three well-known estimators (Schulman, "Approximating
KL divergence", 2020): k1 = d, k2 = d²/2, k3 = exp(−d) + d − 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["LOG_RATIO_LIMIT", "KLTerms", "k3_kl", "saturate"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held within ± this before they are exponentiated: exp(20) is 4.9e8, far from float32's end."""


@jax.custom_jvp
def saturate(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`log_ratio` held within ±LOG_RATIO_LIMIT, with the gradient of the identity.

    The exponential that follows then neither overflows nor loses its gradient outside the range: the gradient is
    the boundary's, finite and of the right sign, where that of `clip` would be zero and leave the very tokens that
    went furthest without a pull back. NaN stays NaN.
    """
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@saturate.defjvp
def _saturate_jvp(primals, tangents):
    return saturate(primals[0]), tangents[0]


class KLTerms(NamedTuple):
    """What `k3_kl` gives for each token.

    Attributes:
        kl: the estimate, in nats, never below zero but for rounding.
        clamped: True where |d| was beyond LOG_RATIO_LIMIT and so was held there.
    """

    kl: Float[Array, "*shape"]
    clamped: Bool[Array, "*shape"]


def k3_kl(logprobs: Float[Array, "*shape"], ref_logprobs: Float[Array, "*shape"]) -> KLTerms:
    """k3 = exp(−d) + d − 1 with d = log π − log ref, the KL term of GRPO (DeepSeekMath, 2402.03300, equation 4).

    As a value, on tokens drawn from π, it is an unbiased estimate of the reverse KL, KL(π‖ref). As a loss it is
    something else: the tokens' distribution is held fixed, so its expected gradient is
    Σ (π − ref) ∇log π = ∇KL(ref‖π), that of the *forward* KL, which asks the policy to cover the reference. (k1 as
    a loss has zero expected gradient; k2's is the reverse KL's.)

    No gradient goes to `ref_logprobs`.
    """
    difference = logprobs - jax.lax.stop_gradient(ref_logprobs)
    held = saturate(difference)
    return KLTerms(kl=jnp.expm1(-held) + held, clamped=jnp.abs(difference) > LOG_RATIO_LIMIT)
