"""Rollout: prompts in, completions out, in one jitted call: a prefill, then a while_loop of cached decode steps.

A row is [prompt, completion, unused] throughout: its completion begins at its own prompt's length, and a token's
position, its index and its cache slot are one number. Within the loop all rows take their n-th completion token
together, which makes the drawn tokens a plain [B, M] array; they are moved to their rows' own positions at the end.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Int8, Key

from grpo_jax.generation.sampling import SamplerConfig, position_keys, sample_tokens
from grpo_jax.model import Cache, ModelConfig, decode_step, init_cache, prefill, unembedding, unstack_layers
from grpo_jax.parallel import MeshShape, constrain, platform_of
from grpo_jax.types import Params

# How a row ended: at the limit on its completion's length, or by a stop id, which is its last token.
END_LENGTH = 0
END_EOS = 1

SLOT_BLOCK = 128


class Rollout(struct.PyTreeNode):
    """What was sampled. S = T + max_completion.

    Attributes:
        tokens: [prompt, completion, unused] per row; unused is 0, which says nothing: masks come from the lengths.
        prompt_lengths: prompt tokens per row.
        lengths: prompt and completion tokens per row, a stop id at the end of the completion included.
        logprobs: at index t that of tokens[t] under the distribution it was drawn from (see `sample_tokens`); 0 outside
            the completion.
        ends: END_EOS or END_LENGTH. A stop id that is the last token allowed counts as END_EOS.
        steps: decode steps that were run. The prefill yields the first token, so max_completion tokens take one fewer.
    """

    tokens: Int[Array, "B S"]
    prompt_lengths: Int[Array, " B"]
    lengths: Int[Array, " B"]
    logprobs: Float[Array, "B S"]
    ends: Int8[Array, " B"]
    steps: Int[Array, ""]


class _State(struct.PyTreeNode):
    token: Int[Array, " B"]  # the last token of each row, which sits at index lengths - 1
    lengths: Int[Array, " B"]
    stopped: Bool[Array, " B"]
    tokens: Int[Array, "B M"]  # in the order they were drawn
    logprobs: Float[Array, "B M"]
    draws: Int[Array, ""]
    cache: Cache


def rollout(
    model_config: ModelConfig,
    params: Params,
    prompts_PT: Int[Array | np.ndarray, "P T"],
    prompt_lengths_P: Int[Array | np.ndarray, " P"],
    keys_B: Key[Array, " B"],
    *,
    max_completion: int,
    sampler: SamplerConfig,
    stop_ids: tuple[int, ...],
    samples_per_prompt: int = 1,
    mesh: Mesh | None = None,
) -> Rollout:
    """Samples completions until every row has drawn a stop id or `max_completion` tokens.

    Compiles once for each combination of shapes, config, sampler, stop ids and mesh. It may be called under jit.

    Args:
        model_config: shape of the decoder.
        params: its parameters.
        prompts_PT: token ids, right padded; what stands beyond a prompt's length is ignored.
        prompt_lengths_P: tokens of each prompt, from 1 to T.
        keys_B: `row_keys`, one a row; B = P x samples_per_prompt, and row r continues prompt r // samples_per_prompt.
        max_completion: most tokens drawn for a row, its stop id included.
        sampler: the distribution to draw from.
        stop_ids: each ends its row; with none, every row is max_completion tokens long.
        samples_per_prompt: rows that continue one prompt, which is prefilled once for all of them.
        mesh: shards the rows over data and fsdp; None leaves placement to jax.

    Raises:
        ValueError: shapes that do not belong together, a stop id outside the vocabulary, rows that the mesh cannot split
            evenly, or a prompt length outside 1..T. Lengths are checked where they come as a NumPy array: reading a
            device's would wait for the device.
    """
    _check(model_config, prompts_PT, prompt_lengths_P, keys_B, max_completion, stop_ids, samples_per_prompt)
    row_shards = 1 if mesh is None else MeshShape(**mesh.shape).row_shards
    if keys_B.shape[0] % row_shards:
        raise ValueError(
            f"{keys_B.shape[0]} rows cannot be split evenly over the mesh's {row_shards} row shards (data x fsdp): give "
            "a multiple of that many rows, or make the mesh smaller."
        )
    if prompts_PT.shape[0] % row_shards:
        # Too few prompts to go round: each is prefilled once for every row, since rows do split evenly.
        prompts_PT = jnp.repeat(jnp.asarray(prompts_PT), samples_per_prompt, axis=0)
        prompt_lengths_P = jnp.repeat(jnp.asarray(prompt_lengths_P), samples_per_prompt)
        samples_per_prompt = 1
    return _rollout(
        model_config,
        params,
        jnp.asarray(prompts_PT, jnp.int32),
        jnp.asarray(prompt_lengths_P, jnp.int32),
        keys_B,
        max_completion=max_completion,
        sampler=sampler,
        stop_ids=stop_ids,
        samples_per_prompt=samples_per_prompt,
        mesh=mesh,
    )


def _check(config, prompts_PT, prompt_lengths_P, keys_B, max_completion, stop_ids, samples_per_prompt) -> None:
    if max_completion < 1:
        raise ValueError(f"max_completion={max_completion}: a completion has at least 1 token.")
    if samples_per_prompt < 1:
        raise ValueError(f"samples_per_prompt={samples_per_prompt}: a prompt has at least 1 sample.")
    if bad := [i for i in stop_ids if not 0 <= i < config.vocab_size]:
        raise ValueError(
            f"stop_ids={stop_ids}: {bad} can never be drawn, the vocabulary is 0..{config.vocab_size - 1}; take the ids "
            "from the tokenizer that the model was trained with."
        )
    if prompts_PT.ndim != 2 or prompts_PT.shape[1] < 1:
        raise ValueError(f"prompts have shape {prompts_PT.shape}: they must be [P, T] with T at least 1.")
    prompts, length = prompts_PT.shape
    if prompt_lengths_P.shape != (prompts,):
        raise ValueError(f"prompt_lengths have shape {prompt_lengths_P.shape}: there are {prompts} prompts.")
    if keys_B.shape != (prompts * samples_per_prompt,):
        raise ValueError(
            f"keys have shape {keys_B.shape}: {prompts} prompts x samples_per_prompt={samples_per_prompt} take "
            f"({prompts * samples_per_prompt},), one typed key a row (see row_keys)."
        )
    host_lengths = prompt_lengths_P.tolist() if isinstance(prompt_lengths_P, np.ndarray) else []
    if bad := sorted({n for n in host_lengths if not 1 <= n <= length}):
        raise ValueError(f"prompt lengths {bad}: each must be from 1 to {length}, the width of the prompts.")


@partial(
    jax.jit,
    static_argnames=("config", "max_completion", "sampler", "stop_ids", "samples_per_prompt", "mesh"),
)
def _rollout(
    config, params, prompts_PT, prompt_lengths_P, keys_B, *, max_completion, sampler, stop_ids, samples_per_prompt, mesh
) -> Rollout:
    layers = unstack_layers(params)
    prompts, width = prompts_PT.shape
    prompts_PT = constrain(prompts_PT, mesh, ("rows", None))
    # The last token of the longest row is never fed back, so it needs no slot.
    slots = width + max_completion - 1
    if platform_of(mesh) != "cpu":
        # Kernels read whole blocks of slots, and those of a TPU take no part of one.
        slots = -(-slots // SLOT_BLOCK) * SLOT_BLOCK
    cache = init_cache(config, prompts, slots, config.compute_dtype)
    hidden_PD, cache = prefill(config, params, prompts_PT, prompt_lengths_P, cache, mesh)

    prompts_BT, prompt_lengths_B, hidden_BD, cache = jax.tree.map(
        lambda x: _rows(jnp.repeat(x, samples_per_prompt, axis=0), mesh),
        (prompts_PT, prompt_lengths_P, hidden_PD, cache),
    )

    def extend(state: _State, hidden_BD: Float[Array, "B D"]) -> _State:
        """Draws each row's next token from the hidden state of its last one; rows that have stopped stay as they are."""
        # Inside the loop, so that a tied embedding's transpose becomes part of the product and not a copy of the table.
        kernel_DV = unembedding(config, params).astype(hidden_BD.dtype)
        logits_BV = jnp.einsum("BD,DV->BV", hidden_BD, kernel_DV, preferred_element_type=jnp.float32)
        drawn_B, logprobs_B = sample_tokens(logits_BV, position_keys(keys_B, state.lengths), sampler)
        live_B = ~state.stopped
        token_B = jnp.where(live_B, drawn_B, state.token)
        return state.replace(
            token=token_B,
            lengths=state.lengths + live_B,
            stopped=state.stopped | _is_stop(token_B, stop_ids),
            tokens=jax.lax.dynamic_update_slice(state.tokens, token_B[:, None], (0, state.draws)),
            logprobs=jax.lax.dynamic_update_slice(state.logprobs, logprobs_B[:, None], (0, state.draws)),
            draws=state.draws + 1,
        )

    def step(state: _State) -> _State:
        # A stopped row feeds its last token to its last slot again and again, which writes what is there already.
        hidden_BD, cache = decode_step(config, params, layers, state.token, state.lengths - 1, state.cache, mesh)
        return extend(state.replace(cache=cache), hidden_BD)

    def unfinished(state: _State) -> Bool[Array, ""]:
        return (state.draws < max_completion) & ~jnp.all(state.stopped)

    rows = prompts * samples_per_prompt
    start = _State(
        token=jnp.zeros(rows, jnp.int32),
        lengths=prompt_lengths_B,
        stopped=jnp.zeros(rows, bool),
        tokens=_rows(jnp.zeros((rows, max_completion), jnp.int32), mesh),
        logprobs=_rows(jnp.zeros((rows, max_completion), jnp.float32), mesh),
        draws=jnp.zeros((), jnp.int32),
        cache=cache,
    )
    end = jax.lax.while_loop(unfinished, step, extend(start, hidden_BD))

    pad = ((0, 0), (0, max_completion))
    tokens_BS, logprobs_BS = _pack(jnp.pad(prompts_BT, pad), prompt_lengths_B, end)
    return Rollout(
        tokens=tokens_BS,
        prompt_lengths=prompt_lengths_B,
        lengths=end.lengths,
        logprobs=logprobs_BS,
        ends=jnp.where(end.stopped, END_EOS, END_LENGTH).astype(jnp.int8),
        steps=end.draws - 1,
    )


