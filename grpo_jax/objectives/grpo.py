"""The loss of GRPO and its kin, as sums over whatever part of a batch:

    loss = Σ weight · (correction · policy term + β · KL − α · entropy) / denominator

The caller divides: `grpo_denominator` over the *whole* batch first, then `loss_sum / denominator` for each
micro-batch, whose gradients add. However the batch is split or sharded, loss and gradient are the same.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.objectives.advantages import AdvantageConfig
from grpo_jax.objectives.aggregation import Aggregated, aggregation_weights
from grpo_jax.objectives.kl import KLConfig, kl_penalty, kl_terms
from grpo_jax.objectives.log_ratio import beyond_limit, saturate
from grpo_jax.objectives.off_policy import OffPolicyConfig, correction_weights, opsm_keep
from grpo_jax.objectives.policy import PolicyConfig, TermInputs, policy_term
from grpo_jax.objectives.sums import LossSums

__all__ = ["Coefficients", "GRPOConfig", "grpo_denominator", "grpo_loss"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """The objective of GRPO.

    Attributes:
        policy: The policy term and how it is summed.
        advantage: How rewards become advantages.
        kl_coef: Weight β of the KL to the reference, 0 or more. 0 needs no reference, and none is kept.
        kl: How the KL is estimated and where it counts.
        entropy_coef: Weight α of the entropy bonus; null has none, and then the entropy costs no gradient.
        off_policy: Old log-probs, and what is done about the gap between sampler and trainer.
    """

    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    advantage: AdvantageConfig = dataclasses.field(default_factory=AdvantageConfig)
    kl_coef: float = 0.02
    kl: KLConfig = dataclasses.field(default_factory=KLConfig)
    entropy_coef: float | None = None
    off_policy: OffPolicyConfig = dataclasses.field(default_factory=OffPolicyConfig)

    def __post_init__(self) -> None:
        # Written so that NaN fails too.
        if not 0.0 <= self.kl_coef < math.inf:
            raise ValueError(f"kl_coef is {self.kl_coef!r}, but it must be a finite number, 0 or more")
        if self.entropy_coef is not None and not 0.0 <= self.entropy_coef < math.inf:
            raise ValueError(f"entropy_coef is {self.entropy_coef!r}, but it must be a finite number, 0 or more, or null")
        if self.kl_coef == 0:
            for field in dataclasses.fields(KLConfig):
                value = getattr(self.kl, field.name)
                if value != field.default:
                    raise ValueError(
                        f"kl.{field.name} is {value!r}, but kl_coef is 0: there is neither a KL nor a reference. Leave it "
                        f"at {field.default!r}, or set kl_coef above 0"
                    )

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl_coef > 0 and self.kl.place == "loss"

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether the loss has an entropy term, so that the entropy needs a gradient."""
        return self.entropy_coef is not None


class Coefficients(NamedTuple):
    """Weights that may change from step to step without compiling again. None takes the config's own.

    Attributes:
        kl: β.
        entropy: α.
    """

    kl: Float[Array, ""] | float | None = None
    entropy: Float[Array, ""] | float | None = None


def _aggregated(config: GRPOConfig, mask_BT: Bool[Array, "B T"], row_weight_B: Float[Array, " B"]) -> Aggregated:
    policy = config.policy
    if policy.summed_by == "sequence_sum_fixed" and policy.length is None:
        raise ValueError(
            "policy.fixed_length is None, but sequence_sum_fixed divides by it. Give it, for example the most tokens of a "
            "completion"
        )
    return aggregation_weights(policy.summed_by, policy.length, mask_BT, row_weight_B)


def grpo_denominator(config: GRPOConfig, mask_BT: Bool[Array, "B T"], row_weight_B: Float[Array, " B"]) -> Float[Array, ""]:
    """What the `loss_sum`s of a batch are divided by (objectives/aggregation.py).

    Rows without a completion token and rows of weight 0 do not count. Computed over the whole batch, not over a
    micro-batch. It is 1 where nothing counts, so that the loss and the gradient of such a batch are 0.
    """
    total = jnp.sum(_aggregated(config, mask_BT, row_weight_B).share_B)
    return jnp.where(total > 0, total, 1.0)


