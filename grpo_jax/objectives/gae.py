"""Generalized advantage estimation: per-token advantages from rewards and a value function."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["GAEResult", "gae"]


class GAEResult(NamedTuple):
    """What `gae` gives, in units of reward; exactly 0 outside the mask.

    Attributes:
        advantages_BT: A.
        returns_BT: A + V, what the value function is to learn.
    """

    advantages_BT: Float[Array, "B T"]
    returns_BT: Float[Array, "B T"]


def gae(
    rewards_BT: Float[Array, "B T"],
    values_BT: Float[Array, "B T"],
    mask_BT: Bool[Array, "B T"],
    *,
    discount: float = 1.0,
    decay: float = 0.95,
) -> GAEResult:
    """A_t = δ_t + γλ A_{t+1} with δ_t = r_t + γ V_{t+1} − V_t (Schulman et al., 1506.02438, eqs. 11 and 16).

    λ = 0 gives the residual δ of temporal differences: little variance, the bias of V. λ = 1 gives the discounted
    sum of the rewards to come minus V: no bias, all the variance.

    Args:
        rewards_BT: the reward that a token brought; an outcome's reward stands at the completion's last token.
        values_BT: V, the return expected before the token is chosen.
        mask_BT: the completion's tokens, one run in each row. The completion ends with the run: V and A after it are
            0. What stands outside the mask, NaN too, reaches nothing.
        discount: γ, in [0, 1].
        decay: λ, in [0, 1].

    No gradient flows through the result, neither into the values nor into the rewards: a value loss compares V with
    `returns_BT` as a constant.

    Raises:
        ValueError: discount or decay is out of range, or the shapes differ.
    """
    for name, value in (("discount", discount), ("decay", decay)):
        # Written so that NaN fails too.
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} is {value!r}, but it must be in [0, 1]")
    if not rewards_BT.shape == values_BT.shape == mask_BT.shape or rewards_BT.ndim != 2:
        raise ValueError(
            f"rewards have shape {rewards_BT.shape}, values {values_BT.shape} and the mask {mask_BT.shape}, but all "
            "three must be [rows, tokens]"
        )
    mask_BT = jnp.asarray(mask_BT, jnp.bool_)
    rewards_BT, values_BT = (
        jnp.where(mask_BT, jax.lax.stop_gradient(jnp.asarray(array, jnp.float32)), 0.0) for array in (rewards_BT, values_BT)
    )
    # Values are 0 outside the mask by now, so the one after a completion's last token is too.
    next_values_BT = jnp.pad(values_BT[:, 1:], ((0, 0), (0, 1)))
    residuals_BT = jnp.where(mask_BT, rewards_BT + discount * next_values_BT - values_BT, 0.0)

    def step(after_B: Float[Array, " B"], token: tuple[Array, Array]) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        residual_B, mask_B = token
        advantage_B = jnp.where(mask_B, residual_B + discount * decay * after_B, 0.0)
        return advantage_B, advantage_B

    start_B = jnp.zeros(rewards_BT.shape[0], jnp.float32)
    _, advantages_TB = jax.lax.scan(step, start_B, (residuals_BT.T, mask_BT.T), reverse=True)
    return GAEResult(advantages_BT=advantages_TB.T, returns_BT=advantages_TB.T + values_BT)
