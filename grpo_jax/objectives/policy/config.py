"""The table of policy terms, and the configuration that chooses one."""

import dataclasses
import math
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from grpo_jax.objectives.aggregation import AGGREGATIONS
from grpo_jax.objectives.policy.clipped import clipped, dual_clipped
from grpo_jax.objectives.policy.covariance import SELECTIONS, clip_cov, kl_cov, token_covariance
from grpo_jax.objectives.policy.sequence import gmpo, gspo, gspo_token
from grpo_jax.objectives.policy.soft import cispo, sapo
from grpo_jax.objectives.policy.term import PolicyTerm, TermInputs, TokenTerm

__all__ = ["POLICY_TERMS", "RATIO_OPTIONS", "PolicyConfig", "policy_term", "select_tokens"]

_CLIP = {"clip_low": 0.2, "clip_high": 0.2}

POLICY_TERMS: dict[str, PolicyTerm] = {
    "grpo": PolicyTerm(function=clipped, defaults=_CLIP, aggregation="sequence_mean", paper="2402.03300"),
    "bnpo": PolicyTerm(function=clipped, defaults=_CLIP, aggregation="token_mean", paper="TRL, loss_type bnpo"),
    "dr_grpo": PolicyTerm(function=clipped, defaults=_CLIP, aggregation="sequence_sum_fixed", paper="2503.20783"),
    "dapo": PolicyTerm(
        function=clipped, defaults={"clip_low": 0.2, "clip_high": 0.28}, aggregation="token_mean", paper="2503.14476"
    ),
    "dual_clip": PolicyTerm(
        function=dual_clipped, defaults=_CLIP | {"dual_clip": 3.0}, aggregation="sequence_mean", paper="1912.09729"
    ),
    "gspo": PolicyTerm(
        function=gspo, defaults={"clip_low": 3e-4, "clip_high": 4e-4}, aggregation="sequence_mean", paper="2507.18071"
    ),
    "gspo_token": PolicyTerm(
        function=gspo_token, defaults={"clip_low": 3e-4, "clip_high": 4e-4}, aggregation="sequence_mean", paper="2507.18071"
    ),
    # GSPO's row term times the row's length: a sum over the row's tokens, not divided by any length.
    "luspo": PolicyTerm(
        function=gspo,
        defaults={"clip_low": 2e-3, "clip_high": 2.5e-3},
        aggregation="sequence_sum_fixed",
        fixed_length=1,
        paper="2602.05261",
    ),
    "gmpo": PolicyTerm(
        function=gmpo, defaults={"log_clip_low": 0.4, "log_clip_high": 0.4}, aggregation="sequence_mean", paper="2507.20673"
    ),
    "cispo": PolicyTerm(function=cispo, defaults={"ratio_cap": 5.0}, aggregation="token_mean", paper="2506.13585"),
    "sapo": PolicyTerm(
        function=sapo,
        defaults={"gate_positive": 1.0, "gate_negative": 1.05},
        aggregation="sequence_mean",
        paper="2511.20347",
    ),
    "clip_cov": PolicyTerm(
        function=clip_cov,
        defaults=_CLIP | {"cov_ratio": 2e-4, "cov_low": 1.0, "cov_high": 5.0},
        aggregation="token_mean",
        paper="2505.22617",
        selects="random_in_band",
    ),
    "kl_cov": PolicyTerm(
        function=kl_cov,
        defaults={"cov_ratio": 2e-4, "cov_kl_coef": 1.0},
        aggregation="token_mean",
        paper="2505.22617",
        selects="greatest",
    ),
}
"""Name to term. docs/objectives.md has the formulas side by side."""


def _in(low: float, high: float):
    return lambda value: low <= value <= high, f"in [{low:g}, {high:g}]"


