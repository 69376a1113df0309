"""sft_loss: the negative log-likelihood of the completion, as sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.objectives import add_sums, finalize_metrics, sft_denominator, sft_loss

LOGPROBS = -np.abs(np.random.default_rng(0).normal(size=(4, 6))).astype(np.float32)
MASK = np.arange(6)[None, :] >= np.array([1, 3, 5, 6])[:, None]


def test_the_loss_is_the_mean_over_all_completion_tokens():
    loss_sum, sums = sft_loss(jnp.asarray(LOGPROBS), jnp.asarray(MASK))
    expected = -LOGPROBS.astype(np.float64)[MASK].mean()
    np.testing.assert_allclose(loss_sum / sft_denominator(jnp.asarray(MASK)), expected, rtol=1e-6)
    metrics = finalize_metrics(sums)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-6)
    assert metrics["tokens"] == MASK.sum()


def test_uneven_parts_of_a_batch_add_up_to_the_whole():
    parts = [sft_loss(jnp.asarray(LOGPROBS[rows]), jnp.asarray(MASK[rows])) for rows in (slice(0, 1), slice(1, 4))]
    whole_sum, whole = sft_loss(jnp.asarray(LOGPROBS), jnp.asarray(MASK))
    np.testing.assert_allclose(parts[0][0] + parts[1][0], whole_sum, rtol=1e-6)
    added = finalize_metrics(add_sums(parts[0][1], parts[1][1]))
    for name, value in finalize_metrics(whole).items():
        np.testing.assert_allclose(added[name], value, rtol=1e-6)


@pytest.mark.parametrize("garbage", [1e4, -1e4, np.nan, np.inf])
def test_masked_places_change_nothing_and_get_no_gradient(garbage):
    planted = jnp.where(MASK, LOGPROBS, garbage)
    gradient = jax.grad(lambda x: sft_loss(x, jnp.asarray(MASK))[0])(planted)
    np.testing.assert_array_equal(gradient, np.where(MASK, -1.0, 0.0))
    assert sft_loss(planted, jnp.asarray(MASK))[0] == sft_loss(jnp.asarray(LOGPROBS), jnp.asarray(MASK))[0]


def test_a_batch_without_a_completion_token_has_loss_zero():
    nothing = jnp.zeros((4, 6), bool)
    loss_sum, sums = sft_loss(jnp.asarray(LOGPROBS), nothing)
    assert loss_sum / sft_denominator(nothing) == 0.0
    assert finalize_metrics(sums) == {"loss": 0.0, "tokens": 0.0}
