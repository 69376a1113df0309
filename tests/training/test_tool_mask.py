"""Tokens that a tool wrote: context of what follows, and no part of the loss, its denominators or its metrics."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from grpo_jax.objectives import GRPOConfig, OffPolicyConfig, PolicyConfig, completion_mask
from grpo_jax.parallel import MeshShape, make_mesh
from grpo_jax.training.rows import place_rows
from grpo_jax.training.state import StepConfig, TrainState
from grpo_jax.training.steps import GRPOBatch, _policy_mask, _stats, grpo_step
from tests.oracles import objectives as oracle

# Everything that reads log-probs of old policy, sampler and reference: a correction, a KL in the loss, an entropy bonus.
OBJECTIVES = {
    "token_mean": GRPOConfig(
        kl_coef=0.1, policy=PolicyConfig(aggregation="token_mean"), off_policy=OffPolicyConfig(correction="tis")
    ),
    "sequence_mean": GRPOConfig(kl_coef=0.1, entropy_coef=0.01, policy=PolicyConfig(aggregation="sequence_mean")),
    "sequence_ratio": GRPOConfig(
        kl_coef=0.1, policy=PolicyConfig(term="gspo"), off_policy=OffPolicyConfig(correction="sequence_mask")
    ),
}


def batch_with_tools(seed: int = 0) -> GRPOBatch:
    """Rows with 0 to 3 tool tokens in the midst of the completion; row 6, which has an advantage, has nothing else."""
    batch = tiny.grpo_batch(tiny.step_config(), seed)
    rng = np.random.default_rng(seed)
    index = np.arange(tiny.LENGTH)
    start = batch.prompt_lengths + 1
    stop = np.minimum(start + rng.integers(0, 4, tiny.ROWS), batch.lengths - 1)
    start[6], stop[6] = batch.prompt_lengths[6], batch.lengths[6]
    tool = (index >= start[:, None]) & (index < stop[:, None])
    assert 5 < tool.any(axis=1).sum() < tiny.ROWS and (batch.advantages[6] != 0)
    noise = rng.normal(0, 0.3, (tiny.ROWS, tiny.LENGTH)).astype(np.float32)
    return batch.replace(
        tool_mask=tool,
        advantages=np.repeat(batch.advantages[:, None], tiny.LENGTH, axis=1),
        old_logprobs=batch.ref_logprobs + noise,
        sampler_logprobs=batch.ref_logprobs + noise[::-1],
    )


def step_config(**options) -> StepConfig:
    """The config of these tests: one layer, for there is much to compile."""
    config = tiny.step_config("gqa", **options)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, num_layers=1))


def run(objective: GRPOConfig, batch: GRPOBatch, **options) -> tuple[TrainState, dict]:
    config = step_config(objective=objective, **options)
    batch = jax.tree.map(lambda array: place_rows(array, config.mesh), batch)
    return jax.device_get(grpo_step(tiny.state(config), batch))


def gradient(state: TrainState) -> list[np.ndarray]:
    """Adam's first moment after one step, which is the gradient times a constant."""
    return jax.tree.leaves(optax.tree_utils.tree_get(state.opt_state, "mu"))


def difference(one: TrainState, other: TrainState) -> float:
    """The largest difference of two gradients, relative to the largest entry."""
    pairs = list(zip(gradient(one), gradient(other), strict=True))
    return max(np.abs(a - b).max() for a, b in pairs) / max(np.abs(a).max() for a, _ in pairs)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_known_of_tool_tokens_changes_nothing(name: str) -> None:
    batch = batch_with_tools()
    plain, metrics = run(OBJECTIVES[name], batch)

    def planted(values: np.ndarray, value: float) -> np.ndarray:
        return np.where(batch.tool_mask, np.float32(value), values)

    wild = batch.replace(
        old_logprobs=planted(batch.old_logprobs, -700.0),
        sampler_logprobs=planted(batch.sampler_logprobs, 40.0),
        ref_logprobs=planted(batch.ref_logprobs, -1e30),
        advantages=planted(batch.advantages, 1e6),
    )
    found, found_metrics = run(OBJECTIVES[name], wild)
    assert found_metrics == metrics and difference(found, plain) == 0.0
    assert metrics["tokens"] == (batch.lengths - batch.prompt_lengths).sum() - batch.tool_mask.sum()

    # The check can fail: without the mask these tokens do count.
    unmasked, _ = run(OBJECTIVES[name], batch.replace(tool_mask=np.zeros_like(batch.tool_mask)))
    assert difference(unmasked, plain) > 1e-3


def test_tool_tokens_are_context() -> None:
    batch = batch_with_tools()
    plain, metrics = run(OBJECTIVES["token_mean"], batch)
    other, other_metrics = run(
        OBJECTIVES["token_mean"], batch.replace(tokens=np.where(batch.tool_mask, (batch.tokens + 1) % 32, batch.tokens))
    )
    assert metrics["tokens"] == other_metrics["tokens"]
    assert metrics["policy_loss"] != other_metrics["policy_loss"] and difference(other, plain) > 1e-3


