"""The jitted steps: what must not change the result, what must be exact, and what must not recompile."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from grpo_jax.model import hidden_states, init_params, unembedding
from grpo_jax.objectives import Coefficients, GRPOConfig, PolicyConfig, token_logprobs
from grpo_jax.parallel import MeshShape, make_mesh
from grpo_jax.training.rows import live_first, place_rows
from grpo_jax.training.state import StepConfig, TrainState, abstract_state
from grpo_jax.training.steps import GRPOBatch, grpo_step, score, sft_step


def run(config: StepConfig, batches: list, step=grpo_step) -> tuple[TrainState, dict]:
    state = tiny.state(config)
    for batch in batches:
        state, metrics = step(state, place(batch, config))
    return jax.device_get(state), jax.device_get(metrics)


def assert_same_gradient(one: TrainState, other: TrainState) -> None:
    """Adam's first moment after one step is the gradient times a constant; the update itself, which divides a gradient
    near 0 by its own size, magnifies rounding."""
    leaves = [jax.tree.leaves(optax.tree_utils.tree_get(state.opt_state, "mu")) for state in (one, other)]
    largest = max(np.abs(leaf).max() for leaf in leaves[0])
    assert largest > 0
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * largest)


def assert_same(one: TrainState, other: TrainState, tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def place(batch, config: StepConfig):
    return jax.tree.map(lambda array: place_rows(array, config.mesh), batch)


def take(batch, order):
    return jax.tree.map(lambda x: x[order], batch)


def test_microbatches_change_nothing() -> None:
    config = tiny.step_config()
    batches = [tiny.grpo_batch(config, seed) for seed in range(3)]
    whole, whole_metrics = run(config, batches)
    split, split_metrics = run(tiny.step_config(microbatches=4), batches)
    assert_same(whole, split, 1e-5)
    for name in whole_metrics:
        np.testing.assert_allclose(split_metrics[name], whole_metrics[name], rtol=2e-4, atol=1e-5, err_msg=name)


def test_microbatches_change_nothing_in_sft() -> None:
    batches = [tiny.sft_batch(seed) for seed in range(3)]
    whole, whole_metrics = run(tiny.step_config(), batches, sft_step)
    split, split_metrics = run(tiny.step_config(microbatches=4), batches, sft_step)
    assert_same(whole, split, 1e-5)
    np.testing.assert_allclose(split_metrics["loss"], whole_metrics["loss"], rtol=1e-5)


@pytest.mark.parametrize("model", ["mla", "gqa"])
def test_packing_changes_nothing(model: str) -> None:
    config = tiny.step_config(model, microbatches=4)
    packed, unpacked = tiny.sft_batch(), tiny.unpacked_sft_batch()
    assert packed.completion_mask.any(axis=1).sum() < tiny.ROWS * 0.8
    found, metrics = run(config, [packed], sft_step)
    expected, expected_metrics = run(config, [unpacked], sft_step)
    assert_same_gradient(found, expected)
    np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=1e-6)
    assert metrics["tokens"] == expected_metrics["tokens"]


def test_rows_that_packing_leaves_empty_are_not_computed() -> None:
    """Parameters would be poisoned by an embedding that is NaN; only the empty rows' ids stand for it."""
    config = tiny.step_config("gqa", microbatches=4)
    batch = tiny.sft_batch()
    order = live_first(batch.completion_mask.any(axis=1), 4)
    batch = take(batch, order)
    live = batch.completion_mask.any(axis=1).reshape(-1, 4)
    assert not live.any(axis=0).all()
    tokens = np.where(batch.segments == 0, 31, np.minimum(batch.tokens, 30))
    dead = ~live.any(axis=0)[np.arange(tiny.ROWS) % 4][:, None]
    state = tiny.state(config)
    poisoned = state.params["embed"]["embedding"].at[31].set(jnp.nan)
    state = state.replace(params={**state.params, "embed": {"embedding": poisoned}})
    # The unused end of a live row is computed and masked, so there it holds an id that is not poisoned.
    batch = batch.replace(tokens=np.where((tokens == 31) & ~dead, 0, tokens))
    after, _ = sft_step(state, batch)
    assert np.isfinite(after.params["layers"]["mlp"]["gate"]).all()


@pytest.mark.parametrize(
    ("model", "mesh"), [("mla", "8"), ("mla", "2x4"), ("gqa", "4x2"), ("gqa", "data=2,fsdp=2,tensor=2")]
)
def test_sharded_training_equals_one_device_after_three_steps(model: str, mesh: str) -> None:
    config = tiny.step_config(model)
    batches = [tiny.grpo_batch(config, seed) for seed in range(3)]
    alone, alone_metrics = run(config, batches)
    sharded_config = tiny.step_config(model, mesh=make_mesh(MeshShape.parse(mesh)), microbatches=2)
    sharded, sharded_metrics = run(sharded_config, batches)
    assert_same(alone, sharded, 1e-5)
    np.testing.assert_allclose(sharded_metrics["loss"], alone_metrics["loss"], rtol=0, atol=1e-5)


