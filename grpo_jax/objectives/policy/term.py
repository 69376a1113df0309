"""What every policy term takes and gives, and its entry in the table."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["PolicyTerm", "TermInputs", "TokenTerm", "no_token"]


class TermInputs(NamedTuple):
    """Attributes:
    logprobs_BT: log π, 0 in masked places; carries the gradient.
    log_ratio_BT: log π − log π_old, 0 in masked places; carries the gradient.
    advantages_BT: one a token, without a gradient; 0 in masked places.
    mask_BT: the tokens that are trained on.
    selected_BT: the tokens that a covariance term singles out; None for the other terms.
    """

    logprobs_BT: Float[Array, "B T"]
    log_ratio_BT: Float[Array, "B T"]
    advantages_BT: Float[Array, "B T"]
    mask_BT: Bool[Array, "B T"]
    selected_BT: Bool[Array, "B T"] | None


class TokenTerm(NamedTuple):
    """What a term gives for each token; masked tokens have loss 0 and False.

    Attributes:
        loss_BT: the term to minimise.
        clipped_low_BT: the ratio is held at the lower bound.
        clipped_high_BT: the ratio is held at the upper bound.
    """

    loss_BT: Float[Array, "B T"]
    clipped_low_BT: Bool[Array, "B T"]
    clipped_high_BT: Bool[Array, "B T"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyTerm:
    """An entry of the table of policy terms.

    Attributes:
        function: (inputs, **options) -> the term of each token.
        defaults: every option that the term has, and the value that its paper gives it.
        aggregation: how the paper sums the term over tokens and rows.
        paper: where it is from: an arXiv number, or the library that named it.
        fixed_length: what the paper divides a row's sum by under sequence_sum_fixed; None leaves it to the run.
        selects: how the tokens of `TermInputs.selected_BT` are chosen; a name of `SELECTIONS`, None for no choice.
    """

    function: Callable[..., TokenTerm]
    defaults: Mapping[str, float]
    aggregation: str
    paper: str
    fixed_length: int | None = None
    selects: str | None = None


def no_token(inputs: TermInputs) -> Bool[Array, "B T"]:
    """False everywhere."""
    return jnp.zeros_like(inputs.mask_BT, dtype=bool)
