"""The supervised loss: negative log-likelihood of the completion, as sums."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.objectives.sums import LossSums

__all__ = ["sft_denominator", "sft_loss"]


def sft_denominator(mask_BT: Bool[Array, "B T"]) -> Float[Array, ""]:
    """What the `loss_sum`s of a batch are divided by: its completion tokens, 1 if there are none."""
    return jnp.maximum(jnp.sum(mask_BT), 1).astype(jnp.float32)


def sft_loss(logprobs_BT: Float[Array, "B T"], mask_BT: Bool[Array, "B T"]) -> tuple[Float[Array, ""], LossSums]:
    """−Σ log π over the completion tokens, in nats, and the sums of the metrics `loss` and `tokens`.

    Masked places may hold anything, NaN too. As in `grpo_loss` the caller divides, by `sft_denominator` of the whole
    batch.
    """
    loss_sum = -jnp.sum(jnp.where(mask_BT, logprobs_BT.astype(jnp.float32), 0.0))
    tokens = jnp.sum(mask_BT).astype(jnp.float32)
    sums = LossSums(
        losses={"loss": loss_sum},
        loss_weight=tokens,
        totals={},
        weights={},
        counts={"tokens": tokens},
        minima={},
        maxima={},
        moments={},
    )
    return loss_sum, jax.lax.stop_gradient(sums)
