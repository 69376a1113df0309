"""How the losses of tokens become the loss of a batch: a weighted sum over a denominator, the weights a choice.

    token_mean           Σ loss / tokens                                    (DAPO, 2503.14476)
    sequence_mean        mean over rows of the mean over their tokens       (GRPO, DeepSeekMath, 2402.03300)
    sequence_sum_fixed   Σ loss / (rows × fixed_length)                     (Dr. GRPO, 2503.20783)

Rows of weight 0 and rows without a completion token are in neither sum.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["AGGREGATIONS", "Aggregated", "aggregation_weights"]


class Aggregated(NamedTuple):
    """Attributes:
    weights_BT: what the loss of each token is multiplied by; 0 in masked places.
    share_B: what each row adds to the denominator.
    """

    weights_BT: Float[Array, "B T"]
    share_B: Float[Array, " B"]


type _Aggregation = Callable[[Float[Array, " B"], Float[Array, " B"], float], tuple[Float[Array, " B"], Float[Array, " B"]]]

# (row weights, tokens of the rows, fixed length) -> (weight of a row's tokens, share of the row in the denominator)
AGGREGATIONS: dict[str, _Aggregation] = {
    "token_mean": lambda row_weight_B, tokens_B, _: (row_weight_B, row_weight_B * tokens_B),
    "sequence_mean": lambda row_weight_B, tokens_B, _: (row_weight_B / jnp.maximum(tokens_B, 1), row_weight_B),
    "sequence_sum_fixed": lambda row_weight_B, _, length: (row_weight_B, row_weight_B * length),
}


def aggregation_weights(
    aggregation: str, fixed_length: float | None, mask_BT: Bool[Array, "B T"], row_weight_B: Float[Array, " B"]
) -> Aggregated:
    """The weights of tokens and rows.

    Args:
        aggregation: a name of `AGGREGATIONS`.
        fixed_length: what sequence_sum_fixed divides a row's sum by, in tokens; the others have no use for it.
        mask_BT: the completion tokens.
        row_weight_B: 1 for a row that counts, 0 for one that does not.
    """
    tokens_B = jnp.sum(mask_BT, axis=1, dtype=jnp.float32)
    counted_B = jnp.where(tokens_B > 0, row_weight_B.astype(jnp.float32), 0.0)
    length = 1.0 if fixed_length is None else float(fixed_length)
    weight_B, share_B = AGGREGATIONS[aggregation](counted_B, tokens_B, length)
    return Aggregated(weights_BT=jnp.where(mask_BT, weight_B[:, None], 0.0), share_B=share_B)
