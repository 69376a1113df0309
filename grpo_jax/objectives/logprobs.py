"""Log-probs and entropies of given tokens, computed so that the logits [B, T, V] never exist.

At V = 131072 the logits of 8 rows of 2048 tokens are 8 GiB in float32, and a naive backward pass holds them more
than once. Here the vocabulary projection runs over chunks of positions, in the forward and in the backward pass, so
that at most [B, chunk, V] is alive.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["TokenStats", "token_logprobs"]


class TokenStats(NamedTuple):
    logprobs_BT: Float[Array, "B T"]
    entropy_BT: Float[Array, "B T"]


def _chunk_stats(hidden_BTD, kernel_DV, targets_BT, temperature):
    logits_BTV = jnp.einsum("BTD,DV->BTV", hidden_BTD, kernel_DV, preferred_element_type=jnp.float32) / temperature
    shifted_BTV = logits_BTV - jax.lax.stop_gradient(jnp.max(logits_BTV, axis=-1, keepdims=True))
    exp_BTV = jnp.exp(shifted_BTV)
    total_BT = jnp.sum(exp_BTV, axis=-1)
    is_target_BTV = jnp.arange(kernel_DV.shape[1]) == targets_BT[..., None]
    target_BT = jnp.sum(jnp.where(is_target_BTV, shifted_BTV, 0.0), axis=-1)
    log_total_BT = jnp.log(total_BT)
    entropy_BT = log_total_BT - jnp.sum(exp_BTV * shifted_BTV, axis=-1) / total_BT
    return target_BT - log_total_BT, jax.lax.stop_gradient(entropy_BT)


def token_logprobs(hidden_BTD, kernel_DV, tokens_BT, *, temperature=1.0, chunk: int, mask_BT=None) -> TokenStats:
    B, T = tokens_BT.shape
    if mask_BT is not None:
        scored_BT = jnp.pad(mask_BT[:, 1:], ((0, 0), (0, 1)))
        hidden_BTD = jnp.where(scored_BT[..., None], hidden_BTD, 0)
    kernel_DV = kernel_DV.astype(hidden_BTD.dtype)
    targets_BT = jnp.pad(tokens_BT[:, 1:], ((0, 0), (0, 1)))
    if chunk >= T:
        logprobs_BT, entropy_BT = _chunk_stats(hidden_BTD, kernel_DV, targets_BT, temperature)
    else:
        n = -(-T // chunk)
        pad = n * chunk - T
        h = jnp.moveaxis(jnp.pad(hidden_BTD, ((0, 0), (0, pad), (0, 0))).reshape(B, n, chunk, -1), 1, 0)
        t = jnp.moveaxis(jnp.pad(targets_BT, ((0, 0), (0, pad))).reshape(B, n, chunk), 1, 0)

        @jax.checkpoint
        def body(kernel, xs):
            return _chunk_stats(xs[0], kernel, xs[1], temperature)

        _, (lp, en) = jax.lax.scan(lambda c, xs: (c, body(kernel_DV, xs)), None, (h, t))
        logprobs_BT, entropy_BT = (jnp.moveaxis(x, 0, 1).reshape(B, n * chunk)[:, :T] for x in (lp, en))
    shift = lambda x: jnp.pad(x[:, :-1], ((0, 0), (1, 0)))  # noqa: E731
    logprobs_BT, entropy_BT = shift(logprobs_BT), shift(entropy_BT)
    if mask_BT is not None:
        logprobs_BT, entropy_BT = jnp.where(mask_BT, logprobs_BT, 0.0), jnp.where(mask_BT, entropy_BT, 0.0)
    return TokenStats(logprobs_BT, entropy_BT)