def test_sharded_state_stays_sharded_as_it_was() -> None:
    config = tiny.step_config(mesh=make_mesh(MeshShape.parse("2x4")), microbatches=2)
    state = tiny.state(config)
    before = jax.tree.map(lambda x: x.sharding, state)
    state, _ = grpo_step(state, place(tiny.grpo_batch(config), config))
    after = jax.tree.map(lambda x: x.sharding, state)
    assert not state.params["layers"]["mlp"]["gate"].sharding.is_fully_replicated
    for one, other, leaf in zip(
        jax.tree.leaves(before), jax.tree.leaves(after), jax.tree.leaves(abstract_state(config)), strict=True
    ):
        assert one.is_equivalent_to(other, leaf.ndim) and one.is_equivalent_to(leaf.sharding, leaf.ndim)


def test_row_order_and_what_stands_past_the_end_change_nothing() -> None:
    config = tiny.step_config()
    batch = tiny.grpo_batch(config)
    plain, plain_metrics = run(config, [batch])
    order = np.random.default_rng(3).permutation(tiny.ROWS)
    shuffled, _ = run(config, [take(batch, order)])
    assert_same_gradient(plain, shuffled)

    unused = np.arange(tiny.LENGTH) >= batch.lengths[:, None]
    outside = unused | (np.arange(tiny.LENGTH) < batch.prompt_lengths[:, None])
    planted = batch.replace(
        tokens=np.where(unused, 1, batch.tokens),
        ref_logprobs=np.where(outside, np.nan, batch.ref_logprobs),
        sampler_logprobs=np.where(outside, 1e4, batch.sampler_logprobs),
    )
    other, other_metrics = run(config, [planted])
    assert_same(plain, other, 0.0)
    assert plain_metrics == other_metrics


def test_on_policy_ratio_is_exactly_one_and_nothing_is_clipped() -> None:
    config = tiny.step_config()
    _, metrics = run(config, [tiny.grpo_batch(config)])
    assert metrics["ratio_min"] == metrics["ratio_max"] == metrics["ratio_mean"] == 1.0
    assert metrics["clip_fraction_low"] == metrics["clip_fraction_high"] == 0.0


def test_second_update_on_a_rollout_is_off_policy_and_is_clipped() -> None:
    config = tiny.step_config(objective=GRPOConfig(kl_coef=0.0, policy=PolicyConfig(clip_low=0.001, clip_high=0.001)))
    batch = tiny.grpo_batch(config)
    state = tiny.state(config)
    batch = batch.replace(old_logprobs=np.asarray(score(config, state.params, batch.tokens)))
    state, first = grpo_step(state, batch)
    state, second = grpo_step(state, batch)
    np.testing.assert_allclose([first["ratio_min"], first["ratio_max"]], 1.0, atol=1e-5)
    assert second["ratio_max"] > 1.001 and second["clip_fraction_high"] > 0


def test_dropped_rows_count_for_nothing() -> None:
    config = tiny.step_config(microbatches=4)
    batch = tiny.grpo_batch(config)
    dead = slice(0, tiny.GROUP)
    # Row r belongs to microbatch r mod 4; dead rows are spread over all of them here.
    weighted = batch.replace(row_weights=np.where(np.arange(tiny.ROWS) < tiny.GROUP, 0.0, 1.0).astype(np.float32))
    kept, kept_metrics = run(config, [weighted])
    without, without_metrics = run(tiny.step_config(microbatches=4), [take(batch, np.r_[tiny.GROUP : tiny.ROWS])])
    assert_same_gradient(kept, without)
    for name, value in without_metrics.items():
        np.testing.assert_allclose(kept_metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert batch.advantages[dead].tolist() == [0.0] * tiny.GROUP


def test_trailing_dead_microbatches_are_not_computed() -> None:
    """NaN parameters gradients would come from a poisoned row; a microbatch that is skipped cannot bring them in."""
    config = tiny.step_config(microbatches=4)
    batch = tiny.grpo_batch(config)
    microbatch = np.arange(tiny.ROWS) % 4
    live = (microbatch < 2).astype(np.float32)
    state, metrics = run(config, [batch.replace(row_weights=live)])
    tokens = (batch.lengths - batch.prompt_lengths)[microbatch < 2].sum()
    assert metrics["tokens"] == tokens
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_a_batch_without_signal_leaves_the_policy_alone() -> None:
    config = tiny.step_config()
    batch = tiny.grpo_batch(config)
    state = tiny.state(config)
    state, _ = grpo_step(state, batch)  # so that the optimizer has momentum
    before = jax.device_get(state)
    state, metrics = grpo_step(state, batch.replace(row_weights=np.zeros(tiny.ROWS, np.float32)))
    assert_same(before, jax.device_get(state), 0.0)
    assert int(state.step) == 2 and metrics["loss"] == 0.0


def test_masked_tokens_have_zero_gradient() -> None:
    """The embedding rows of ids that stand only past the end get no gradient at all (the model is untied)."""
    config = tiny.step_config("gqa")
    batch = tiny.grpo_batch(config)
    unused = np.arange(tiny.LENGTH) >= batch.lengths[:, None]
    tokens = np.where(unused, 31, np.minimum(batch.tokens, 30))
    assert unused.any()
    state, _ = run(config, [batch.replace(tokens=tokens)])
    before = jax.device_get(tiny.state(config))
    moved = np.abs(state.params["embed"]["embedding"] - before.params["embed"]["embedding"]).sum(axis=1)
    assert moved[31] == 0.0 and moved[:31].max() > 0


def test_score_equals_the_full_forward_at_the_sampling_temperature() -> None:
    config = StepConfig(model=tiny.MODELS["mla"], microbatches=4, logit_chunk=5, temperature=0.7)
    params = init_params(config.model, jax.random.key(1))
    tokens = tiny.grpo_batch(tiny.step_config()).tokens
    logits = hidden_states(config.model, params, tokens) @ unembedding(config.model, params) / 0.7
    logprobs = jax.nn.log_softmax(logits[:, :-1])
    expected = jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1)[..., 0]
    scored = score(config, params, tokens)
    np.testing.assert_allclose(scored[:, 1:], expected, atol=1e-5)
    assert not np.asarray(scored[:, 0]).any()


