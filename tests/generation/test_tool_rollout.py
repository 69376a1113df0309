"""Rollouts in turns: what ends a turn, what a row's tokens may depend on, whose log-probs are returned, hostile outputs."""

import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.generation import END_EOS, END_LENGTH, SamplerConfig, rollout, rollout_with_tool, row_keys
from grpo_jax.model import MLAConfig, ModelConfig, abstract_params, param_axes
from grpo_jax.parallel import MeshShape, make_mesh, shard_tree
from grpo_jax.training.optimizer import OptimizerConfig
from grpo_jax.training.state import StepConfig
from grpo_jax.training.steps import score

VOCAB = 16
MODEL = ModelConfig(
    vocab_size=VOCAB,
    num_layers=1,
    embed_dim=16,
    mlp_dim=32,
    mla=MLAConfig(num_heads=2, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8),
)
EOS, CALLS = 3, (7, 8, 9, 10)
CALL = CALLS[0]
ROWS, WIDTH, TURNS, TURN, OUTPUT = 8, 6, 3, 8, 3
SEED = 1  # one whose rows end in all the ways that the tests look for


@cache
def _params():
    """Random weights, wide enough that logits differ by several nats."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape) / 2, leaf.dtype), abstract_params(MODEL))


def _prompts():
    lengths = np.array([4, 4, 6, 1, 2, 6, 3, 5])
    prompts = np.random.default_rng(0).integers(8, VOCAB, (ROWS, WIDTH))
    prompts[1] = prompts[0]
    return np.where(np.arange(WIDTH) < lengths[:, None], prompts, EOS), lengths


def _echo(turns):
    """An output that its turn decides: its length modulo the vocabulary, then its first token; sometimes nothing."""
    return [[] if len(turn) % 4 == 0 else [len(turn) % VOCAB, turn[0]] for turn in turns]


def _sample(rows=slice(None), *, params=None, seed=SEED, **options):
    prompts, lengths = _prompts()
    defaults = {"call": _echo, "call_ids": CALLS, "max_turns": TURNS, "max_turn_tokens": TURN, "max_output_tokens": OUTPUT}
    defaults |= {"sampler": SamplerConfig(), "stop_ids": (EOS,)}
    keys = row_keys(seed, 0, jnp.arange(ROWS))[rows]
    params = _params() if params is None else params
    return rollout_with_tool(MODEL, params, prompts[rows], lengths[rows], keys, **defaults | options)


@pytest.fixture(scope="module")
def base():
    return _sample()


def _parts(result, row):
    """The runs of a row behind its prompt: (whether a tool wrote it, its ids)."""
    parts = []
    for t in range(result.prompt_lengths[row], result.lengths[row]):
        tool, token = bool(result.tool_mask[row, t]), int(result.tokens[row, t])
        if not parts or parts[-1][0] != tool:
            parts.append((tool, []))
        parts[-1][1].append(token)
    return parts


def _turns(result, row, output=_echo):
    """The turns of a row, told apart as a reader of the documentation would; checks what stands between them."""
    ids = result.tokens[row, result.prompt_lengths[row] : result.lengths[row]].tolist()
    tool = result.tool_mask[row, result.prompt_lengths[row] : result.lengths[row]].tolist()
    turns, at = [], 0
    for number in range(TURNS):
        stop = at
        while stop < len(ids) and stop - at < TURN and (stop == at or ids[stop - 1] not in (EOS, *CALLS)):
            stop += 1
        turns.append(ids[at:stop])
        assert not any(tool[at:stop])
        if ids[stop - 1] not in CALLS or number == TURNS - 1:
            break
        written = output([turns[-1]])[0][:OUTPUT]
        assert ids[stop : stop + len(written)] == written
        assert all(tool[stop : stop + len(written)])
        at = stop + len(written)
    assert stop == len(ids)
    return turns


def test_turns_and_outputs_follow_each_other_and_ends_say_how_the_last_turn_ended(base):
    assert base.tokens.shape == (ROWS, WIDTH + TURNS * TURN + (TURNS - 1) * OUTPUT)
    prompts, lengths = _prompts()
    ways = set()
    for row in range(ROWS):
        np.testing.assert_array_equal(base.tokens[row, : lengths[row]], prompts[row, : lengths[row]])
        turns = _turns(base, row)
        assert base.calls[row] == len(turns) - 1
        assert base.ends[row] == (END_EOS if turns[-1][-1] == EOS else END_LENGTH)
        ways.add("eos" if turns[-1][-1] == EOS else "call" if turns[-1][-1] in CALLS else "length")
        if any(len(turn) % 4 == 0 for turn in turns[:-1]):
            ways.add("empty output")
        if any(len(turn) == TURN for turn in turns[:-1]):
            ways.add("call by the last token")
    assert set(base.calls.tolist()) == set(range(TURNS))
    expected = {"eos", "call", "length", "empty output", "call by the last token"}
    assert ways == expected, "choose another seed"


def test_what_is_neither_turn_nor_output_is_zero(base):
    index = np.arange(base.tokens.shape[1])
    past = index >= base.lengths[:, None]
    inside = (index >= base.prompt_lengths[:, None]) & ~past
    assert not base.tokens[past].any()
    assert not base.tool_mask[~inside].any() and base.tool_mask.any()
    drawn = inside & ~base.tool_mask
    assert (base.logprobs[drawn] < 0).all() and not base.logprobs[~drawn].any()
    assert base.ends.dtype == np.int8 and base.tool_mask.dtype == bool and base.tokens.dtype == np.int32


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_full_forward_at_the_tokens_that_were_drawn(temperature):
    result = _sample(sampler=SamplerConfig(temperature=temperature))
    config = StepConfig(model=MODEL, optimizer=OptimizerConfig(), temperature=temperature)
    expected = np.asarray(score(config, _params(), jnp.asarray(result.tokens)))
    index = np.arange(result.tokens.shape[1])
    drawn = (index >= result.prompt_lengths[:, None]) & (index < result.lengths[:, None]) & ~result.tool_mask
    assert result.calls.sum() > 3
    np.testing.assert_allclose(result.logprobs[drawn], expected[drawn], atol=1e-5)


def test_order_and_number_of_rows_change_nothing(base):
    order = np.array([5, 0, 7, 3, 1, 6, 2, 4])
    shuffled = _sample(order)
    for name in ("tokens", "lengths", "ends", "tool_mask", "calls"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(base, name)[order], err_msg=name)
    np.testing.assert_allclose(shuffled.logprobs, base.logprobs[order], atol=1e-5)
    few = np.array([int(np.argmax(base.calls)), int(np.argmin(base.calls))])
    alone = _sample(few)
    np.testing.assert_array_equal(alone.tokens, base.tokens[few])
    np.testing.assert_array_equal(alone.tool_mask, base.tool_mask[few])
    np.testing.assert_allclose(alone.logprobs, base.logprobs[few], atol=1e-5)


def test_a_continued_turn_is_drawn_as_if_all_before_it_were_the_prompt(base):
    row = ROWS - 1 - int(np.argmax(base.calls[::-1]))
    start = base.prompt_lengths[row] + len(_turns(base, row)[0])
    while base.tool_mask[row, start]:
        start += 1
    again = rollout(
        MODEL,
        _params(),
        base.tokens[row : row + 1, :start],
        np.array([start]),
        row_keys(SEED, 0, jnp.arange(ROWS))[row : row + 1],
        max_completion=TURN,
        sampler=SamplerConfig(),
        stop_ids=(EOS, *CALLS),
    )
    second = _turns(base, row)[1]
    np.testing.assert_array_equal(again.tokens[0, start : start + len(second)], second)


def test_samples_of_one_prompt_equal_rows_that_repeat_it(base):
    prompts, lengths = _prompts()
    options = {"call": _echo, "call_ids": CALLS, "max_turns": TURNS, "max_turn_tokens": TURN, "max_output_tokens": OUTPUT}
    options |= {"sampler": SamplerConfig(), "stop_ids": (EOS,)}
    keys = row_keys(SEED, 0, jnp.arange(ROWS))
    of_four = rollout_with_tool(MODEL, _params(), prompts[[2, 5]], lengths[[2, 5]], keys, samples_per_prompt=4, **options)
    which = np.array([2, 5]).repeat(4)
    repeated = rollout_with_tool(MODEL, _params(), prompts[which], lengths[which], keys, **options)
    for name in ("tokens", "prompt_lengths", "lengths", "ends", "tool_mask", "calls"):
        np.testing.assert_array_equal(getattr(of_four, name), getattr(repeated, name), err_msg=name)


def test_sharded_rows_draw_the_same_tokens(base):
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    result = _sample(params=shard_tree(_params(), mesh, param_axes(MODEL)), mesh=mesh)
    for name in ("tokens", "lengths", "ends", "tool_mask", "calls"):
        np.testing.assert_array_equal(getattr(result, name), getattr(base, name), err_msg=name)
    np.testing.assert_allclose(result.logprobs, base.logprobs, atol=1e-5)


def test_other_rows_keys_and_outputs_do_not_recompile(base):
    compiled = []

    def listener(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    keys = [row_keys(seed, 0, jnp.arange(ROWS)) for seed in (11, 12)]
    prompts, lengths = _prompts()
    options = {"call_ids": CALLS, "max_turns": TURNS, "max_turn_tokens": TURN, "max_output_tokens": OUTPUT}
    options |= {"sampler": SamplerConfig(), "stop_ids": (EOS,)}
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        jax.jit(lambda x: x + 1)(1.0)
        assert len(compiled) == 1, "the listener does not see compilations"
        for shift, key in enumerate(keys):
            moved = np.roll(prompts, shift + 1, 0), np.roll(lengths, shift + 1)
            result = rollout_with_tool(
                MODEL, _params(), *moved, key, call=lambda turns: [[len(turn)] * 2 for turn in turns], **options
            )
            assert result.calls.max() == TURNS - 1, "choose another seed"
        assert len(compiled) == 1
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


@pytest.mark.parametrize("seed", [0, 28])  # in which rows that have ended would go on for longer than the live ones
def test_a_turn_does_not_wait_for_rows_that_have_ended(seed):
    """Each turn takes one decode step fewer than its longest live row has tokens."""
    result = _sample(seed=seed)
    turns = [_turns(result, row) for row in range(ROWS)]
    longest = [max(len(of_row[n]) for of_row in turns if len(of_row) > n) for n in range(TURNS)]
    assert result.steps == sum(n - 1 for n in longest)


@pytest.mark.parametrize("written", [[EOS], [CALL], [EOS, CALL, EOS], [CALL, EOS], [0]], ids=str)
def test_ids_in_an_output_end_nothing(written):
    result = _sample(call=lambda turns: [written] * len(turns))
    assert result.calls.max() == TURNS - 1
    for row in range(ROWS):
        _turns(result, row, lambda turns: [written])
    assert result.tool_mask.sum() == result.calls.sum() * len(written)


def test_an_output_is_cut_and_its_rest_is_gone(base):
    long = _sample(call=lambda turns: [[9, 10, 11, 12, 13]] * len(turns))
    cut = _sample(call=lambda turns: [[9, 10, 11]] * len(turns))
    jax.tree.map(np.testing.assert_array_equal, long, cut)
    assert long.tool_mask.sum() == long.calls.sum() * OUTPUT


def test_the_tool_sees_the_turns_that_call_in_the_order_of_their_rows(base):
    seen = []

    def call(turns):
        seen.append([list(turn) for turn in turns])
        return _echo(turns)

    _sample(call=call)
    turns = [_turns(base, row) for row in range(ROWS)]
    expected = [[of_row[n] for of_row in turns if len(of_row) > n + 1] for n in range(TURNS - 1)]
    assert seen == expected
    assert all(turn[-1] in CALLS for turns_of_one in seen for turn in turns_of_one)


def test_one_turn_is_a_rollout_and_calls_nothing():
    result = _sample(call=lambda turns: pytest.fail("called"), max_turns=1)
    prompts, lengths = _prompts()
    plain = rollout(
        MODEL,
        _params(),
        prompts,
        lengths,
        row_keys(SEED, 0, jnp.arange(ROWS)),
        max_completion=TURN,
        sampler=SamplerConfig(),
        stop_ids=(EOS, *CALLS),
    )
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    np.testing.assert_array_equal(result.logprobs, plain.logprobs)
    assert not result.calls.any() and not result.tool_mask.any()
    last = result.tokens[np.arange(ROWS), result.lengths - 1]
    assert np.isin(last, CALLS).any()
    np.testing.assert_array_equal(result.ends == END_EOS, last == EOS)


def test_outputs_fill_the_whole_width_where_every_turn_calls_by_its_last_token():
    """All turns and outputs as long as they may be, behind the longest prompt: the row ends with its array."""
    result = _sample(
        call=lambda turns: [[1] * OUTPUT] * len(turns),
        call_ids=tuple(i for i in range(VOCAB) if i != EOS),
        max_turn_tokens=1,
    )
    full = (result.calls == TURNS - 1) & (result.prompt_lengths == WIDTH)
    assert full.any()
    np.testing.assert_array_equal(result.lengths[full], result.tokens.shape[1])


def _raise(turns):
    raise OSError("no room")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (_raise, RuntimeError, "call raised OSError on .* turns.* no room"),
        (lambda turns: _echo(turns)[1:], ValueError, "call returned .* outputs, but it must return one for each"),
        (lambda turns: [*_echo(turns), [1]], ValueError, "call returned .* outputs, but it must return one for each"),
        (lambda turns: [[VOCAB]] * len(turns), ValueError, r"call returned \[16\] for the turn \[.*0\.\.15"),
        (lambda turns: [[-1]] * len(turns), ValueError, r"call returned \[-1\]"),
        (lambda turns: ["12"] * len(turns), ValueError, "call returned '12'"),
        (lambda turns: [None] * len(turns), ValueError, "call returned None"),
        (lambda turns: [[1.5]] * len(turns), ValueError, r"call returned \[1.5\]"),
        (lambda turns: [[0] * 10 + [VOCAB]] * len(turns), ValueError, "ids of the vocabulary"),  # beyond the cut
        (lambda turns: None, RuntimeError, "call raised TypeError"),
    ],
)
def test_a_tool_that_fails_is_one_error(call, error, message):
    with pytest.raises(error, match=message):
        _sample(call=call)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_turns": 0}, "max_turns is 0"),
        ({"max_turns": True}, "max_turns is True"),
        ({"max_turn_tokens": 0}, "max_turn_tokens is 0"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"call_ids": ()}, "call_ids is empty"),
        ({"call_ids": (VOCAB,)}, r"\[16\] are not"),
        ({"call_ids": (EOS, CALL)}, r"call_ids has \[3\]"),
        ({"stop_ids": (VOCAB,)}, r"\[16\] can never be drawn"),
        ({"samples_per_prompt": 2}, "8 prompts x samples_per_prompt=2"),
    ],
    ids=str,
)
def test_impossible_calls_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        _sample(**change)


def test_numpy_integers_are_ids(base):
    result = _sample(call=lambda turns: [np.array(output, np.int64) for output in _echo(turns)])
    jax.tree.map(np.testing.assert_array_equal, result, base)


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    exec(compile(example, "docs/tools.md", "exec"), {})
