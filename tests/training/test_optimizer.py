"""The schedule's values, what is decayed, and clipping."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule


def values(config: OptimizerConfig, total: int) -> list[float]:
    schedule = make_schedule(config, total)
    return [float(schedule(step)) for step in range(total + 1)]


def test_warm_up_rises_to_the_peak_and_never_is_zero() -> None:
    rates = values(OptimizerConfig(learning_rate=1.0, warmup_steps=4), 10)
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-6)
    assert rates[5:] == [1.0] * 6


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_ends_at_its_share_of_the_peak(schedule) -> None:
    rates = values(OptimizerConfig(learning_rate=2.0, schedule=schedule, warmup_steps=2, end_fraction=0.1), 12)
    assert rates[2] == pytest.approx(2.0) and rates[12] == pytest.approx(0.2)
    assert all(one >= other for one, other in itertools.pairwise(rates[2:]))
    assert rates[7] == pytest.approx(1.1)  # half way, for both


def test_kernels_decay_and_scales_do_not() -> None:
    params = {"mlp": {"up": jnp.ones((2, 2))}, "norm": {"scale": jnp.ones(2)}}
    gradients = {"mlp": {"up": jnp.zeros((2, 2))}, "norm": {"scale": jnp.zeros(2)}}
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1, weight_decay=0.5), 1)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates["mlp"]["up"], -0.05)
    np.testing.assert_allclose(updates["norm"]["scale"], 0.0)


def test_first_update_is_adamw_by_hand_after_clipping() -> None:
    params = {"w": jnp.zeros(2)}
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.1, clip_norm=1.0, eps=1e-2), 1)
    updates, _ = optimizer.update({"w": jnp.array([3.0, 4.0])}, optimizer.init(params), params)
    clipped = np.array([0.6, 0.8])
    np.testing.assert_allclose(updates["w"], -0.1 * clipped / (clipped + 1e-2), rtol=1e-5)
