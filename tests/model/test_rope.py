"""Rotary embedding: scores depend on distance alone; YaRN keeps fast pairs and slows slow ones."""

import math

import jax
import numpy as np
import pytest

from grpo_jax.model import RopeConfig, YarnConfig
from grpo_jax.model.rope import frequencies, rotary, rotate
from tests.model.cases import PLAIN, YARN, YARN_FACTOR
from tests.oracles import transformer as oracle

DIM = 8
# Sizes of a released model: Llama's head and context, extended 16 times.
LARGE = RopeConfig(theta=10000.0, yarn=YarnConfig(factor=16.0, original_max_length=4096))


@jax.jit
def _turned(x, positions):
    return rotate(x[:, None], rotary(YARN, DIM, positions))[:, 0]


def _vectors(count):
    return np.random.default_rng(0).normal(size=(2, count, DIM)).astype(np.float32)


@pytest.mark.parametrize("shift", [1, 17, 200])
def test_scores_depend_on_relative_position_only(shift):
    queries, keys = _vectors(6)
    at = np.arange(6)
    scores = _turned(queries, at) @ _turned(keys, at).T
    shifted = _turned(queries, at + shift) @ _turned(keys, at + shift).T
    np.testing.assert_allclose(shifted, scores, atol=2e-4)  # float32 angles up to 200 radians
    moved = _turned(queries, at + shift) @ _turned(keys, at).T
    assert np.abs(moved - scores).max() > 0.1


def test_rotation_keeps_norms_and_leaves_position_zero_alone():
    x = _vectors(6)[0]
    turned = np.asarray(_turned(x, np.array([0, 1, 2, 30, 400, 5000])))
    np.testing.assert_array_equal(turned[0], x[0])
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_dimension_i_pairs_with_i_plus_half():
    turned = np.asarray(_turned(np.eye(DIM, dtype=np.float32)[:6], np.full(6, 1)))
    expected = np.zeros(DIM)
    expected[0], expected[DIM // 2] = math.cos(1), math.sin(1)  # the first pair turns one radian per position
    np.testing.assert_allclose(turned[0], expected, atol=1e-6)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones_by_the_factor():
    dim, yarn = 128, LARGE.yarn
    plain, mixed = frequencies(RopeConfig(theta=LARGE.theta), dim), frequencies(LARGE, dim)
    turns = plain * yarn.original_max_length / (2 * math.pi)
    # The ramp begins and ends at whole pairs, so a pair next to a bound may lie on either side of it.
    step = LARGE.theta ** (2 / dim)
    fast, slow = turns > yarn.beta_fast * step, turns < yarn.beta_slow / step
    assert fast.sum() > 10 and slow.sum() > 10
    np.testing.assert_array_equal(mixed[fast], plain[fast])
    np.testing.assert_allclose(mixed[slow], plain[slow] / yarn.factor, rtol=1e-12)
    between = mixed[~fast & ~slow] / plain[~fast & ~slow]
    assert np.all(np.diff(between) < 0) and between[0] <= 1 and between[-1] >= 1 / yarn.factor


@pytest.mark.parametrize("rope, dim", [(PLAIN, DIM), (YARN, DIM), (LARGE, 64), (LARGE, 128)])
def test_frequencies_match_oracle(rope, dim):
    np.testing.assert_allclose(frequencies(rope, dim), oracle.frequencies(rope, dim), rtol=1e-12)


def test_yarn_of_factor_one_is_plain_rope():
    same = RopeConfig(theta=100.0, yarn=YarnConfig(factor=1.0, original_max_length=64))
    np.testing.assert_allclose(frequencies(same, DIM), frequencies(PLAIN, DIM), rtol=1e-12)
    assert same.logit_scale == 1.0


def test_yarn_scales_logits_by_the_square_of_its_attention_factor():
    assert PLAIN.logit_scale == 1.0
    assert YARN.logit_scale == pytest.approx((0.1 * math.log(8) + 1) ** 2)
    assert YARN_FACTOR.logit_scale == pytest.approx(1.3**2)
