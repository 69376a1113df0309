"""Rollouts in turns: the policy may end a turn by calling a tool, whose output is put behind the call before it goes on.

A row is [prompt, turn, output, turn, output, …, turn, unused]. All turns are draws of `rollout`, each with everything that
stands before it as its prompt. A turn's width depends on nothing but its number, so that each turn compiles once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Int8, Key

from grpo_jax.generation.rollout import END_EOS, END_LENGTH, Rollout, rollout
from grpo_jax.generation.sampling import SamplerConfig
from grpo_jax.model import ModelConfig
from grpo_jax.parallel import from_first, to_host, together
from grpo_jax.types import Params

type ToolCall = Callable[[list[list[int]]], Sequence[Sequence[int]]]
"""Ids of turns, each with the call id at its end, to the ids of their outputs in the same order."""


class ToolRollout(struct.PyTreeNode):
    """What was sampled, as NumPy arrays. S = T + max_turns x max_turn_tokens + (max_turns - 1) x max_output_tokens.

    Attributes:
        tokens: [prompt, turn, output, turn, …, unused] per row; unused is 0, which says nothing.
        prompt_lengths: prompt tokens per row.
        lengths: tokens per row, prompt, turns and outputs together.
        logprobs: at index t that of tokens[t] under the distribution it was drawn from; 0 at tokens that were not drawn.
        ends: END_EOS, or END_LENGTH for a turn that was cut off and for a call in the last turn.
        tool_mask: True at the tokens of outputs: `GRPOBatch.tool_mask`.
        calls: calls per row that were answered.
        steps: decode steps that were run, in all turns together.
    """

    tokens: Int[np.ndarray, "B S"]
    prompt_lengths: Int[np.ndarray, " B"]
    lengths: Int[np.ndarray, " B"]
    logprobs: Float[np.ndarray, "B S"]
    ends: Int8[np.ndarray, " B"]
    tool_mask: Bool[np.ndarray, "B S"]
    calls: Int[np.ndarray, " B"]
    steps: int


def rollout_with_tool(
    model_config: ModelConfig,
    params: Params,
    prompts_PT: Int[Array | np.ndarray, "P T"],
    prompt_lengths_P: Int[Array | np.ndarray, " P"],
    keys_B: Key[Array, " B"],
    *,
    call: ToolCall,
    call_ids: tuple[int, ...],
    max_turns: int,
    max_turn_tokens: int,
    max_output_tokens: int,
    sampler: SamplerConfig,
    stop_ids: tuple[int, ...],
    samples_per_prompt: int = 1,
    mesh: Mesh | None = None,
) -> ToolRollout:
    """Samples rows turn by turn. A turn that ends by an id of `call_ids` is a call; any other ends its row.

    Only ids that the policy draws end anything: outputs may hold ids of `call_ids` and `stop_ids`.

    Each turn prefills its rows anew, and all rows take part in it for their shape's sake: rows that have ended decode what a
    live row decodes, so that no turn waits for them, and a turn without a live row is not run.

    Args:
        model_config: as in `rollout`, like all arguments that are not named here.
        params: the decoder's parameters.
        prompts_PT: token ids, right padded.
        prompt_lengths_P: tokens of each prompt.
        keys_B: `row_keys`. A token is drawn with the noise of its row's key and its position, in whichever turn.
        call: the tool, on the host: gets the turns that called it, in the order of their rows, and gives as many outputs.
            It tells the policy of failures by their output. On a pod every host calls it, and the first one's outputs count.
        call_ids: each ends its turn by a call.
        max_turns: most turns of a row. A call in the last is not answered, since nobody would read the output: it ends the
            row by END_LENGTH. 1 is a rollout without a tool.
        max_turn_tokens: most tokens drawn in a turn, the id that ends it included.
        max_output_tokens: outputs are cut to this many tokens.
        sampler: the distribution to draw from.
        stop_ids: each ends its row.
        samples_per_prompt: rows that continue one prompt.
        mesh: shards the rows over data and fsdp.

    Raises:
        ValueError: an argument breaks a rule, or `call` returned anything but a list of ids of the vocabulary for each turn.
        RuntimeError: `call` raised.
    """
    for name, value in (
        ("max_turns", max_turns),
        ("max_turn_tokens", max_turn_tokens),
        ("max_output_tokens", max_output_tokens),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, but it must be a whole number of at least 1")
    _check_call_ids(call_ids, stop_ids, model_config.vocab_size)

    lengths_P = np.asarray(prompt_lengths_P, np.int32)
    first = prompts_PT.shape[1]
    rows, width = keys_B.shape[0], first + max_turns * max_turn_tokens + (max_turns - 1) * max_output_tokens
    index_S = np.arange(width)
    tokens_BS = np.zeros((rows, width), np.int32)
    logprobs_BS = np.zeros((rows, width), np.float32)
    tool_BS = np.zeros((rows, width), bool)
    ends_B = np.full(rows, END_LENGTH, np.int8)
    calls_B = np.zeros(rows, np.int32)
    prompt_lengths_B = lengths_B = np.zeros(rows, np.int32)  # known once the first turn has checked the prompts
    live_B = np.ones(rows, bool)
    steps = 0

    for turn in range(max_turns):
        if turn == 0:
            inputs = prompts_PT, lengths_P, keys_B
        else:
            # Rows that have ended are copies of a live one, with its key: they end where it ends.
            source_B = np.where(live_B, np.arange(rows), np.argmax(live_B))
            before = first + turn * (max_turn_tokens + max_output_tokens)
            inputs = tokens_BS[source_B, :before], lengths_B[source_B], keys_B[source_B]
        drawn: Rollout = to_host(
            rollout(
                model_config,
                params,
                *inputs,
                max_completion=max_turn_tokens,
                sampler=sampler,
                stop_ids=(*stop_ids, *call_ids),
                samples_per_prompt=samples_per_prompt if turn == 0 else 1,
                mesh=mesh,
            )
        )
        steps += int(drawn.steps)
        if turn == 0:
            prompt_lengths_B = lengths_B = np.asarray(drawn.prompt_lengths)
            tokens_BS[:, :first] = drawn.tokens[:, :first]
        starts_B, lengths_B = lengths_B, np.where(live_B, drawn.lengths, lengths_B)
        turn_BS = (starts_B[:, None] <= index_S) & (index_S < lengths_B[:, None])
        filled = drawn.tokens.shape[1]
        tokens_BS[:, :filled] = np.where(turn_BS[:, :filled], drawn.tokens, tokens_BS[:, :filled])
        logprobs_BS[:, :filled] = np.where(turn_BS[:, :filled], drawn.logprobs, logprobs_BS[:, :filled])

        stopped_B = live_B & (drawn.ends == END_EOS)
        called_B = stopped_B & np.isin(tokens_BS[np.arange(rows), lengths_B - 1], call_ids)
        ends_B[stopped_B & ~called_B] = END_EOS
        live_B = called_B
        calling = np.flatnonzero(live_B)
        if not calling.size or turn == max_turns - 1:
            break
        turns = [tokens_BS[row, starts_B[row] : lengths_B[row]].tolist() for row in calling]
        # On a pod a tool may fail on one host alone, and a time limit may pass on one alone.
        with together():
            outputs = _outputs(call, turns, model_config.vocab_size)
        for row, output in zip(calling, from_first(outputs), strict=True):
            start, stop = lengths_B[row], lengths_B[row] + min(len(output), max_output_tokens)
            tokens_BS[row, start:stop] = output[:max_output_tokens]
            tool_BS[row, start:stop] = True
            lengths_B[row] = stop
        calls_B[calling] += 1

    return ToolRollout(
        tokens=tokens_BS,
        prompt_lengths=prompt_lengths_B,
        lengths=lengths_B,
        logprobs=logprobs_BS,
        ends=ends_B,
        tool_mask=tool_BS,
        calls=calls_B,
        steps=steps,
    )


def _check_call_ids(call_ids: tuple[int, ...], stop_ids: tuple[int, ...], vocab_size: int) -> None:
    if not call_ids:
        raise ValueError("call_ids is empty, but it must name at least one id; without a tool, use rollout")
    if bad := [i for i in call_ids if not 0 <= i < vocab_size]:
        raise ValueError(
            f"call_ids is {call_ids}, but they must be ids of the vocabulary, 0..{vocab_size - 1}: {bad} are not"
        )
    if both := sorted(set(call_ids) & set(stop_ids)):
        raise ValueError(f"call_ids has {both}, but it must share no id with stop_ids: an id ends its turn or its row")


def _outputs(call: ToolCall, turns: list[list[int]], vocab_size: int) -> list[list[int]]:
    """What the tool says to these turns, checked."""
    try:
        returned = list(call(turns))
    except Exception as error:
        raise RuntimeError(
            f"call raised {type(error).__name__} on {len(turns)} turns, but it must not raise: what goes wrong in a turn "
            f"belongs in its output. {error}"
        ) from error
    if len(returned) != len(turns):
        raise ValueError(f"call returned {len(returned)} outputs, but it must return one for each of the {len(turns)} turns")
    outputs = []
    for turn, output in zip(turns, returned, strict=True):
        try:
            ids = [operator.index(i) for i in output]
        except TypeError:
            ids = [-1]
        if not all(0 <= i < vocab_size for i in ids):
            raise ValueError(
                f"call returned {output!r:.200} for the turn {turn}, but an output must be a list of ids of the vocabulary, "
                f"0..{vocab_size - 1}; encode text with the tokenizer that the model was trained with"
            )
        outputs.append(ids)
    return outputs
