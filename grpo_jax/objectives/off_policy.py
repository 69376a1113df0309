"""What is done about tokens that another distribution drew than the one the loss assumes.

Two gaps are told apart. From the rollout on, the policy moves with every update: the ratio π/π_old and its clipping (the
policy term) answer that. And the sampler may draw from another distribution μ than the trainer scores, for its
numerics or its top-p: w = π_old/μ measures that gap, and a correction weighs or leaves out what it makes unreliable.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.objectives.log_ratio import saturate

__all__ = ["CORRECTIONS", "Correction", "OffPolicyConfig", "correction_weights", "opsm_keep"]

type _Weights = Float[Array, "B T"]


def _row_mean(values_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"]) -> Float[Array, "B 1"]:
    tokens_B1 = jnp.maximum(jnp.sum(mask_BT, axis=1, keepdims=True), 1)
    return jnp.sum(jnp.where(mask_BT, values_BT, 0.0), axis=1, keepdims=True) / tokens_B1


def _tis(log_weight_BT: _Weights, mask_BT: Bool[Array, "B T"], *, cap: float) -> _Weights:
    """min(w, cap) for each token."""
    return jnp.minimum(jnp.exp(saturate(log_weight_BT)), cap)


def _sequence_tis(log_weight_BT: _Weights, mask_BT: Bool[Array, "B T"], *, cap: float) -> _Weights:
    """min(geometric mean of w over the row, cap). A product over the row would be 0 or cap for any long one."""
    return jnp.minimum(jnp.exp(saturate(_row_mean(log_weight_BT, mask_BT))), cap) + jnp.zeros_like(log_weight_BT)


def _icepop(log_weight_BT: _Weights, mask_BT: Bool[Array, "B T"], *, low: float, high: float) -> _Weights:
    """w where low ≤ w ≤ high, else 0."""
    weight_BT = jnp.exp(saturate(log_weight_BT))
    return jnp.where((weight_BT >= low) & (weight_BT <= high), weight_BT, 0.0)


def _sequence_mask(log_weight_BT: _Weights, mask_BT: Bool[Array, "B T"], *, low: float, high: float) -> _Weights:
    """1 for the rows whose geometric mean of w lies in [low, high], else 0."""
    mean_B1 = jnp.exp(saturate(_row_mean(log_weight_BT, mask_BT)))
    return jnp.where((mean_B1 >= low) & (mean_B1 <= high), 1.0, 0.0) + jnp.zeros_like(log_weight_BT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correction:
    """An entry of the table of corrections.

    Attributes:
        function: (log w, mask, **options) -> what the policy term of each token is multiplied by.
        defaults: every option that the correction has, and its published value.
        source: where it is from.
    """

    function: Callable[..., Float[Array, "B T"]]
    defaults: Mapping[str, float]
    source: str


CORRECTIONS: dict[str, Correction] = {
    "tis": Correction(function=_tis, defaults={"cap": 2.0}, source="Yao et al., Truncated Importance Sampling, 2025"),
    "sequence_tis": Correction(
        function=_sequence_tis, defaults={"cap": 2.0}, source="the same with GSPO's ratio, 2507.18071"
    ),
    "icepop": Correction(function=_icepop, defaults={"low": 0.5, "high": 5.0}, source="IcePop, Ring-1T, 2510.18855"),
    "sequence_mask": Correction(
        function=_sequence_mask, defaults={"low": 0.5, "high": 2.0}, source="geometric sequence masking, Liu et al., 2025"
    ),
}
"""Name to correction."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Old log-probs, and what is done where sampler, old policy and policy drift apart.

    Attributes:
        old_logprobs: Where the log-probs come from that the ratio is taken to: `recomputed` under the policy at the time
            of the rollout, scored as the policy's own; `sampler` takes those that the sampler drew with, which saves that
            pass and puts the sampler's mismatch into the ratio.
        correction: What π_old/μ does to a token: `none`; `tis` weighs it by the ratio, capped; `sequence_tis` by the row's
            geometric mean, capped; `icepop` by the ratio and drops it outside [low, high]; `sequence_mask` drops rows whose
            geometric mean is outside [low, high].
        cap: The greatest weight of tis and sequence_tis, above 0; null is 2.
        low: The least ratio that icepop and sequence_mask keep; null is 0.5.
        high: The greatest ratio that they keep; null is 5 for icepop and 2 for sequence_mask.
        opsm_threshold: Drops a row with a negative advantage whose mean log μ − log π is above this many nats, which
            learning from would be learning from another policy's mistakes (off-policy sequence masking, DeepSeek-V3.2,
            2512.02556); null drops none. A usual value is 0.5.
        max_staleness: The most optimizer updates that may lie between the policy that sampled a row and the policy that
            the row updates; null is no bound. Reused rollouts that would exceed it are refused, replayed groups dropped.
    """

    old_logprobs: Literal["recomputed", "sampler"] = "recomputed"
    correction: Literal["none", "tis", "sequence_tis", "icepop", "sequence_mask"] = "none"
    cap: float | None = None
    low: float | None = None
    high: float | None = None
    opsm_threshold: float | None = None
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if self.old_logprobs not in ("recomputed", "sampler"):
            raise ValueError(f"old_logprobs is {self.old_logprobs!r}, but it must be one of recomputed, sampler")
        known = ("none", *CORRECTIONS)
        if self.correction not in known:
            raise ValueError(f"correction is {self.correction!r}, but it must be one of {', '.join(known)}")
        if self.correction != "none" and self.old_logprobs == "sampler":
            raise ValueError(
                f"correction is {self.correction!r}, but it must be none with old_logprobs sampler: the ratio is taken to "
                "the sampler's own log-probs, so π_old/μ is 1 everywhere and nothing is left to correct"
            )
        for name in ("cap", "low", "high"):
            value = getattr(self, name)
            if value is None:
                continue
            users = [correction for correction, entry in CORRECTIONS.items() if name in entry.defaults]
            if self.correction not in users:
                raise ValueError(
                    f"{name} is {value}, but the correction {self.correction} has no use for it. Leave it null, or choose a "
                    f"correction that has: {', '.join(users)}"
                )
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}, but it must be a finite number above 0")
        options = self.options
        if "low" in options and not options["low"] < options["high"]:
            raise ValueError(f"low is {options['low']}, but it must be below high, {options['high']}")
        if self.opsm_threshold is not None and not 0.0 <= self.opsm_threshold < math.inf:
            raise ValueError(
                f"opsm_threshold is {self.opsm_threshold!r}, but it must be a finite number, 0 or more, or null"
            )
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"max_staleness is {self.max_staleness}, but it must be 0 or more, or null")

    @property
    def options(self) -> dict[str, float]:
        """Every option that the correction has, with the value in effect."""
        if self.correction == "none":
            return {}
        defaults = CORRECTIONS[self.correction].defaults
        given = {name: getattr(self, name) for name in defaults}
        return {name: defaults[name] if value is None else value for name, value in given.items()}

    @property
    def needs_sampler(self) -> bool:
        """Whether the loss needs the sampler's log-probs."""
        return self.correction != "none" or self.opsm_threshold is not None