def test_tool_tokens_get_no_gradient_where_nothing_follows_them() -> None:
    """The rows of an untied embedding get one from what is drawn behind them alone."""
    config = step_config()
    batch = batch_with_tools()
    last = np.arange(tiny.LENGTH) == batch.lengths[:, None] - 1
    tokens = np.where(last, 31, np.minimum(batch.tokens, 30))
    state, _ = grpo_step(tiny.state(config), batch.replace(tokens=tokens, tool_mask=last))
    moved = np.abs(state.params["embed"]["embedding"] - tiny.state(config).params["embed"]["embedding"]).sum(axis=1)
    assert moved[31] == 0.0 and moved[:31].max() > 0
    unembedding = np.abs(jax.tree.leaves(optax.tree_utils.tree_get(state.opt_state, "mu")["unembed"])[0])
    assert unembedding.max() > 0


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_loss_and_gradient_equal_the_oracle(aggregation: str) -> None:
    batch = batch_with_tools()
    policy = PolicyConfig(aggregation=aggregation, clip_low=0.2, clip_high=0.3)
    objective = GRPOConfig(kl_coef=0.1, policy=policy)
    config = step_config(objective=objective)
    params = tiny.state(config).params
    stats = jax.device_get(_stats(config, params, jnp.asarray(batch.tokens), config.temperature))
    mask = oracle.completion_mask(batch.prompt_lengths, batch.lengths, tiny.LENGTH) & ~batch.tool_mask
    assert mask.sum() > 20 and not mask[6].any()

    def expected(logprobs: np.ndarray) -> dict[str, float]:
        return oracle.grpo(
            logprobs,
            batch.old_logprobs,
            batch.ref_logprobs,
            batch.sampler_logprobs,
            batch.advantages[:, 0],
            batch.row_weights,
            mask,
            stats.entropy_BT,
            clip_low=0.2,
            clip_high=0.3,
            kl_coef=0.1,
            aggregation=aggregation,
        )

    state, metrics = run(objective, batch)
    for name, value in expected(stats.logprobs_BT).items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)

    by_logprob = oracle.gradient(lambda logprobs: expected(logprobs)["loss"], stats.logprobs_BT)
    _, back = jax.vjp(lambda p: _stats(config, p, jnp.asarray(batch.tokens), config.temperature).logprobs_BT, params)
    (by_params,) = back(jnp.asarray(by_logprob, jnp.float32))
    norm = optax.global_norm(by_params)
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-3)
    scale = (1 - config.optimizer.b1) * min(1.0, config.optimizer.clip_norm / float(norm))
    for found, leaf in zip(gradient(state), jax.tree.leaves(by_params), strict=True):
        np.testing.assert_allclose(found, scale * leaf, atol=1e-3 * scale * float(norm))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_row_of_tool_tokens_alone_is_a_row_without_a_completion(name: str) -> None:
    batch = batch_with_tools()
    found, metrics = run(OBJECTIVES[name], batch)
    lengths = np.where(np.arange(tiny.ROWS) == 6, batch.prompt_lengths, batch.lengths)
    expected, expected_metrics = run(OBJECTIVES[name], batch.replace(lengths=lengths))
    assert difference(found, expected) < 1e-6
    for key, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


def test_a_batch_of_tool_tokens_alone_has_no_loss() -> None:
    batch = batch_with_tools()
    everything = batch.replace(tool_mask=np.ones_like(batch.tool_mask))
    state, metrics = run(OBJECTIVES["sequence_mean"], everything)
    assert metrics["loss"] == 0.0 and metrics["tokens"] == 0.0 and metrics["grad_norm"] == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize("options", [{"microbatches": 4}, {"mesh": "4x2", "microbatches": 2}], ids=str)
def test_microbatches_and_mesh_change_nothing(options: dict) -> None:
    batch = batch_with_tools()
    mesh = options.get("mesh")
    options = options | {"mesh": None if mesh is None else make_mesh(MeshShape.parse(mesh))}
    whole, metrics = run(OBJECTIVES["sequence_mean"], batch)
    split, split_metrics = run(OBJECTIVES["sequence_mean"], batch, **options)
    assert difference(split, whole) < 1e-5
    np.testing.assert_allclose(split_metrics["loss"], metrics["loss"], rtol=1e-5, atol=1e-6)
    assert split_metrics["tokens"] == metrics["tokens"]


def test_an_empty_mask_changes_nothing() -> None:
    batch = batch_with_tools()
    none, none_metrics = run(OBJECTIVES["token_mean"], batch.replace(tool_mask=None))
    empty, empty_metrics = run(OBJECTIVES["token_mean"], batch.replace(tool_mask=np.zeros_like(batch.tool_mask)))
    assert difference(empty, none) < 1e-6
    np.testing.assert_allclose(empty_metrics["loss"], none_metrics["loss"], rtol=1e-5)


@flax.struct.dataclass
class _BatchWithoutTools:
    """The fields of a `GRPOBatch` of single turns."""

    tokens: jax.Array
    prompt_lengths: jax.Array
    lengths: jax.Array
    advantages: jax.Array
    row_weights: jax.Array
    sampler_logprobs: jax.Array | None = None
    ref_logprobs: jax.Array | None = None
    old_logprobs: jax.Array | None = None
    selected: jax.Array | None = None
    tool_mask: ClassVar[None] = None


def test_without_a_mask_the_step_is_the_program_of_single_turns() -> None:
    """Its only use of the mask is `_policy_mask`, which is then `completion_mask` and nothing more."""
    config = tiny.step_config(microbatches=4)
    batch = tiny.grpo_batch(config)
    assert batch.tool_mask is None
    bare = _BatchWithoutTools(**{field.name: getattr(batch, field.name) for field in dataclasses.fields(_BatchWithoutTools)})
    state = tiny.state(config)
    assert grpo_step.lower(state, batch).as_text() == grpo_step.lower(state, bare).as_text()

    def mask(batch: GRPOBatch) -> jax.Array:
        return completion_mask(batch.prompt_lengths, batch.lengths, batch.tokens.shape[1])

    found, expected = (jax.make_jaxpr(function)(batch) for function in (_policy_mask, mask))
    assert str(found) == str(expected)
    assert str(jax.make_jaxpr(_policy_mask)(batch_with_tools())) != str(expected)
