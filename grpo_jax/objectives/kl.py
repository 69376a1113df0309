"""How far the policy has moved from the reference, per token: three estimators, and whose gradient each one is.

With d = log π − log ref on tokens drawn from π (Schulman, "Approximating KL divergence", 2020):

    k1 = d        k2 = d²/2        k3 = exp(−d) + d − 1

As *values*, k1 and k3 are unbiased estimates of the reverse KL, KL(π‖ref); k2 is not. As *losses* they are something
else, since the tokens' distribution is held fixed while the loss is differentiated. Expected gradient at π = π_old:

    k1              0: it does not regularise at all
    k2              ∇KL(π‖ref), the reverse KL's
    k3              ∇KL(ref‖π), the forward KL's, which asks the policy to cover the reference (DeepSeekMath, 2402.03300)
    w·k1, w·k3      ∇KL(π‖ref), with w = π/π_old differentiated too (DeepSeek-V3.2, 2512.02556, for k3)
    w·k2            neither one's; refused

In the *reward*, where −β·k multiplies ∇log π and is not differentiated itself:

    k1              −β∇KL(π‖ref), exactly what a penalty on the KL would give
    k2, k3          no divergence's gradient; of use as measured penalties only

The KL is that of a token's distribution given the tokens before it. Summed over a row, a loss takes those as they were
drawn: every token is pulled to the reference in its own place, and none answers for the KL of the places it leads to
(2506.09477). k1 in the reward, summed over the row, has the gradient of the whole sequence's KL.

tests/objectives/test_kl.py proves each line by enumerating every outcome of a small softmax.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.objectives.log_ratio import beyond_limit, saturate

__all__ = ["KL_ESTIMATORS", "KLConfig", "KLTerms", "kl_penalty", "kl_terms"]

# Each takes d, held within the limit. expm1 keeps the digits that exp(−d) − 1 loses near 0.
KL_ESTIMATORS: dict[str, Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]] = {
    "k1": lambda difference: difference,
    "k2": lambda difference: 0.5 * difference * difference,
    "k3": lambda difference: jnp.expm1(-difference) + difference,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KLConfig:
    """The KL to the reference policy: how it is estimated and where it counts. Its weight is `kl_coef`.

    Attributes:
        estimator: `k1`, `k2` or `k3`. As a loss k2 has the reverse KL's gradient, k3 the forward KL's, and k1 none on
            average: k1 in the loss needs `importance_weighted`.
        place: Where the KL counts, never in both: `loss`, as a term beside the policy's; or `reward`, subtracted from
            each row's reward, summed over its tokens, before advantages are taken.
        importance_weighted: Multiply the estimate by π/π_old and differentiate that too; k1 and k3 then have the
            reverse KL's gradient. For the loss only, and not for k2.
        refresh_every: GRPO steps after which the reference becomes a copy of the policy, again and again; 0 keeps the
            first.
    """

    estimator: Literal["k1", "k2", "k3"] = "k3"
    place: Literal["loss", "reward"] = "loss"
    importance_weighted: bool = False
    refresh_every: int = 0

    def __post_init__(self) -> None:
        if self.estimator not in KL_ESTIMATORS:
            raise ValueError(f"estimator is {self.estimator!r}, but it must be one of {', '.join(KL_ESTIMATORS)}")
        if self.place not in ("loss", "reward"):
            raise ValueError(
                f"place is {self.place!r}, but it must be loss or reward: counted in both, the KL would be paid for twice"
            )
        if self.importance_weighted and self.place == "reward":
            raise ValueError(
                "importance_weighted is True, but it must be False with place reward: a reward is not differentiated, so "
                "there is no gradient for the weight to correct"
            )
        if self.importance_weighted and self.estimator == "k2":
            raise ValueError(
                "importance_weighted is True, but it must be False with estimator k2, whose own gradient is the reverse "
                "KL's already; weighted it would be neither KL's. Choose k1 or k3 to weight"
            )
        if self.estimator == "k1" and self.place == "loss" and not self.importance_weighted:
            raise ValueError(
                "estimator is 'k1', but as a loss its expected gradient is 0, so it would not hold the policy near the "
                "reference. Set importance_weighted to true, place to reward, or choose k2 or k3"
            )
        if self.refresh_every < 0:
            raise ValueError(f"refresh_every is {self.refresh_every}, but it must be 0 or more")


class KLTerms(NamedTuple):
    """What `kl_terms` gives for each token.

    Attributes:
        kl: the estimate, in nats.
        clamped: True where |d| was beyond LOG_RATIO_LIMIT and so was held there.
    """

    kl: Float[Array, "*shape"]
    clamped: Bool[Array, "*shape"]


def kl_terms(estimator: str, logprobs: Float[Array, "*shape"], ref_logprobs: Float[Array, "*shape"]) -> KLTerms:
    """The estimate of a token by the name of its estimator; the module's docstring says what it is and is not.

    No gradient goes to `ref_logprobs`.
    """
    difference = logprobs - jax.lax.stop_gradient(ref_logprobs)
    return KLTerms(kl=KL_ESTIMATORS[estimator](saturate(difference)), clamped=beyond_limit(difference))


def kl_penalty(
    config: KLConfig,
    logprobs_BT: Float[Array, "B T"],
    ref_logprobs_BT: Float[Array, "B T"],
    log_ratio_BT: Float[Array, "B T"],
) -> KLTerms:
    """What the loss takes of each token, before `kl_coef`: the estimate, or w · estimate with w = exp(log_ratio).

    Args:
        config: estimator and weighting.
        logprobs_BT: under the policy, finite everywhere; carries the gradient.
        ref_logprobs_BT: under the reference, finite everywhere.
        log_ratio_BT: log π − log π_old, 0 in masked places; carries a gradient into the weight.
    """
    terms = kl_terms(config.estimator, logprobs_BT, ref_logprobs_BT)
    if not config.importance_weighted:
        return terms
    return terms._replace(kl=jnp.exp(saturate(log_ratio_BT)) * terms.kl)