def _rows(x: Array, mesh: Mesh | None) -> Array:
    return constrain(x, mesh, ("rows", *[None] * (x.ndim - 1)))


def _is_stop(tokens_B: Int[Array, " B"], stop_ids: tuple[int, ...]) -> Bool[Array, " B"]:
    return jnp.any(tokens_B[:, None] == jnp.asarray(stop_ids, jnp.int32), axis=-1)


def _pack(
    prompts_BS: Int[Array, "B S"], prompt_lengths_B: Int[Array, " B"], end: _State
) -> tuple[Int[Array, "B S"], Float[Array, "B S"]]:
    """Moves the n-th token drawn for a row to index prompt_length + n of that row; zeros elsewhere."""
    index_S = jnp.arange(prompts_BS.shape[1])
    starts_B1, ends_B1 = prompt_lengths_B[:, None], end.lengths[:, None]
    nth_BS = jnp.clip(index_S - starts_B1, 0, end.tokens.shape[1] - 1)
    completion_BS = (starts_B1 <= index_S) & (index_S < ends_B1)
    tokens_BS = jnp.where(completion_BS, jnp.take_along_axis(end.tokens, nth_BS, axis=1), 0)
    logprobs_BS = jnp.where(completion_BS, jnp.take_along_axis(end.logprobs, nth_BS, axis=1), 0.0)
    return jnp.where(index_S < starts_B1, prompts_BS, tokens_BS), logprobs_BS
