"""Rollouts of tiny models: what a row's tokens may depend on, how rows end, and whose log-probs are returned."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.generation import END_EOS, END_LENGTH, SamplerConfig, position_keys, rollout, row_keys, sample_tokens
from grpo_jax.model import GQAConfig, MLAConfig, ModelConfig, abstract_params, hidden_states, param_axes, unembedding
from grpo_jax.parallel import MeshShape, make_mesh, shard_tree
from tests.oracles.sampling import distribution

VOCAB = 16
SIZES = {"vocab_size": VOCAB, "num_layers": 2, "embed_dim": 16, "mlp_dim": 32}
MLA = ModelConfig(**SIZES, mla=MLAConfig(num_heads=2, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8))
GQA = ModelConfig(**SIZES | {"num_layers": 1}, gqa=GQAConfig(num_heads=2, num_kv_heads=1, head_dim=8), tie_embeddings=False)
BFLOAT16 = dataclasses.replace(MLA, num_layers=1, compute_dtype="bfloat16")
STOPS = (3, 7)
PAD = STOPS[0]
WIDTH, COMPLETION = 6, 24
FILTERS = {"temperature": 0.8, "top_k": 9, "top_p": 0.95, "min_p": 0.01}
SEED = 6  # one whose rows end in all the ways that the tests look for


@cache
def _params(config):
    """Random weights, wide enough that logits differ by several nats."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape) / 2, leaf.dtype), abstract_params(config))


def _prompts():
    """Eight prompts of 1 to 6 tokens, padded with a stop id; rows 0 and 1 are alike, row 2 contains stop ids."""
    lengths = np.array([4, 4, 6, 1, 2, 6, 3, 5])
    prompts = np.random.default_rng(0).integers(8, VOCAB, (8, WIDTH))
    prompts[1] = prompts[0]
    prompts[2, 2:4] = STOPS
    return np.where(np.arange(WIDTH) < lengths[:, None], prompts, PAD), lengths


def _sample(config=MLA, rows=slice(None), *, params=None, seed=SEED, step=0, pad=PAD, **options):
    prompts, lengths = _prompts()
    prompts = np.where(np.arange(WIDTH) < lengths[:, None], prompts, pad)
    defaults = {"max_completion": COMPLETION, "sampler": SamplerConfig(), "stop_ids": STOPS}
    keys = row_keys(seed, step, jnp.arange(8))[rows]
    params = _params(config) if params is None else params
    return jax.device_get(rollout(config, params, prompts[rows], lengths[rows], keys, **defaults | options))


@pytest.fixture(scope="module")
def base():
    return _sample()


def _completions(result):
    return [row[p:n].tolist() for row, p, n in zip(result.tokens, result.prompt_lengths, result.lengths, strict=True)]


@partial(jax.jit, static_argnums=0)
def _full_logits(config, params, tokens):
    hidden = hidden_states(config, params, tokens)
    return jnp.dot(hidden, unembedding(config, params).astype(hidden.dtype), preferred_element_type=jnp.float32)


def _expected_logprobs(result, config, **filters):
    """By the float64 oracle, from the logits of one uncached forward over the sampled rows."""
    logits = np.asarray(_full_logits(config, _params(config), result.tokens))
    expected = np.zeros(result.tokens.shape)
    for row, (start, end) in enumerate(zip(result.prompt_lengths, result.lengths, strict=True)):
        for t in range(start, end):
            expected[row, t] = np.log(distribution(logits[row, t - 1], **filters)[result.tokens[row, t]])
    return expected


def test_logprobs_match_full_forward_of_the_sampled_rows(base):
    np.testing.assert_allclose(base.logprobs, _expected_logprobs(base, MLA), atol=1e-5)


def test_the_token_at_index_t_is_drawn_with_the_noise_of_position_t(base):
    """What a speculative decoder relies on: noise at a position can be had without running the positions before it."""
    rows, slots = base.tokens.shape
    logits = _full_logits(MLA, _params(MLA), base.tokens)[:, :-1].reshape(-1, VOCAB)
    keys = position_keys(row_keys(SEED, 0, np.arange(rows).repeat(slots - 1)), np.tile(np.arange(1, slots), rows))
    drawn = np.asarray(jax.jit(sample_tokens, static_argnums=2)(logits, keys, SamplerConfig())[0])
    expected = np.pad(drawn.reshape(rows, slots - 1), ((0, 0), (1, 0)))
    index = np.arange(slots)
    completion = (base.prompt_lengths[:, None] <= index) & (index < base.lengths[:, None])
    np.testing.assert_array_equal(base.tokens[completion], expected[completion])


