"""The pure functions everyone calls: full forward, prefill, and one cached decode step."""

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from grpo_jax.model.cache import Cache, write_prompt
from grpo_jax.model.config import ModelConfig
from grpo_jax.model.transformer import Transformer, extend_layers, run, unstack
from grpo_jax.types import Array, Params


def hidden_states(
    config: ModelConfig,
    params: Params,
    tokens_BT: Int[Array, "B T"],
    mesh: Mesh | None = None,
    segments_BT: Int[Array, "B T"] | None = None,
) -> Float[Array, "B T D"]:
    """The causal full forward, after the final norm; times `unembedding(config, params)` it gives logits.

    Rows are padded on the right only, so causality alone keeps padding out of every real position; the hidden states
    of padding are meaningless.

    Args:
        config: the model's shape.
        params: its parameters.
        tokens_BT: one sequence a row, or several with `segments_BT`.
        mesh: pins the shardings of activations.
        segments_BT: for packed rows, a number for each token: runs of equal numbers are sequences of their own, which
            see nothing of each other and whose positions count from 0.
    """
    return run(Transformer(config, mesh), params, "hidden", tokens_BT, segments_BT)


def prefill(
    config: ModelConfig,
    params: Params,
    tokens_BT: Int[Array, "B T"],
    lengths_B: Int[Array, " B"],
    cache: Cache,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "B D"], Cache]:
    """Runs prompts and fills slots 0..T-1; returns the hidden state (after the final norm) of each last prompt token.

    The slots of padding are filled too. Decoding overwrites each before any query may see it, since it writes slot
    `lengths` first and attends to slots up to its position only.

    Args:
        config: the model's shape.
        params: its parameters.
        tokens_BT: prompts, padded on the right with any ids.
        lengths_B: tokens of each prompt, 1 <= length <= T.
        cache: from init_cache, with at least T slots.
        mesh: pins the shardings of activations.
    """
    model = Transformer(config, mesh)
    x_BTD, stacked = run(model, params, "prefill", tokens_BT)
    last_BD = jnp.take_along_axis(x_BTD, (lengths_B - 1)[:, None, None], axis=1)[:, 0]
    entries = unstack(stacked, config.num_layers)
    cache = tuple(write_prompt(old, new) for old, new in zip(cache, entries, strict=True))
    return run(model, params, "normalize", last_BD), cache


def decode_step(
    config: ModelConfig,
    params: Params,
    layers: tuple[Params, ...],
    tokens_B: Int[Array, " B"],
    positions_B: Int[Array, " B"],
    cache: Cache,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "B D"], Cache]:
    """One token per row, each at its own position: writes that slot, attends to the slots up to it.

    Args:
        config: the model's shape.
        params: its parameters.
        layers: unstack_layers(params), made once outside the loop.
        tokens_B: the token at each row's position.
        positions_B: where it stands: the row's length before it. A position outside the cache writes nothing.
        cache: from prefill; donate it, or carry it through a loop, and it is updated in place.
        mesh: pins the shardings of activations.

    Returns:
        The hidden state after the final norm, which predicts the next token, and the cache.
    """
    model = Transformer(config, mesh)
    x_BTD = run(model, params, "embed_tokens", tokens_B[:, None])
    x_BTD, cache = extend_layers(config, layers, x_BTD, positions_B[:, None], cache, mesh)
    return run(model, params, "normalize", x_BTD[:, 0]), cache
