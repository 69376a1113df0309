"""Shaping rewards: overlong punishment, repetition, cosine length; their figures, bounds and limits."""

import itertools
import math

import numpy as np
import pytest

from grpo_jax.rewards import (
    CosineLengthConfig,
    OverlongConfig,
    RepetitionConfig,
    RewardInput,
    cosine_length_reward,
    ngram_repetition,
    overlong_reward,
    repetition_reward,
)


def row(tokens, end="eos"):
    ids = range(tokens) if isinstance(tokens, int) else tokens
    return RewardInput(prompt="", completion="", reference="", ids=ids, end=end)


# Overlong


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 0.0), (16383, 0.0), (16384, 0.0), (17408, -0.25), (18432, -0.5), (20480, -1.0), (20481, -1.0), (40960, -1.0)],
)
def test_the_overlong_punishment_has_the_figures_of_dapo(tokens, expected):
    assert overlong_reward(OverlongConfig(buffer=4096), 20480)(row(tokens)) == expected


def test_the_first_token_of_the_buffer_costs_one_part_of_it():
    assert overlong_reward(OverlongConfig(buffer=4096, factor=2.0), 20480)(row(16385)) == -2.0 / 4096


def test_the_overlong_punishment_equals_an_oracle_at_random_lengths():
    rng = np.random.default_rng(0)
    for limit in rng.integers(1, 4000, 50).tolist():
        buffer, factor = int(rng.integers(1, limit + 1)), float(rng.uniform(0.1, 9))
        lengths = rng.integers(0, 2 * limit, 40)
        oracle = -factor * np.clip((lengths - np.float64(limit - buffer)) / buffer, 0, 1)
        reward = overlong_reward(OverlongConfig(buffer=buffer, factor=factor), limit)
        np.testing.assert_allclose([reward(row(int(n))) for n in lengths], oracle, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("buffer", [1, 7, 50])
def test_the_overlong_punishment_only_falls_is_0_before_its_zone_and_never_below_minus_factor(buffer):
    reward = overlong_reward(OverlongConfig(buffer=buffer, factor=0.3), 50)
    values = [reward(row(n)) for n in range(120)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    assert values[: 50 - buffer + 1] == [0.0] * (51 - buffer)
    assert values[50:] == [-0.3] * 70
    assert all(a > b for a, b in zip(values[50 - buffer : 50], values[51 - buffer : 51], strict=True))
    assert not any(value == 0 and math.copysign(1, value) < 0 for value in values)


def test_the_overlong_punishment_does_not_ask_how_a_row_ended():
    reward = overlong_reward(OverlongConfig(buffer=10), 50)
    assert reward(row(47, "eos")) == reward(row(47, "length")) == pytest.approx(-0.7)


# Repetition


def distinct_share(ids, n):
    """Oracle: n-grams as tuples in a set."""
    grams = [tuple(int(i) for i in ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@pytest.mark.parametrize(
    ("ids", "n", "expected"),
    [
        ([], 1, 0.0),
        ([5], 1, 0.0),
        ([5, 5], 1, 0.5),
        ([1, 2, 3], 4, 0.0),  # shorter than one n-gram
        ([1, 2, 3, 4], 4, 0.0),
        ([7] * 13, 4, 0.9),  # ten n-grams, nine of them repeats
        ([1, 2, 1, 2, 1, 2, 1], 2, 4 / 6),  # (1 2), (2 1) and four repeats
        ([1, 2, 3, 9, 1, 2, 3], 3, 0.2),
        ([1, 2, 3, 4, 5, 6, 7, 8], 3, 0.0),
        ([1, 2, 2, 1], 2, 0.0),  # order counts
    ],
)
def test_repetition_is_the_share_of_ngrams_that_were_there_before(ids, n, expected):
    assert ngram_repetition(ids, n) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 13, 40])
def test_repetition_equals_a_set_of_tuples_at_random(n):
    rng = np.random.default_rng(n)
    shares = []
    for _ in range(60):
        ids = rng.integers(0, rng.integers(1, 5), rng.integers(0, 120))
        if len(ids) > 50:
            ids[-30:] = ids[:30]  # long n-grams repeat too
        shares.append(ngram_repetition(ids, n))
        assert shares[-1] == pytest.approx(distinct_share(ids, n), abs=1e-15)
        assert ngram_repetition(ids.tolist(), n) == ngram_repetition(ids.astype(np.int32), n) == shares[-1]
    assert max(shares) > 0


def test_repetition_does_not_depend_on_which_ids_stand_for_the_tokens():
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 9, 400)
    expected = distinct_share(ids, 4)
    for scale in (1, 151_936 // 9, 2**31 // 9, 2**60 // 9):
        assert ngram_repetition(ids * scale, 4) == expected
    # Of 2^17 distinct ids the pairs (0, 7) and (2^15, 7) would be one in 32 bits.
    many = np.concatenate([np.arange(2**17), [0, 7, 2**15, 7]]).astype(np.int32)
    assert ngram_repetition(many, 2) == 0.0


def test_repetition_does_not_change_the_ids():
    ids = np.array([3, 1, 2, 3, 1, 2])
    ngram_repetition(ids, 2)
    assert ids.tolist() == [3, 1, 2, 3, 1, 2]


def test_the_sorts_of_repetition_grow_with_the_logarithm_of_n(monkeypatch):
    counted = []
    unique = np.unique
    monkeypatch.setattr(np, "unique", lambda *args, **kwargs: counted.append(1) or unique(*args, **kwargs))
    for n, sorts in ((1, 1), (2, 2), (4, 3), (5, 4), (64, 7)):
        counted.clear()
        ngram_repetition(np.arange(200) % 3, n)
        assert len(counted) == sorts, n


def test_the_repetition_reward_is_minus_the_share_times_the_penalty():
    reward = repetition_reward(RepetitionConfig(ngram=4, penalty=2.0))
    assert reward(row([7] * 13)) == pytest.approx(-1.8)
    for ids in ([], [7, 7, 7], list(range(20))):
        assert math.copysign(1, reward(row(ids))) == 1.0 and reward(row(ids)) == 0.0
    assert RepetitionConfig() == RepetitionConfig(ngram=4, penalty=1.0)


# Cosine length

RIGHT, WRONG = 1.0, 0.0


def test_the_cosine_defaults_are_those_of_the_paper():
    config = CosineLengthConfig()
    ends = (config.right_short, config.right_long, config.wrong_short, config.wrong_long, config.exceeded)
    assert ends == (2, 1, -10, 0, -10)


@pytest.mark.parametrize(
    ("tokens", "right", "wrong"),
    [
        (0, 2.0, -10.0),
        (25, 1.5 + math.sqrt(2) / 4, -5 - 5 * math.sqrt(2) / 2),  # cos 45° = √2/2
        (50, 1.5, -5.0),
        (75, 1.5 - math.sqrt(2) / 4, -5 + 5 * math.sqrt(2) / 2),
        (100, 1.0, 0.0),
    ],
)
def test_the_cosine_passes_through_its_ends_and_its_middle(tokens, right, wrong):
    reward = cosine_length_reward(CosineLengthConfig(), 100)
    assert reward(row(tokens), RIGHT) == pytest.approx(right, abs=1e-14)
    assert reward(row(tokens), WRONG) == pytest.approx(wrong, abs=1e-14)


def test_the_ends_of_the_cosine_are_exact():
    rng = np.random.default_rng(1)
    for _ in range(200):
        short, long = rng.normal(size=2).tolist()
        limit = int(rng.integers(1, 9999))
        reward = cosine_length_reward(CosineLengthConfig(right_short=short, right_long=long), limit)
        assert reward(row(0), RIGHT) == short
        assert reward(row(limit), RIGHT) == long


@pytest.mark.parametrize("accuracy", [RIGHT, WRONG])
def test_exceeded_is_for_rows_that_reached_the_limit_without_ending(accuracy):
    config = CosineLengthConfig(right_long=1.0, wrong_long=-1.0, exceeded=-7.0)
    reward = cosine_length_reward(config, 100)
    at_limit = config.right_long if accuracy else config.wrong_long
    assert reward(row(99, "eos"), accuracy) == pytest.approx(at_limit, abs=0.01)
    assert reward(row(100, "eos"), accuracy) == at_limit
    assert reward(row(100, "length"), accuracy) == -7.0
    assert reward(row(50, "length"), accuracy) == reward(row(50, "eos"), accuracy)  # cut off before this limit
    # A limit below the rollout's: the row went on past it, and however it ended, it had not ended there.
    assert reward(row(101, "eos"), accuracy) == reward(row(150, "length"), accuracy) == -7.0


def test_the_cosine_equals_an_oracle_at_random_lengths():
    rng = np.random.default_rng(2)
    for limit in rng.integers(1, 4000, 50).tolist():
        short, long = rng.normal(size=(2, 2)) * 5  # [right, wrong]
        config = CosineLengthConfig(right_short=short[0], right_long=long[0], wrong_short=short[1], wrong_long=long[1])
        reward = cosine_length_reward(config, limit)
        lengths = rng.integers(0, limit + 1, 40)
        for which, accuracy in enumerate((RIGHT, WRONG)):
            # the paper's form: η_min + (η_max − η_min)/2 · (1 + cos(t π / T)), with η_max at t = 0
            oracle = long[which] + 0.5 * (short[which] - long[which]) * (1 + np.cos(lengths * np.pi / limit))
            values = [reward(row(int(n)), accuracy) for n in lengths]
            np.testing.assert_allclose(values, oracle, rtol=1e-12, atol=1e-12)


def test_the_cosine_moves_one_way_and_stays_between_its_ends():
    reward = cosine_length_reward(CosineLengthConfig(), 300)
    right = np.array([reward(row(n), RIGHT) for n in range(301)])
    wrong = np.array([reward(row(n), WRONG) for n in range(301)])
    assert (np.diff(right) < 0).all() and right.max() == 2 and right.min() == 1
    assert (np.diff(wrong) > 0).all() and wrong.max() == 0 and wrong.min() == -10
    assert right.min() > wrong.max()


def test_an_accuracy_between_0_and_1_is_right_from_a_half_on():
    reward = cosine_length_reward(CosineLengthConfig(), 100)
    assert [reward(row(0), accuracy) for accuracy in (0.0, 0.49, 0.5, 0.7, 1.0)] == [-10, -10, 2, 2, 2]


# Configs


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (OverlongConfig, {"buffer": 0}, "^buffer is 0, but it must be at least 1"),
        (OverlongConfig, {"buffer": 9, "limit": 8}, "^buffer is 9, but it must be at most 8, the limit"),
        (OverlongConfig, {"buffer": 9, "limit": 0}, "^limit is 0, but"),
        (OverlongConfig, {"buffer": 9, "factor": 0.0}, "^factor is 0.0, but"),
        (OverlongConfig, {"buffer": 9, "factor": -1.0}, "^factor is -1.0, but"),
        (OverlongConfig, {"buffer": 9, "factor": math.nan}, "^factor is nan, but"),
        (OverlongConfig, {"buffer": 9, "factor": math.inf}, "^factor is inf, but"),
        (RepetitionConfig, {"ngram": 0}, "^ngram is 0, but"),
        (RepetitionConfig, {"penalty": -0.5}, "^penalty is -0.5, but"),
        (RepetitionConfig, {"penalty": 0.0}, "^penalty is 0.0, but"),
        (RepetitionConfig, {"penalty": math.nan}, "^penalty is nan, but"),
        (CosineLengthConfig, {"right_short": math.nan}, "^right_short is nan, but"),
        (CosineLengthConfig, {"right_long": math.inf}, "^right_long is inf, but"),
        (CosineLengthConfig, {"wrong_short": -math.inf}, "^wrong_short is -inf, but"),
        (CosineLengthConfig, {"wrong_long": math.nan}, "^wrong_long is nan, but"),
        (CosineLengthConfig, {"exceeded": math.nan}, "^exceeded is nan, but"),
        (CosineLengthConfig, {"limit": 0}, "^limit is 0, but"),
    ],
)
def test_impossible_shaping_is_refused_by_field(config, options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_a_buffer_as_wide_as_the_limit_is_allowed():
    assert overlong_reward(OverlongConfig(buffer=8, limit=8), 8)(row(4)) == -0.5


def test_ngrams_of_no_tokens_are_refused():
    with pytest.raises(ValueError, match=r"^n is 0, but"):
        ngram_repetition([1, 2], 0)