def grpo_loss(
    config: GRPOConfig,
    logprobs_BT: Float[Array, "B T"],
    old_logprobs_BT: Float[Array, "B T"] | None,
    ref_logprobs_BT: Float[Array, "B T"] | None,
    sampler_logprobs_BT: Float[Array, "B T"] | None,
    advantages: Float[Array, " B"] | Float[Array, "B T"],
    row_weight_B: Float[Array, " B"],
    mask_BT: Bool[Array, "B T"],
    entropy_BT: Float[Array, "B T"],
    selected_BT: Bool[Array, "B T"] | None = None,
    coefficients: Coefficients | None = None,
) -> tuple[Float[Array, ""], LossSums]:
    """The numerator of the loss, and the sums of the metrics.

    Args:
        config: the objective.
        logprobs_BT: log-probs of the tokens under the policy that is trained; with `entropy_BT`, where there is an
            entropy bonus, the only inputs with a gradient.
        old_logprobs_BT: under the policy at the time of the rollout, scored as `logprobs_BT` are. None where the
            policy has not moved since: the ratio is then 1 to the bit.
        ref_logprobs_BT: under the reference. None only without a KL in the loss; the KL metrics are then absent.
        sampler_logprobs_BT: under the distribution that the sampler drew from, for corrections and the mismatch metrics.
            None leaves the metrics out.
        advantages: one a row, or one a token (`gae`).
        row_weight_B: 1, or 0 for a row that is left out of the loss and of every metric (`row_weights`).
        mask_BT: the completion (`completion_mask`). Masked places may hold anything, NaN too.
        entropy_BT: entropy of the policy at each token.
        selected_BT: `select_tokens`, where the policy term needs it.
        coefficients: β and α where they are not the config's.

    Returns:
        The loss times the batch's denominator, and the sums from which `finalize_metrics` makes the metrics.

    Raises:
        ValueError: an input that the config needs is None, or a coefficient is given of a term that the loss lacks.
    """
    coefficients = coefficients or Coefficients()
    _check_inputs(config, ref_logprobs_BT, sampler_logprobs_BT, coefficients)
    # However many rows without weight a micro-batch happens to hold, the metrics are the same.
    mask_BT = mask_BT & (row_weight_B > 0)[:, None]

    def clean(values_BT: Float[Array, "B T"]) -> Float[Array, "B T"]:
        # Before any arithmetic: a `where` after it would pass 0 · NaN = NaN backwards.
        return jnp.where(mask_BT, values_BT.astype(jnp.float32), 0.0)

    logprobs_BT = clean(logprobs_BT)
    policy_BT = jax.lax.stop_gradient(logprobs_BT)
    old_BT = policy_BT if old_logprobs_BT is None else jax.lax.stop_gradient(clean(old_logprobs_BT))
    log_ratio_BT = logprobs_BT - old_BT
    advantages_BT = advantages if advantages.ndim == 2 else jnp.broadcast_to(advantages[:, None], mask_BT.shape)
    advantages_BT = jax.lax.stop_gradient(clean(advantages_BT))
    aggregated = jax.lax.stop_gradient(_aggregated(config, mask_BT, row_weight_B))
    weights_BT = aggregated.weights_BT

    term = policy_term(config.policy, TermInputs(logprobs_BT, log_ratio_BT, advantages_BT, mask_BT, selected_BT))
    policy_loss_BT = term.loss_BT
    ratio_BT = jnp.exp(saturate(log_ratio_BT))
    losses: dict[str, Array] = {}
    per_token: dict[str, Array] = {
        "entropy": clean(entropy_BT),
        "ratio_mean": jnp.where(mask_BT, ratio_BT, 0.0),
        "clip_fraction_low": term.clipped_low_BT,
        "clip_fraction_high": term.clipped_high_BT,
    }
    counts = {"ratio_clamped": beyond_limit(log_ratio_BT)}
    maxima = {"ratio_max": ratio_BT}
    moments = {}
    if selected_BT is not None:
        counts["selected_tokens"] = selected_BT & mask_BT

    if sampler_logprobs_BT is not None:
        sampler_BT = jax.lax.stop_gradient(clean(sampler_logprobs_BT))
        # k3 with the sampler as the policy: the tokens were drawn from it, so the value is unbiased.
        per_token["mismatch_kl"] = kl_terms("k3", sampler_BT, old_BT).kl
        maxima["mismatch_max"] = jnp.abs(old_BT - sampler_BT)
        importance_BT = jnp.where(mask_BT, jnp.exp(saturate(old_BT - sampler_BT)), 0.0)
        moments["ess"] = jnp.stack([jnp.sum(mask_BT), jnp.sum(importance_BT), jnp.sum(importance_BT**2)])
        if config.off_policy.correction != "none":
            correction = correction_weights(config.off_policy, old_BT, sampler_BT, mask_BT)
            policy_loss_BT = correction.weights_BT * policy_loss_BT
            per_token["corrected_fraction"] = correction.changed_BT
        if config.off_policy.opsm_threshold is not None:
            keep_BT = opsm_keep(config.off_policy.opsm_threshold, policy_BT, sampler_BT, advantages_BT, mask_BT)
            policy_loss_BT = jnp.where(keep_BT, policy_loss_BT, 0.0)
            per_token["opsm_fraction"] = ~keep_BT & mask_BT

    losses["policy_loss"] = jnp.sum(policy_loss_BT * weights_BT)
    if ref_logprobs_BT is not None:
        ref_BT = clean(ref_logprobs_BT)
        reference = kl_terms("k3", policy_BT, ref_BT)
        per_token["kl"] = reference.kl
        counts["kl_clamped"] = reference.clamped
        if config.kl_in_loss:
            kl_coef = config.kl_coef if coefficients.kl is None else coefficients.kl
            penalty_BT = kl_penalty(config.kl, logprobs_BT, ref_BT, log_ratio_BT).kl
            losses["kl_loss"] = kl_coef * jnp.sum(penalty_BT * weights_BT)
    if config.entropy_coef is not None:
        entropy_coef = config.entropy_coef if coefficients.entropy is None else coefficients.entropy
        losses["entropy_loss"] = -entropy_coef * jnp.sum(per_token["entropy"] * weights_BT)

    loss_sum = jnp.sum(jnp.stack(list(losses.values())))
    tokens = jnp.sum(mask_BT).astype(jnp.float32)
    sums = LossSums(
        losses=losses | {"loss": loss_sum},
        loss_weight=jnp.sum(aggregated.share_B),
        totals={name: jnp.sum(values, dtype=jnp.float32) for name, values in per_token.items()},
        weights=dict.fromkeys(per_token, tokens),
        counts={name: jnp.sum(values, dtype=jnp.float32) for name, values in counts.items()} | {"tokens": tokens},
        minima={"ratio_min": jnp.min(jnp.where(mask_BT, ratio_BT, jnp.inf))},
        maxima={name: jnp.max(jnp.where(mask_BT, values, -jnp.inf)) for name, values in maxima.items()},
        moments=moments,
    )
    return loss_sum, jax.lax.stop_gradient(sums)


def _check_inputs(
    config: GRPOConfig, ref_logprobs_BT: Array | None, sampler_logprobs_BT: Array | None, coefficients: Coefficients
) -> None:
    for name, value, used, remedy in (
        ("kl", coefficients.kl, config.kl_in_loss, "kl_coef above 0 and kl.place to loss"),
        ("entropy", coefficients.entropy, config.has_entropy_bonus, "entropy_coef"),
    ):
        if value is not None and not used:
            raise ValueError(f"coefficients.{name} is given, but the loss has no such term: leave it None, or set {remedy}")
    if ref_logprobs_BT is None and config.kl_in_loss:
        raise ValueError(f"ref_logprobs is None, but kl_coef is {config.kl_coef}: give the reference's or set it to 0")
    if sampler_logprobs_BT is None and config.off_policy.needs_sampler:
        raise ValueError(
            f"sampler_logprobs is None, but off_policy has correction {config.off_policy.correction} and opsm_threshold "
            f"{config.off_policy.opsm_threshold}: give the sampler's log-probs"
        )
