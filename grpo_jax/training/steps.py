"""The jitted training steps: `grpo_step`, `sft_step`, and `score` for log-probs under fixed parameters.

A step is a pure function of (state, batch). Gradients accumulate over microbatches as sums over a denominator that was
counted over the whole batch beforehand, so neither the split into microbatches nor the devices change the result.
Row r belongs to microbatch r mod M: every microbatch takes equally many rows from every device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.model import hidden_states, unembedding
from grpo_jax.objectives import (
    Coefficients,
    LossSums,
    add_sums,
    completion_mask,
    finalize_metrics,
    grpo_denominator,
    grpo_loss,
    no_sums,
    sft_denominator,
    sft_loss,
    token_logprobs,
)
from grpo_jax.parallel import constrain
from grpo_jax.training.optimizer import make_schedule
from grpo_jax.training.state import StepConfig, TrainState, state_shardings
from grpo_jax.types import Params

Metrics = dict[str, Any]


@flax.struct.dataclass
class SFTBatch:
    """Demonstrations, packed: a row holds several, one after the other.

    `segments` numbers the demonstrations of a row from 1 on and is 0 where it is unused; the loss is on the tokens of
    `completion_mask`.
    """

    tokens: Int[Array, "B T"]
    segments: Int[Array, "B T"]
    completion_mask: Bool[Array, "B T"]


@flax.struct.dataclass
class GRPOBatch:
    """One rollout, scored.

    A row is [prompt, completion, unused]; index t of a log-prob array belongs to token t.
    `row_weights` is 1 for a row that counts and 0 for one left out of the loss and of its denominator.
    `old_logprobs` None means on-policy: the ratio is exactly 1. `ref_logprobs` None means no reference policy.
    `selected` is what `select_tokens` gives; only the covariance terms have a use for it.
    `tool_mask` is True at the tokens that a tool wrote: context of what follows, but no part of the loss and its metrics,
    so that their log-probs may be anything. None means that there are none.
    """

    tokens: Int[Array, "B T"]
    prompt_lengths: Int[Array, " B"]
    lengths: Int[Array, " B"]
    advantages: Float[Array, " B"] | Float[Array, "B T"]
    row_weights: Float[Array, " B"]
    sampler_logprobs: Float[Array, "B T"] | None = None
    ref_logprobs: Float[Array, "B T"] | None = None
    old_logprobs: Float[Array, "B T"] | None = None
    selected: Bool[Array, "B T"] | None = None
    tool_mask: Bool[Array, "B T"] | None = None


def _policy_mask(batch: GRPOBatch) -> Bool[Array, "B T"]:
    """True at the tokens that the policy drew."""
    mask_BT = completion_mask(batch.prompt_lengths, batch.lengths, batch.tokens.shape[1])
    return mask_BT if batch.tool_mask is None else mask_BT & ~batch.tool_mask


def _split(batch: Any, microbatches: int, config: StepConfig) -> Any:
    """[B, ...] -> [M, B/M, ...], row r to microbatch r mod M."""

    def split(x: Array) -> Array:
        if x.shape[0] % microbatches:
            raise ValueError(f"{x.shape[0]} rows cannot be split into {microbatches} equal microbatches")
        parts = jnp.swapaxes(x.reshape(x.shape[0] // microbatches, microbatches, *x.shape[1:]), 0, 1)
        return constrain(parts, config.mesh, (None, "rows", *[None] * (x.ndim - 1)))

    return jax.tree.map(split, batch)


def _accumulate(
    loss: Callable[[Params, Any], tuple[Float[Array, ""], LossSums]], params: Params, parts: Any, count: Array
) -> tuple[Params, LossSums]:
    """Gradient and metric sums over the first `count` microbatches."""
    gradient = jax.grad(loss, has_aux=True)

    def part(index: Array | int) -> Any:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), parts)

    if jax.tree.leaves(parts)[0].shape[0] == 1:
        return gradient(params, part(0))

    def body(index: Array, total: tuple[Params, LossSums]) -> tuple[Params, LossSums]:
        gradients, sums = gradient(params, part(index))
        return jax.tree.map(jnp.add, total[0], gradients), add_sums(total[1], sums)

    # Beginning with nothing rather than with the first microbatch, so that the gradient is compiled once and not twice.
    gradients, sums = jax.eval_shape(gradient, params, part(0))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), gradients), no_sums(sums)
    return jax.lax.fori_loop(0, count, body, nothing)


def _update(state: TrainState, gradients: Params, live: Array) -> tuple[TrainState, Metrics]:
    """One optimizer update; a batch without a live token leaves the state as it was, the step counter apart."""
    config = state.config
    updates, opt_state = config.make_optimizer().update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    keep = partial(jax.tree.map, lambda new, old: jnp.where(live, new, old))
    new = dataclasses.replace(
        state, step=state.step + 1, params=keep(params, state.params), opt_state=keep(opt_state, state.opt_state)
    )
    if config.mesh is not None:
        new = jax.lax.with_sharding_constraint(new, state_shardings(new))
    metrics = {
        "grad_norm": optax.global_norm(gradients),
        # By the optimizer's own count, which a batch without a live token does not advance.
        "learning_rate": make_schedule(config.optimizer, config.total_updates)(_updates_done(state.opt_state)),
    }
    return new, metrics


def _updates_done(opt_state: Any) -> Int[Array, ""]:
    return optax.tree_utils.tree_get_all_with_path(opt_state, "count")[0][1]


def _live_parts(live: Bool[Array, "M B"]) -> Int[Array, ""]:
    """How many microbatches there are up to the last one with a live row."""
    return jnp.max(jnp.where(jnp.any(live, axis=1), jnp.arange(1, live.shape[0] + 1), 0))


def _stats(
    config: StepConfig,
    params: Params,
    tokens: Int[Array, "B T"],
    temperature: float,
    segments: Int[Array, "B T"] | None = None,
    entropy_gradient: bool = False,
) -> Any:
    hidden = hidden_states(config.model, params, tokens, mesh=config.mesh, segments_BT=segments)
    kernel = unembedding(config.model, params)
    return token_logprobs(
        hidden,
        kernel,
        tokens,
        temperature=temperature,
        chunk=config.logit_chunk,
        entropy_gradient=entropy_gradient,
        mesh=config.mesh,
        kernels=config.model.kernels == "auto",
    )


@partial(jax.jit, donate_argnums=0)
def grpo_step(state: TrainState, batch: GRPOBatch, coefficients: Coefficients | None = None) -> tuple[TrainState, Metrics]:
    """One GRPO update (DeepSeekMath, arXiv 2402.03300): policy term, KL to the reference policy, entropy bonus.

    Args:
      state: donated. `state.config.objective` names the loss.
      batch: rows whose number is divisible by `state.config.microbatches`. Of several microbatches, trailing ones
        without a live row cost nothing.
      coefficients: weights of KL and entropy where they are not the objective's own; other values do not compile again.

    Returns:
      (state, metrics), metrics as scalars still on the device.
    """
    config = state.config
    denominator = grpo_denominator(config.objective, _policy_mask(batch), batch.row_weights)
    parts = _split(batch, config.microbatches, config)

    def loss(params: Params, part: GRPOBatch) -> tuple[Float[Array, ""], Any]:
        stats = _stats(config, params, part.tokens, config.temperature, entropy_gradient=config.objective.has_entropy_bonus)
        total, sums = grpo_loss(
            config.objective,
            logprobs_BT=stats.logprobs_BT,
            old_logprobs_BT=part.old_logprobs,
            ref_logprobs_BT=part.ref_logprobs,
            sampler_logprobs_BT=part.sampler_logprobs,
            advantages=part.advantages,
            row_weight_B=part.row_weights,
            mask_BT=_policy_mask(part),
            entropy_BT=stats.entropy_BT,
            selected_BT=part.selected,
            coefficients=coefficients,
        )
        return total / denominator, sums

    count = _live_parts(parts.row_weights > 0)
    gradients, sums = _accumulate(loss, state.params, parts, count)
    state, metrics = _update(state, gradients, count > 0)
    return state, metrics | finalize_metrics(sums)


@partial(jax.jit, donate_argnums=0)
def sft_step(state: TrainState, batch: SFTBatch) -> tuple[TrainState, Metrics]:
    """One supervised update: mean negative log-prob of the completions' tokens, at temperature 1.

    Args:
      state: donated.
      batch: rows whose number is divisible by `state.config.microbatches`. Of several microbatches, trailing ones
        without a token to train on cost nothing.

    Returns:
      (state, metrics), metrics as scalars still on the device.
    """
    config = state.config
    denominator = sft_denominator(batch.completion_mask)
    parts = _split(batch, config.microbatches, config)

    def loss(params: Params, part: SFTBatch) -> tuple[Float[Array, ""], Any]:
        stats = _stats(config, params, part.tokens, 1.0, part.segments)
        total, sums = sft_loss(stats.logprobs_BT, part.completion_mask)
        return total / denominator, sums

    count = _live_parts(jnp.any(parts.completion_mask, axis=2))
    gradients, sums = _accumulate(loss, state.params, parts, count)
    state, metrics = _update(state, gradients, count > 0)
    return state, metrics | finalize_metrics(sums)


@partial(jax.jit, static_argnums=0)
def score(config: StepConfig, params: Params, tokens: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Log-prob of every token under `params` at `config.temperature`; index 0 is 0. Runs in the step's microbatches."""
    parts = _split(tokens, config.microbatches, config)
    rows = jax.lax.map(lambda part: _stats(config, params, part, config.temperature).logprobs_BT, parts)
    return jnp.swapaxes(rows, 0, 1).reshape(tokens.shape)