_NOT_NEGATIVE = (lambda value: 0.0 <= value < math.inf), "a finite number, 0 or more"
_POSITIVE = (lambda value: 0.0 < value < math.inf), "a finite number above 0"
# Written so that NaN fails too.
_RANGES = {
    "clip_low": _in(0.0, 1.0),
    "clip_high": _NOT_NEGATIVE,
    "dual_clip": ((lambda value: 1.0 < value < math.inf), "a finite number above 1"),
    "ratio_cap": _POSITIVE,
    "log_clip_low": _NOT_NEGATIVE,
    "log_clip_high": _NOT_NEGATIVE,
    "gate_positive": _POSITIVE,
    "gate_negative": _POSITIVE,
    "cov_ratio": ((lambda value: 0.0 < value <= 1.0), "above 0 and at most 1"),
    "cov_low": ((lambda value: -math.inf < value < math.inf), "a finite number"),
    "cov_high": ((lambda value: -math.inf < value < math.inf), "a finite number"),
    "cov_kl_coef": _POSITIVE,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The policy term of the loss, and how it is summed. What is null takes the value that the term's paper gives it.

    Attributes:
        term: `grpo`, `bnpo`, `dr_grpo` and `dapo` clip the ratio of a token and differ in bounds and aggregation;
            `dual_clip` bounds it further; `gspo`, `gspo_token`, `luspo` and `gmpo` take the ratio of a row; `cispo` and
            `sapo` keep a gradient on every token; `clip_cov` and `kl_cov` restrain the tokens that lower entropy most.
        aggregation: `sequence_mean` averages tokens within a row and then rows; `token_mean` averages all tokens of the
            batch; `sequence_sum_fixed` divides the sum over all tokens by rows × fixed_length.
        fixed_length: Tokens that sequence_sum_fixed divides a row's sum by.
        clip_low: How far the ratio may fall below 1 before a token with a negative advantage stops pulling, in [0, 1].
        clip_high: How far the ratio may rise above 1 before a token with a positive advantage stops pulling.
        dual_clip: The greatest ratio that counts for a token with a negative advantage, above 1.
        ratio_cap: The greatest ratio that a token is weighted by (cispo): the cap itself, not its distance from 1.
        log_clip_low: As clip_low, for the logarithm of the ratio (gmpo).
        log_clip_high: As clip_high, for the logarithm of the ratio (gmpo).
        gate_positive: How fast the gate closes for tokens with a positive advantage (sapo's temperature).
        gate_negative: How fast the gate closes for tokens with a negative advantage.
        cov_ratio: Share of the tokens that is restrained (clip_cov, kl_cov).
        cov_low: Least covariance of a token that clip_cov may take out.
        cov_high: Greatest covariance of a token that clip_cov may take out.
        cov_kl_coef: Weight of |log ratio| on the tokens that kl_cov restrains.
    """

    term: str = "grpo"
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum_fixed"] | None = None
    fixed_length: int | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    dual_clip: float | None = None
    ratio_cap: float | None = None
    log_clip_low: float | None = None
    log_clip_high: float | None = None
    gate_positive: float | None = None
    gate_negative: float | None = None
    cov_ratio: float | None = None
    cov_low: float | None = None
    cov_high: float | None = None
    cov_kl_coef: float | None = None

    def __post_init__(self) -> None:
        if self.term not in POLICY_TERMS:
            raise ValueError(f"term is {self.term!r}, but it must be one of {', '.join(POLICY_TERMS)}")
        if self.aggregation is not None and self.aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation is {self.aggregation!r}, but it must be one of {', '.join(AGGREGATIONS)}")
        for name in OPTIONS:
            value = getattr(self, name)
            if value is None:
                continue
            users = [term for term, entry in POLICY_TERMS.items() if name in entry.defaults]
            if self.term not in users:
                raise ValueError(
                    f"{name} is {value}, but the term {self.term} has no use for it. Leave it null, or choose a term that "
                    f"has: {', '.join(users)}"
                )
            holds, rule = _RANGES[name]
            if not holds(value):
                raise ValueError(f"{name} is {value!r}, but it must be {rule}")
        if "cov_low" in self.options and not self.options["cov_low"] < self.options["cov_high"]:
            raise ValueError(
                f"cov_low is {self.options['cov_low']}, but it must be below cov_high, {self.options['cov_high']}"
            )
        if self.fixed_length is not None:
            if self.summed_by != "sequence_sum_fixed":
                raise ValueError(
                    f"fixed_length is {self.fixed_length}, but the aggregation {self.summed_by} has no use for it. Leave it "
                    "null, or set aggregation to sequence_sum_fixed"
                )
            if self.fixed_length < 1:
                raise ValueError(f"fixed_length is {self.fixed_length}, but it must be at least 1: it is a number of tokens")

    @property
    def entry(self) -> PolicyTerm:
        """The term's entry in the table."""
        return POLICY_TERMS[self.term]

    @property
    def options(self) -> dict[str, float]:
        """Every option that the term has, with the value in effect."""
        given = {name: getattr(self, name) for name in self.entry.defaults}
        return {name: self.entry.defaults[name] if value is None else value for name, value in given.items()}

    @property
    def summed_by(self) -> str:
        """The aggregation in effect."""
        return self.entry.aggregation if self.aggregation is None else self.aggregation

    @property
    def length(self) -> int | None:
        """The fixed length in effect; None where it is left to the run, or not used."""
        if self.summed_by != "sequence_sum_fixed":
            return None
        return self.entry.fixed_length if self.fixed_length is None else self.fixed_length


RATIO_OPTIONS = (
    "clip_low",
    "clip_high",
    "dual_clip",
    "ratio_cap",
    "log_clip_low",
    "log_clip_high",
    "gate_positive",
    "gate_negative",
    "cov_kl_coef",
)
"""The options that act on the ratio to the old policy, so that they have no effect where it is 1."""

OPTIONS = tuple(
    field.name for field in dataclasses.fields(PolicyConfig) if field.name not in ("term", "aggregation", "fixed_length")
)
"""The fields that are options of terms."""


def policy_term(config: PolicyConfig, inputs: TermInputs) -> TokenTerm:
    """The term of each token, by the config's name and options."""
    return config.entry.function(inputs, **config.options)


def select_tokens(
    config: PolicyConfig,
    old_logprobs_BT: Float[np.ndarray, "B T"],
    advantages: Float[np.ndarray, " B"] | Float[np.ndarray, "B T"],
    mask_BT: Bool[np.ndarray, "B T"],
    noise_BT: Float[np.ndarray, "B T"],
) -> Bool[np.ndarray, "B T"] | None:
    """The tokens that a covariance term singles out of a whole rollout; None for a term that singles out none.

    Of n unmasked tokens max(1, ⌊cov_ratio · n⌋) are chosen, or as many as there are to choose from. On the host, in NumPy.

    Args:
        config: the term and its options.
        old_logprobs_BT: under the policy at the time of the rollout.
        advantages: one a row or one a token.
        mask_BT: the tokens that are trained on, rows that are left out masked altogether.
        noise_BT: uniform and independent, one a token; decides where the choice is random.
    """
    if config.entry.selects is None:
        return None
    mask_BT = np.asarray(mask_BT)
    advantages_BT = np.broadcast_to(
        advantages if np.ndim(advantages) == 2 else np.asarray(advantages)[:, None], mask_BT.shape
    )
    covariance_BT = token_covariance(np.asarray(old_logprobs_BT), advantages_BT, mask_BT)
    places = np.flatnonzero(mask_BT)
    count = max(1, math.floor(config.options["cov_ratio"] * places.size))
    chosen = SELECTIONS[config.entry.selects](
        covariance_BT.reshape(-1)[places], np.asarray(noise_BT).reshape(-1)[places], count, config.options
    )
    selected = np.zeros(mask_BT.size, dtype=bool)
    selected[places[chosen]] = True
    return selected.reshape(mask_BT.shape)