def test_steps_compile_once() -> None:
    config = tiny.step_config(microbatches=2)
    batches = [tiny.grpo_batch(config, seed) for seed in range(3)]
    run(config, batches)
    compiled = grpo_step._cache_size()
    run(tiny.step_config(microbatches=2), batches)  # an equal config, made anew
    assert grpo_step._cache_size() == compiled


def test_coefficients_take_the_place_of_the_configured_ones_without_compiling_again() -> None:
    """The gradient with β and α handed in is that of a config that has them; other values run the same program."""
    batch = tiny.grpo_batch(tiny.step_config())
    config = tiny.step_config(objective=GRPOConfig(kl_coef=0.1, entropy_coef=0.01))
    stepped, metrics = grpo_step(tiny.state(config), batch, Coefficients(kl=0.7, entropy=0.2))
    compiled = grpo_step._cache_size()
    other, _ = grpo_step(tiny.state(config), batch, Coefficients(kl=0.1, entropy=0.01))
    assert grpo_step._cache_size() == compiled
    expected, expected_metrics = run(tiny.step_config(objective=GRPOConfig(kl_coef=0.7, entropy_coef=0.2)), [batch])
    assert_same_gradient(jax.device_get(stepped), expected)
    for name in ("loss", "kl_loss", "entropy_loss"):
        np.testing.assert_allclose(metrics[name], expected_metrics[name], rtol=1e-5, err_msg=name)
    with pytest.raises(AssertionError):
        assert_same_gradient(jax.device_get(other), expected)


def test_rows_that_do_not_split_evenly_are_refused() -> None:
    config = tiny.step_config(microbatches=5)
    with pytest.raises(ValueError, match="16 rows cannot be split into 5"):
        run(config, [tiny.grpo_batch(tiny.step_config())])


@pytest.mark.slow
def test_step_never_holds_the_logits_of_a_batch() -> None:
    """XLA's own text of the compiled step has no buffer with rows × tokens × vocabulary elements."""
    rows, length, vocab = 4, 512, 32768
    model = tiny.MODELS["mla"]
    config = StepConfig(model=type(model)(**{**vars(model), "vocab_size": vocab}), logit_chunk=64)
    shape = lambda *dims, dtype=jnp.float32: jax.ShapeDtypeStruct(dims, dtype)  # noqa: E731
    batch = GRPOBatch(
        tokens=shape(rows, length, dtype=jnp.int32),
        prompt_lengths=shape(rows, dtype=jnp.int32),
        lengths=shape(rows, dtype=jnp.int32),
        advantages=shape(rows),
        row_weights=shape(rows),
        sampler_logprobs=shape(rows, length),
        ref_logprobs=shape(rows, length),
    )
    compiled = grpo_step.lower(abstract_state(config), batch).compile()
    sizes = [
        np.prod([int(dim) for dim in dims.split(",")]) for dims in re.findall(r"[a-z]+\d+\[([\d,]+)\]", compiled.as_text())
    ]
    assert max(sizes) < rows * length * vocab / 4
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * rows * length * vocab
    # The check can fail: with one chunk the logits are there.
    whole = token_logprobs(jnp.zeros((1, 8, 4)), jnp.zeros((4, 16)), jnp.zeros((1, 8), jnp.int32), chunk=8)
    assert whole.logprobs_BT.shape == (1, 8)