class CorrectionTerms(NamedTuple):
    """Attributes:
    weights_BT: what the policy term of each token is multiplied by; carries no gradient.
    changed_BT: where that is not simply w: capped or dropped.
    """

    weights_BT: Float[Array, "B T"]
    changed_BT: Bool[Array, "B T"]


def correction_weights(
    config: OffPolicyConfig,
    old_logprobs_BT: Float[Array, "B T"],
    sampler_logprobs_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
) -> CorrectionTerms:
    """The weights of the config's correction from w = π_old/μ.

    Args:
        config: a correction other than none.
        old_logprobs_BT: finite everywhere.
        sampler_logprobs_BT: finite everywhere.
        mask_BT: the tokens that are trained on.
    """
    log_weight_BT = jnp.where(mask_BT, old_logprobs_BT - sampler_logprobs_BT, 0.0)
    entry = CORRECTIONS[config.correction]
    weights_BT = jax.lax.stop_gradient(entry.function(log_weight_BT, mask_BT, **config.options))
    at_bound = weights_BT == 0.0
    if "cap" in config.options:
        at_bound |= weights_BT >= config.options["cap"]
    return CorrectionTerms(weights_BT=weights_BT, changed_BT=at_bound & mask_BT)


def opsm_keep(
    threshold: float,
    logprobs_BT: Float[Array, "B T"],
    sampler_logprobs_BT: Float[Array, "B T"],
    advantages_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
) -> Bool[Array, "B T"]:
    """False at the tokens with A < 0 of rows whose mean log μ − log π is above `threshold`. Carries no gradient."""
    gap_B1 = _row_mean(sampler_logprobs_BT - jax.lax.stop_gradient(logprobs_BT), mask_BT)
    return ~((gap_B1 > threshold) & (advantages_BT < 0))
