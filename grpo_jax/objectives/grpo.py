"""The GRPO loss (DeepSeekMath, 2402.03300): clipped surrogate plus k3 KL, as sums over whatever part of a batch.

The caller divides: `grpo_denominator` over the *whole* batch first, then `loss_sum / denominator` for each
micro-batch, whose gradients add. However the batch is split or sharded, loss and gradient are the same.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from grpo_jax.objectives.advantages import AdvantageConfig
from grpo_jax.objectives.kl import k3_kl, saturate
from grpo_jax.objectives.policy import clipped_surrogate
from grpo_jax.objectives.sums import LossSums

__all__ = ["GRPOConfig", "grpo_denominator", "grpo_loss", "row_weights"]


def _sequence_mean(mask_BT: Bool[Array, "B T"], row_weight_B: Float[Array, " B"]) -> Float[Array, "B T"]:
    tokens_B = jnp.maximum(jnp.sum(mask_BT, axis=1), 1)
    return jnp.where(mask_BT, (row_weight_B / tokens_B)[:, None], 0.0)


def _token_mean(mask_BT: Bool[Array, "B T"], row_weight_B: Float[Array, " B"]) -> Float[Array, "B T"]:
    return jnp.where(mask_BT, row_weight_B[:, None], 0.0)


# The loss is a weighted mean over tokens; an aggregation is a choice of the weights.
_AGGREGATIONS: dict[str, Callable[[Bool[Array, "B T"], Float[Array, " B"]], Float[Array, "B T"]]] = {
    "sequence_mean": _sequence_mean,
    "token_mean": _token_mean,
}
_DEAD_GROUPS: dict[str, Callable[[Bool[Array, " B"]], Float[Array, " B"]]] = {
    "keep": lambda live_B: jnp.ones(live_B.shape, jnp.float32),
    "drop": lambda live_B: jnp.asarray(live_B, jnp.float32),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """The objective of GRPO.

    Attributes:
        clip_low: How far the probability ratio may fall below 1 before a token with a negative advantage stops
            pulling, in [0, 1].
        clip_high: How far the ratio may rise above 1 before a token with a positive advantage stops pulling, 0 or
            more. DAPO raises it to 0.28.
        kl_coef: Weight of the k3 KL to the reference in the loss, 0 or more. 0 needs no reference.
        aggregation: `sequence_mean` averages tokens within a row and then rows (GRPO); `token_mean` averages all
            tokens of the batch (DAPO).
        advantage: How rewards become advantages.
        dead_groups: What happens to rows without a signal (their group's rewards all agree, or theirs is missing):
            `keep` leaves them in the denominator and under the KL term, `drop` takes them out of the loss altogether.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.02
    aggregation: Literal["sequence_mean", "token_mean"] = "sequence_mean"
    advantage: AdvantageConfig = dataclasses.field(default_factory=AdvantageConfig)
    dead_groups: Literal["keep", "drop"] = "keep"

    def __post_init__(self) -> None:
        # Written so that NaN fails too.
        if not 0.0 <= self.clip_low <= 1.0:
            raise ValueError(f"clip_low is {self.clip_low!r}, but it must be in [0, 1]: a ratio is never below 0")
        for key, value in (("clip_high", self.clip_high), ("kl_coef", self.kl_coef)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{key} is {value!r}, but it must be a finite number, 0 or more")
        if self.aggregation not in _AGGREGATIONS:
            raise ValueError(f"aggregation is {self.aggregation!r}, but it must be one of {', '.join(_AGGREGATIONS)}")
        if self.dead_groups not in _DEAD_GROUPS:
            raise ValueError(f"dead_groups is {self.dead_groups!r}, but it must be one of {', '.join(_DEAD_GROUPS)}")


def row_weights(config: GRPOConfig, live_B: Bool[Array | np.ndarray, " B"]) -> Float[Array, " B"]:
    """1 for rows that are trained on, 0 for rows that are not, from `Advantages.live_B`."""
    return _DEAD_GROUPS[config.dead_groups](jnp.asarray(live_B))


def grpo_denominator(config: GRPOConfig, mask_BT: Bool[Array, "B T"], row_weight_B: Float[Array, " B"]) -> Float[Array, ""]:
    """What the `loss_sum`s of a batch are divided by: its rows for sequence_mean, its tokens for token_mean.

    Rows without a completion token and rows of weight 0 do not count. Computed over the whole batch, not over a
    micro-batch. It is 1 where nothing counts, so that the loss and the gradient of such a batch are 0.
    """
    total = jnp.sum(_AGGREGATIONS[config.aggregation](mask_BT, row_weight_B))
    return jnp.where(total > 0, total, 1.0)


def grpo_loss(
    config: GRPOConfig,
    logprobs_BT: Float[Array, "B T"],
    old_logprobs_BT: Float[Array, "B T"] | None,
    ref_logprobs_BT: Float[Array, "B T"] | None,
    sampler_logprobs_BT: Float[Array, "B T"] | None,
    advantages_B: Float[Array, " B"],
    row_weight_B: Float[Array, " B"],
    mask_BT: Bool[Array, "B T"],
    entropy_BT: Float[Array, "B T"],
) -> tuple[Float[Array, ""], LossSums]:
    """Σ over tokens of weight · (surrogate + kl_coef · k3), and the sums of the metrics.

    Args:
        config: the objective.
        logprobs_BT: log-probs of the tokens under the policy that is trained; the only input with a gradient.
        old_logprobs_BT: under the policy at the time of the rollout, scored as `logprobs_BT` are. None where the
            policy has not moved since: the ratio is then 1 to the bit.
        ref_logprobs_BT: under the reference. None only with kl_coef 0; the KL metrics are then absent.
        sampler_logprobs_BT: under the distribution that the sampler drew from, for the mismatch metrics alone. None
            leaves them out.
        advantages_B: one advantage a row.
        row_weight_B: 1, or 0 for a row that is left out of the loss and of every metric (`row_weights`).
        mask_BT: the completion (`completion_mask`). Masked places may hold anything, NaN too.
        entropy_BT: entropy of the policy at each token, for the log.

    Returns:
        The loss times the batch's denominator, and the sums from which `finalize_metrics` makes the metrics.
    """
    if ref_logprobs_BT is None and config.kl_coef > 0:
        raise ValueError(f"ref_logprobs is None, but kl_coef is {config.kl_coef}: give the reference's or set it to 0")
    # However many rows without weight a micro-batch happens to hold, the metrics are the same.
    mask_BT = mask_BT & (row_weight_B > 0)[:, None]

    def clean(values_BT: Float[Array, "B T"]) -> Float[Array, "B T"]:
        # Before any arithmetic: a `where` after it would pass 0 · NaN = NaN backwards.
        return jnp.where(mask_BT, values_BT.astype(jnp.float32), 0.0)

    logprobs_BT = clean(logprobs_BT)
    policy_BT = jax.lax.stop_gradient(logprobs_BT)
    old_BT = policy_BT if old_logprobs_BT is None else jax.lax.stop_gradient(clean(old_logprobs_BT))
    weights_BT = jax.lax.stop_gradient(_AGGREGATIONS[config.aggregation](mask_BT, row_weight_B))

    surrogate = clipped_surrogate(logprobs_BT, old_BT, advantages_B, mask_BT, config.clip_low, config.clip_high)
    policy_sum = jnp.sum(surrogate.loss_BT * weights_BT)
    loss_sum = policy_sum
    losses = {"policy_loss": policy_sum}
    per_token = {
        "entropy": jax.lax.stop_gradient(clean(entropy_BT)),
        "ratio_mean": jnp.where(mask_BT, surrogate.ratio_BT, 0.0),
        "clip_fraction_low": surrogate.clipped_low_BT,
        "clip_fraction_high": surrogate.clipped_high_BT,
    }
    counts = {"ratio_clamped": surrogate.clamped_BT}
    maxima = {"ratio_max": surrogate.ratio_BT}
    moments = {}

    if ref_logprobs_BT is not None:
        reference = k3_kl(logprobs_BT, clean(ref_logprobs_BT))
        losses["kl_loss"] = config.kl_coef * jnp.sum(reference.kl * weights_BT)
        loss_sum += losses["kl_loss"]
        per_token["kl"] = reference.kl
        counts["kl_clamped"] = reference.clamped

    if sampler_logprobs_BT is not None:
        sampler_BT = clean(sampler_logprobs_BT)
        # k3 with the sampler as the policy: the tokens were drawn from it, so the value is unbiased.
        per_token["mismatch_kl"] = k3_kl(sampler_BT, old_BT).kl
        maxima["mismatch_max"] = jnp.abs(old_BT - sampler_BT)
        importance_BT = jnp.where(mask_BT, jnp.exp(saturate(old_BT - sampler_BT)), 0.0)
        moments["ess"] = jnp.stack([jnp.sum(mask_BT), jnp.sum(importance_BT), jnp.sum(importance_BT**2)])

    tokens = jnp.sum(mask_BT).astype(jnp.float32)
    sums = LossSums(
        losses=losses | {"loss": loss_sum},
        loss_weight=jnp.sum(weights_BT),
        totals={name: jnp.sum(values, dtype=jnp.float32) for name, values in per_token.items()},
        weights=dict.fromkeys(per_token, tokens),
        counts={name: jnp.sum(values, dtype=jnp.float32) for name, values in counts.items()} | {"tokens": tokens},
        minima={"ratio_min": jnp.min(jnp.where(mask_BT, surrogate.ratio_BT, jnp.inf))},
        maxima={name: jnp.max(jnp.where(mask_BT, values, -jnp.inf)) for name, values in maxima.items()},
        moments=moments,
    )
    return loss_sum, jax.lax.stop_gradient(sums)