def _grouped(samples_per_prompt, **options):
    """Two prompts, four rows each, filtered and without stop ids; the prompts repeated, or `samples_per_prompt`."""
    prompts, lengths = (x[[2, 3]].repeat(4 // samples_per_prompt, 0) for x in _prompts())
    defaults = {"max_completion": 5, "sampler": SamplerConfig(**FILTERS), "stop_ids": ()}
    options = defaults | {"params": _params(MLA)} | options
    keys = row_keys(0, 0, jnp.arange(8))
    result = rollout(MLA, options.pop("params"), prompts, lengths, keys, samples_per_prompt=samples_per_prompt, **options)
    return jax.device_get(result)


@pytest.fixture(scope="module")
def grouped():
    return _grouped(samples_per_prompt=4)


def test_samples_of_one_prompt_equal_rows_that_repeat_it(grouped):
    repeated = _grouped(samples_per_prompt=1)
    np.testing.assert_array_equal(grouped.tokens, repeated.tokens)
    np.testing.assert_array_equal(grouped.prompt_lengths, repeated.prompt_lengths)
    np.testing.assert_allclose(grouped.logprobs, repeated.logprobs, atol=1e-5)


def test_prompts_fewer_than_row_shards_draw_the_same_tokens(grouped):
    mesh = make_mesh(MeshShape(data=2, fsdp=4))
    sharded = _grouped(samples_per_prompt=4, params=shard_tree(_params(MLA), mesh, param_axes(MLA)), mesh=mesh)
    np.testing.assert_array_equal(sharded.tokens, grouped.tokens)
    np.testing.assert_allclose(sharded.logprobs, grouped.logprobs, atol=1e-5)


def test_logprobs_include_the_filters(grouped):
    np.testing.assert_allclose(grouped.logprobs, _expected_logprobs(grouped, MLA, **FILTERS), atol=1e-5)


def test_without_stop_ids_every_row_is_as_long_as_it_may_be(grouped):
    np.testing.assert_array_equal(grouped.lengths, grouped.prompt_lengths + 5)
    np.testing.assert_array_equal(grouped.ends, END_LENGTH)
    assert grouped.steps == 4


def test_greedy_is_the_argmax_of_the_full_forward():
    result = _sample(GQA, sampler=SamplerConfig(temperature=0))
    logits = np.asarray(_full_logits(GQA, _params(GQA), result.tokens))
    for row, (start, end) in enumerate(zip(result.prompt_lengths, result.lengths, strict=True)):
        np.testing.assert_array_equal(result.tokens[row, start:end], logits[row, start - 1 : end - 1].argmax(-1))
    np.testing.assert_allclose(result.logprobs, _expected_logprobs(result, GQA), atol=1e-5)


def test_bfloat16_logprobs_are_near_those_of_the_full_forward():
    result = _sample(BFLOAT16)
    assert result.logprobs.dtype == np.float32
    difference = np.abs(result.logprobs - _expected_logprobs(result, BFLOAT16))
    assert difference.max() < 0.5 and difference.mean() < 0.02


def test_a_row_is_prompt_completion_and_zeros(base):
    prompts, lengths = _prompts()
    assert base.tokens.shape == base.logprobs.shape == (8, WIDTH + COMPLETION)
    np.testing.assert_array_equal(base.prompt_lengths, lengths)
    for row in range(8):
        start, end = lengths[row], base.lengths[row]
        assert start < end <= start + COMPLETION
        np.testing.assert_array_equal(base.tokens[row, :start], prompts[row, :start])
        np.testing.assert_array_equal(base.tokens[row, end:], 0)
        np.testing.assert_array_equal(base.logprobs[row, :start], 0)
        np.testing.assert_array_equal(base.logprobs[row, end:], 0)
        assert (base.logprobs[row, start:end] < 0).all()


def test_a_stop_id_ends_its_row_and_belongs_to_it(base):
    completions = _completions(base)
    assert {completion[-1] for completion in completions} == set(STOPS)
    assert not any(token in STOPS for completion in completions for token in completion[:-1])
    assert (base.ends == END_EOS).all() and base.ends.dtype == np.int8


def test_loop_stops_with_the_last_row(base):
    longest = max(map(len, _completions(base)))
    assert 1 < longest < COMPLETION
    assert base.steps == longest - 1


def test_rows_cut_by_the_limit_say_so_and_share_their_prefix_with_longer_ones(base):
    limit = 3
    result = _sample(max_completion=limit)
    completions = _completions(base)
    assert _completions(result) == [completion[:limit] for completion in completions]
    assert {1, limit} < set(map(len, completions)), "rows must stop before, at and after the limit: choose another seed"
    np.testing.assert_array_equal(result.ends, [END_EOS if len(c) <= limit else END_LENGTH for c in completions])
    assert result.steps == limit - 1


def test_same_seed_repeats_bit_for_bit(base):
    jax.tree.map(np.testing.assert_array_equal, _sample(), base)


def test_rows_of_one_prompt_differ_and_so_do_steps_and_seeds(base):
    completions = _completions(base)
    assert completions[0] != completions[1]
    assert _completions(_sample(step=1)) != completions
    assert _completions(_sample(seed=SEED + 1)) != completions


def test_new_prompts_keys_and_parameters_do_not_recompile(base):
    compiled = []

    def listener(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    prompts, lengths = _prompts()
    options = {"max_completion": COMPLETION, "sampler": SamplerConfig(), "stop_ids": STOPS}
    keys = [row_keys(0, step, jnp.arange(8)) for step in range(3)]
    halved = jax.tree.map(lambda x: x * 0.5, _params(MLA))
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        jax.jit(lambda x: x + 1)(1.0)
        assert len(compiled) == 1, "the listener does not see compilations"
        for key, params, shift in zip(keys, (_params(MLA), halved, halved), (0, 1, 2), strict=True):
            rollout(MLA, params, np.roll(prompts, shift, 0), np.roll(lengths, shift), key, **options)
        assert len(compiled) == 1
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_a_row_alone_draws_the_tokens_it_draws_in_a_batch(base):
    """So what the batch goes on drawing after a row has stopped does not change that row."""
    completions = _completions(base)
    shortest = int(np.argmin([*map(len, completions)]))
    for row in (shortest, 2, 7):
        alone = _sample(rows=slice(row, row + 1))
        assert _completions(alone) == [completions[row]]
        assert alone.steps == len(completions[row]) - 1
        np.testing.assert_allclose(alone.logprobs[0], base.logprobs[row], atol=1e-5)


def test_order_and_padding_of_rows_change_nothing(base):
    order = np.array([5, 0, 7, 3, 1, 6, 2, 4])
    shuffled = _sample(rows=order, pad=11)
    np.testing.assert_array_equal(shuffled.tokens, base.tokens[order])
    np.testing.assert_allclose(shuffled.logprobs, base.logprobs[order], atol=1e-6)


def test_sharded_rollout_draws_the_same_tokens(base):
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    result = _sample(params=shard_tree(_params(MLA), mesh, param_axes(MLA)), mesh=mesh)
    np.testing.assert_array_equal(result.tokens, base.tokens)
    np.testing.assert_array_equal(result.ends, base.ends)
    np.testing.assert_allclose(result.logprobs, base.logprobs, atol=1e-5)
    assert result.steps == base.steps


def test_rollout_traces_under_jit():
    prompts, lengths = _prompts()

    def call(params, prompts, lengths, step):
        keys = row_keys(0, step, jnp.arange(8))
        return rollout(
            MLA, params, prompts, lengths, keys, max_completion=4, sampler=SamplerConfig(**FILTERS), stop_ids=STOPS
        )

    shapes = jax.eval_shape(jax.jit(call), _params(MLA), prompts, lengths, jnp.int32(0))
    assert shapes.tokens.shape == (8, WIDTH + 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_completion": 0}, "max_completion=0"),
        ({"samples_per_prompt": 0}, "samples_per_prompt=0"),
        ({"samples_per_prompt": 2}, r"8 prompts x samples_per_prompt=2 take \(16,\)"),
        ({"stop_ids": (3, VOCAB)}, r"\[16\] can never be drawn"),
        ({"prompts": np.zeros((8, 6, 1), np.int32)}, r"\[P, T\]"),
        ({"lengths": np.ones(7, np.int32)}, "there are 8 prompts"),
        ({"mesh": MeshShape(data=3)}, "8 rows cannot be split evenly over the mesh's 3 row shards"),
        ({"lengths": np.array([0, 1, 2, 3, 4, 5, 6, 7])}, r"prompt lengths \[0, 7\]: each must be from 1 to 6"),
    ],
    ids=str,
)
def test_impossible_calls_are_refused_by_name(change, message):
    prompts, lengths = _prompts()
    options = {"max_completion": 4, "sampler": SamplerConfig(), "stop_ids": STOPS} | change
    prompts, lengths = options.pop("prompts", prompts), options.pop("lengths", lengths)
    if shape := options.pop("mesh", None):
        options["mesh"] = make_mesh(shape)
    with pytest.raises(ValueError, match=message):
        rollout(MLA, _params(MLA), prompts, lengths, row_keys(0, 0, jnp.arange(8)), **options)
