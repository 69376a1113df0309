"""The composite reward: its sum, its parts, and rewards that do not apply or that fail."""

import logging
import math
import time

import numpy as np
import pytest

from grpo_jax.rewards import (
    REWARD_NAMES,
    CodeConfig,
    CompositeReward,
    CosineLengthConfig,
    LanguageConfig,
    MathConfig,
    OverlongConfig,
    PoolConfig,
    RepetitionConfig,
    RewardConfig,
    RewardInput,
    accuracy_reward,
    joined_results,
    resolve_reward,
)

MODULE = """
import math

def brevity(row):
    return -len(row.ids) / 10

def only_sums(row):
    return 1.0 if "+" in row.prompt else None

def not_a_number(row):
    return math.nan

def fails_on_odd(row):
    if len(row.ids) % 2:
        raise ZeroDivisionError("odd")
    return 1.0

def half_right(row):
    return 0.5

def infinite(row):
    return math.inf

def text(row):
    return "good"

def deep(row):
    return deep(row)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "rewards_of_a_user.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def row(completion="<think>x</think><answer>2</answer>", *, prompt="1+1", reference="2", ids=(1, 2), end="eos"):
    return RewardInput(prompt=prompt, completion=completion, reference=reference, ids=ids, end=end)


ROWS = [
    row(),
    row("<think>x</think><answer>3</answer>"),
    row("<answer>2</answer>"),
    row(end="length"),
    row(""),
]


def test_the_total_is_the_weighted_sum_and_components_stay_apart():
    result = CompositeReward(RewardConfig(format_weight=0.25, termination_weight=0.5)).score(ROWS)
    np.testing.assert_array_equal(result.components["accuracy"], [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(result.components["format"], [1, 1, 0, 1, 0])
    np.testing.assert_array_equal(result.components["termination"], [1, 1, 1, 0, 0])
    np.testing.assert_allclose(result.total, [1.75, 0.75, 1.5, 1.25, 0])
    np.testing.assert_array_equal(result.accuracy, result.components["accuracy"])
    assert result.total.dtype == np.float32


def test_a_weight_of_zero_reports_without_rewarding():
    result = CompositeReward(RewardConfig(format_weight=0, termination_weight=0)).score(ROWS)
    np.testing.assert_array_equal(result.total, result.accuracy)
    assert result.components["format"].sum() == 3


def test_an_extra_reward_is_found_by_dotted_path_and_weighted():
    name = "rewards_of_a_user:brevity"
    result = CompositeReward(RewardConfig(extras={name: 0.1})).score([row(ids=(0,) * 5)])
    np.testing.assert_allclose(result.components[name], [-0.5])
    np.testing.assert_allclose(result.total, [1.4 - 0.05], rtol=1e-6)


def test_any_component_can_be_a_dotted_path():
    config = RewardConfig(accuracy="rewards_of_a_user:only_sums")
    assert CompositeReward(config).score([row()]).accuracy.tolist() == [1.0]


@pytest.mark.parametrize("name", ["rewards_of_a_user:only_sums", "rewards_of_a_user:not_a_number"])
def test_a_reward_that_does_not_apply_is_left_out_of_the_sum_and_counted(name):
    rows = [row(prompt="2*1", completion="<answer>2</answer>"), row(prompt="4-2", completion="")]
    result = CompositeReward(RewardConfig(format_weight=1, termination_weight=1, extras={name: 5.0})).score(rows)
    np.testing.assert_allclose(result.total, [2.0, 0.0])
    assert np.isnan(result.components[name]).all()
    assert result.missing[name] == 2
    assert result.failed[name] == 0


def test_a_row_to_which_nothing_applies_has_no_total():
    name = "rewards_of_a_user:not_a_number"
    result = CompositeReward(RewardConfig(accuracy=name, format=name, termination=name)).score([row()])
    assert math.isnan(result.total[0])


def test_accuracy_does_not_apply_without_a_reference():
    result = CompositeReward().score([row(reference=" ")])
    assert math.isnan(result.accuracy[0])
    np.testing.assert_allclose(result.total, [0.4], rtol=1e-6)


def test_a_reward_that_raises_makes_its_rows_totals_missing_and_logs_the_input(caplog):
    name = "rewards_of_a_user:fails_on_odd"
    rows = [row(ids=(1, 2)), row(ids=(7,), prompt="this one"), row(ids=(1,)), row("")]
    with caplog.at_level(logging.WARNING):
        result = CompositeReward(RewardConfig(extras={name: 1.0})).score(rows)
    assert np.isnan(result.total).tolist() == [False, True, True, False]
    assert (result.failed[name], result.missing[name]) == (2, 0)
    assert "this one" in caplog.text and "ZeroDivisionError: odd" in caplog.text
    assert "failed on 2 of 4 rows" in caplog.text


@pytest.mark.parametrize("function", ["infinite", "text", "deep"])
def test_a_reward_that_returns_no_finite_number_or_overflows_the_stack_has_failed(function):
    name = f"rewards_of_a_user:{function}"
    result = CompositeReward(RewardConfig(extras={name: 0.0})).score([row()])
    assert result.failed[name] == 1
    assert math.isnan(result.total[0])


def test_metrics_are_means_and_population_deviations_of_present_values():
    metrics = (
        CompositeReward(RewardConfig(extras={"rewards_of_a_user:only_sums": 0.0}))
        .score([*ROWS[:4], row(prompt="2*1", completion="")])
        .metrics()
    )
    assert metrics["accuracy/mean"] == pytest.approx(0.6)
    assert metrics["accuracy/std"] == pytest.approx(math.sqrt(0.24))
    assert metrics["rewards_of_a_user:only_sums/mean"] == 1.0
    assert metrics["rewards_of_a_user:only_sums/missing"] == 1.0
    assert metrics["accuracy/failed"] == 0.0


def test_an_empty_batch_has_no_metrics_that_pretend():
    result = CompositeReward().score([])
    assert result.total.shape == (0,)
    assert math.isnan(result.metrics()["total/mean"])


def test_a_task_of_expressions_can_use_another_equality():
    reward = accuracy_reward(lambda text: text, lambda answer, reference: answer.lower() == reference.lower())
    assert reward(row("EAST", reference="east")) == 1.0


SHAPING = RewardConfig(
    overlong=OverlongConfig(buffer=4, factor=0.5),
    repetition=RepetitionConfig(ngram=2, penalty=0.1),
    length=CosineLengthConfig(),
)


def test_shaping_is_present_only_where_its_section_is_given():
    assert list(CompositeReward().weights) == ["accuracy", "format", "termination"]
    assert CompositeReward(RewardConfig(), 8).score([row()]).components.keys() == CompositeReward().weights.keys()
    for section, component in (("overlong", "overlong"), ("repetition", "repetition_penalty"), ("length", "length")):
        reward = CompositeReward(RewardConfig(**{section: getattr(SHAPING, section)}), 8)
        assert set(reward.weights) == {"accuracy", "format", "termination", component}
        assert set(reward.score([row()]).components) == set(reward.weights)


def test_shaping_enters_the_total_and_length_takes_the_place_of_accuracy():
    result = CompositeReward(SHAPING, max_completion_tokens=8).score(
        [
            row(ids=(1, 2, 3, 4)),  # right, half of the limit
            row("<think>x</think><answer>3</answer>", ids=(1, 2, 3, 4, 5, 6)),  # wrong, half of the buffer
            row(ids=(1,) * 8, end="length"),  # cut off at the limit, 7 bigrams of which 6 repeat
        ]
    )
    np.testing.assert_array_equal(result.accuracy, [1, 0, 1])
    np.testing.assert_allclose(result.components["overlong"], [0, -0.25, -0.5])
    np.testing.assert_allclose(result.components["repetition_penalty"], [0, 0, -0.1 * 6 / 7], rtol=1e-6)
    wrong = -10 * (1 + math.cos(math.pi * 0.75)) / 2
    np.testing.assert_allclose(result.components["length"], [1.5, wrong, -10], rtol=1e-6)
    expected = [1.5 + 0.4, wrong + 0.4 - 0.25, -10 + 0.2 - 0.5 - 0.1 * 6 / 7]
    np.testing.assert_allclose(result.total, expected, rtol=1e-6)
    assert result.weights == {
        "accuracy": 0.0,
        "format": 0.2,
        "termination": 0.2,
        "overlong": 1.0,
        "repetition_penalty": 1.0,
        "length": 1.0,
    }


def test_without_the_length_section_accuracy_keeps_its_weight():
    result = CompositeReward(RewardConfig(overlong=SHAPING.overlong), 8).score([row(ids=(1,) * 6)])
    assert result.weights["accuracy"] == 1.0
    np.testing.assert_allclose(result.total, [1.4 - 0.25], rtol=1e-6)


def test_where_accuracy_is_missing_so_is_the_length_reward():
    config = RewardConfig(accuracy="rewards_of_a_user:only_sums", length=CosineLengthConfig())
    result = CompositeReward(config, 4).score([row(ids=(1, 2)), row(prompt="2*1", ids=(1, 2))])
    np.testing.assert_array_equal(result.components["length"], [1.5, np.nan])
    np.testing.assert_allclose(result.total, [1.9, 0.4], rtol=1e-6)
    assert (result.missing["length"], result.failed["length"]) == (1, 0)


def test_where_accuracy_failed_so_has_the_length_reward():
    config = RewardConfig(accuracy="rewards_of_a_user:fails_on_odd", length=CosineLengthConfig())
    result = CompositeReward(config, 4).score([row(ids=(1, 2)), row(ids=(1,)), row(ids=(1, 2, 3))])
    assert np.isnan(result.components["length"]).tolist() == [False, True, True]
    assert np.isnan(result.total).tolist() == [False, True, True]
    assert (result.missing["length"], result.failed["length"]) == (0, 2)
    assert (result.missing["accuracy"], result.failed["accuracy"]) == (0, 2)


def test_a_half_right_answer_has_the_length_reward_of_a_right_one():
    config = RewardConfig(accuracy="rewards_of_a_user:half_right", length=CosineLengthConfig())
    result = CompositeReward(config, 4).score([row(ids=(1, 2))])
    assert result.components["length"].tolist() == [1.5]
    assert result.accuracy.tolist() == [0.5]


def test_shaping_applies_where_accuracy_does_not():
    config = RewardConfig(overlong=OverlongConfig(buffer=2), length=CosineLengthConfig())
    result = CompositeReward(config, 4).score([row(reference="", ids=(1, 2, 3))])
    np.testing.assert_allclose(result.total, [0.4 - 0.5], rtol=1e-6)


def test_a_section_s_own_limit_comes_before_the_rollout_s():
    overlong, length = OverlongConfig(buffer=2, limit=4), CosineLengthConfig(limit=4)
    for most in (None, 4, 100):
        result = CompositeReward(RewardConfig(overlong=overlong, length=length), most).score([row(ids=(1, 2, 3))])
        assert result.components["overlong"].tolist() == [-0.5]
        assert result.components["length"][0] == pytest.approx(1.5 - math.sqrt(2) / 4)


@pytest.mark.parametrize(
    ("sections", "most", "message"),
    [
        ({"overlong": OverlongConfig(buffer=2)}, None, "^overlong.limit is None, but .* max_completion_tokens"),
        ({"length": CosineLengthConfig()}, None, "^length.limit is None, but .* max_completion_tokens"),
        ({"overlong": OverlongConfig(buffer=9)}, 8, "^overlong.buffer is 9, but it must be at most 8"),
        ({"overlong": OverlongConfig(buffer=2, limit=9)}, 8, "^overlong.limit is 9, but it must be at most 8"),
        ({"length": CosineLengthConfig(limit=9)}, 8, "^length.limit is 9, but it must be at most 8"),
    ],
)
def test_a_limit_that_is_not_known_or_out_of_reach_is_refused(sections, most, message):
    with pytest.raises(ValueError, match=message):
        CompositeReward(RewardConfig(**sections), most)


def test_repetition_needs_no_limit():
    result = CompositeReward(RewardConfig(repetition=RepetitionConfig(ngram=1))).score([row(ids=(1, 1))])
    assert result.components["repetition_penalty"].tolist() == [-0.5]


def test_weights_given_to_score_replace_the_configured_ones_by_name():
    name = "rewards_of_a_user:brevity"
    config = RewardConfig(format_weight=0.25, extras={name: 1.0}, overlong=OverlongConfig(buffer=2))
    reward = CompositeReward(config, 4)
    configured = {"accuracy": 1.0, "format": 0.25, "termination": 0.2, "overlong": 1.0, name: 1.0}
    assert reward.weights == reward.score([]).weights == configured
    rows = [row(ids=(1, 2, 3))]  # components 1, 1, 1, -0.5, -0.3
    result = reward.score(rows, {"format": 0.5, "termination": 0.0, "overlong": 2.0, name: 0.0})
    np.testing.assert_allclose(result.total, [1 + 0.5 - 1.0])
    assert result.weights == {"accuracy": 1.0, "format": 0.5, "termination": 0.0, "overlong": 2.0, name: 0.0}
    unchanged = reward.score(rows)
    np.testing.assert_allclose(unchanged.total, [1 + 0.25 + 0.2 - 0.5 - 0.3], rtol=1e-6)
    for component, values in unchanged.components.items():
        np.testing.assert_array_equal(values, result.components[component])


def test_the_total_is_the_sum_of_components_times_the_weights_of_the_result():
    reward = CompositeReward(SHAPING, 8)
    for weights in (None, {}, {"accuracy": 3.0, "length": 0.1, "overlong": -2.0}):
        result = reward.score([*ROWS, row(reference="")], weights)
        by_hand = sum(result.weights[name] * np.nan_to_num(values) for name, values in result.components.items())
        np.testing.assert_allclose(result.total, by_hand, rtol=1e-6, atol=1e-6)


def test_changing_a_result_s_weights_or_a_reward_s_does_not_change_the_reward():
    reward = CompositeReward()
    reward.weights["format"] = reward.score([row()]).weights["format"] = 9.0
    assert reward.weights["format"] == 0.2


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"overlong": 1.0}, "^weights names 'overlong', but .*accuracy, format, termination"),
        ({"format_weight": 1.0}, "^weights names 'format_weight'"),
        ({"format": math.nan}, r"^weights\['format'\] is nan"),
        ({"format": math.inf}, r"^weights\['format'\] is inf"),
    ],
)
def test_impossible_weights_are_refused_by_name(weights, message):
    with pytest.raises(ValueError, match=message):
        CompositeReward().score([row()], weights)


def test_metrics_have_the_same_statistics_for_shaping():
    metrics = CompositeReward(SHAPING, 8).score([row(ids=(1, 2)), row(ids=(1, 2, 3, 4, 5, 6))]).metrics()
    names = ("total", "accuracy", "format", "termination", "overlong", "repetition_penalty", "length")
    expected = {f"{name}/{statistic}" for name in names for statistic in ("mean", "std")}
    expected |= {f"{name}/{count}" for name in names[1:] for count in ("missing", "failed")} | {"accuracy/timed_out"}
    assert metrics.keys() == expected
    assert metrics["overlong/mean"] == -0.125


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accuracy": "answer_tags"}, r"accuracy is 'answer_tags', but it must be one of .*did you mean 'answer_tag'"),
        ({"format": "a b:c"}, "format is 'a b:c'"),
        ({"termination": "pkg.mod:"}, "termination is 'pkg.mod:'"),
        ({"extras": {"brevity": 1.0}}, "extras is 'brevity'"),
        ({"format_weight": math.nan}, "format_weight is nan"),
        ({"extras": {"a.b:c": math.inf}}, r"extras\['a.b:c'\] is inf"),
    ],
)
def test_impossible_configs_are_refused_by_field(options, message):
    with pytest.raises(ValueError, match=message):
        RewardConfig(**options)


@pytest.mark.parametrize("name", ["no_such_module_here:x", "rewards_of_a_user:missing"])
def test_a_path_that_leads_nowhere_is_refused(name):
    with pytest.raises(ValueError, match="cannot be loaded"):
        resolve_reward(name)


def test_a_path_to_something_that_is_no_function_is_refused():
    with pytest.raises(ValueError, match="is a int, not a function"):
        resolve_reward("rewards_of_a_user:number")


def test_every_named_reward_scores_a_row():
    for name in REWARD_NAMES:
        assert resolve_reward(name)(row()) in (0.0, 1.0, None), name


MEGABYTE = "<answer>" * 2**17


@pytest.mark.parametrize("text", ["9" * 2**20, "1," * 2**19, "(" * 2**20, MEGABYTE, "\\boxed{" * 2**17, "#" * 2**20])
def test_a_megabyte_of_anything_is_scored_in_moments(text):
    started = time.process_time()
    for name in REWARD_NAMES:
        expected = {"eos": (1.0,), "code": (None,), "reasoning_gym": (None,)}.get(name, (0.0,))
        if name not in ("ascii_only", "language_consistency"):
            assert resolve_reward(name)(row(text, reference="42")) in expected, name
    assert time.process_time() - started < 5


def test_ngrams_that_no_completion_is_long_enough_for_are_refused():
    config = RewardConfig(repetition=RepetitionConfig(ngram=17))
    with pytest.raises(ValueError, match=r"repetition\.ngram is 17, but it must be at most 16"):
        CompositeReward(config, 16)
    CompositeReward(config, 17)


GATED = RewardConfig(format_weight=0.25, termination_weight=0.5, gates={"format": "accuracy", "termination": "format"})


def test_a_gated_component_counts_only_where_its_gate_is_open():
    result = CompositeReward(GATED).score(ROWS)
    np.testing.assert_array_equal(result.accuracy, [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(result.components["format"], [1, 0, 0, 1, 0])  # raw: 1, 1, 0, 1, 0
    # Gates look at what a component is before its own gate: row 1 has the format, and its termination counts.
    np.testing.assert_array_equal(result.components["termination"], [1, 1, 0, 0, 0])  # raw: 1, 1, 1, 0, 0
    np.testing.assert_allclose(result.total, [1.75, 0.5, 1, 1.25, 0])
    assert result.gated == {"format": 2, "termination": 2}
    assert result.metrics()["format/gated"] == 2


def test_a_gated_accuracy_stands_beside_the_raw_one():
    result = CompositeReward(RewardConfig(gates={"accuracy": "format"}, format_weight=0, termination_weight=0)).score(ROWS)
    np.testing.assert_array_equal(result.accuracy, [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(result.components["gated_accuracy"], [1, 0, 0, 1, 0])
    np.testing.assert_array_equal(result.total, [1, 0, 0, 1, 0])
    assert (result.weights["accuracy"], result.weights["gated_accuracy"]) == (0.0, 1.0)


def test_a_gate_takes_a_punishment_away_too():
    config = RewardConfig(overlong=OverlongConfig(buffer=2), gates={"overlong": "accuracy"})
    result = CompositeReward(config, 4).score([row(ids=(1,) * 4), row("<answer>3</answer>", ids=(1,) * 4)])
    assert result.components["overlong"].tolist() == [-1, 0]


def test_a_gate_that_is_missing_is_shut_and_one_that_failed_makes_the_total_missing():
    rows = [row(ids=(1, 2)), row(prompt="2*1", ids=(1, 2))]
    result = CompositeReward(RewardConfig(accuracy="rewards_of_a_user:only_sums", gates={"format": "accuracy"})).score(rows)
    assert result.components["format"].tolist() == [1, 0]
    name = "rewards_of_a_user:fails_on_odd"
    result = CompositeReward(RewardConfig(extras={name: 0.0}, gates={"format": name})).score([row(), row(ids=(1,))])
    assert np.isnan(result.total).tolist() == [False, True]


def test_what_does_not_apply_stays_missing_behind_a_shut_gate():
    name = "rewards_of_a_user:not_a_number"
    result = CompositeReward(RewardConfig(format=name, gates={"format": "accuracy"})).score([row(""), row()])
    assert np.isnan(result.components["format"]).all() and result.gated["format"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gates": {"format": "overlong"}}, "gates has 'overlong', but it must name components"),
        ({"gates": {"formats": "accuracy"}}, "gates has 'formats'"),
        ({"gates": {"format": "format"}}, r"gates\['format'\] is 'format', but it must be another"),
        ({"gates": {"accuracy": "format"}, "length": CosineLengthConfig()}, "Gate length instead"),
    ],
)
def test_impossible_gates_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        RewardConfig(**options)


def test_joined_results_are_the_result_of_all_rows():
    name = "rewards_of_a_user:fails_on_odd"
    reward = CompositeReward(RewardConfig(extras={name: 1.0}, gates={"format": "accuracy"}))
    rows = [*ROWS, row(ids=(1,)), row(reference=""), row(ids=(3,))]
    whole, joined = reward.score(rows), joined_results([reward.score(rows[:6]), reward.score(rows[6:])])
    np.testing.assert_array_equal(whole.total, joined.total)
    for component, values in whole.components.items():
        np.testing.assert_array_equal(values, joined.components[component])
    assert [(each.component, each.row) for each in joined.failures] == [(name, 5), (name, 7)]
    for what in ("weights", "missing", "failed", "timed_out", "gated"):
        assert getattr(whole, what) == getattr(joined, what)


def test_answers_that_need_no_sympy_start_no_process():
    reward = CompositeReward(RewardConfig(accuracy="math"))
    reward.check()
    rows = [row(text) for text in (r"\boxed{2}", "<answer>3</answer>", "#### 2.0", "so it is 2.", r"\boxed{\sqrt{4}}", "")]
    assert reward.score(rows).accuracy.tolist() == [1, 0, 1, 1, 0, 0]
    assert reward.pool.pids == []


def test_answers_that_need_sympy_are_judged_in_the_pool():
    with CompositeReward(RewardConfig(accuracy="boxed")) as reward:
        rows = [row(rf"\boxed{{{text}}}", reference=r"\sqrt{8}") for text in (r"2\sqrt{2}", r"\sqrt 8", r"3\sqrt{2}", "2")]
        assert reward.score(rows).accuracy.tolist() == [1, 1, 0, 0]
        assert reward.pool.pids
    alone = CompositeReward(RewardConfig(accuracy="boxed", pool=PoolConfig(workers=0)))
    assert alone.score(rows).accuracy.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"code": CodeConfig()}, "^code is given, but .* are code: name one"),
        ({"math": MathConfig(), "accuracy": "code"}, "^math is given, but .*answer_tag"),
        ({"accuracy": "code", "pool": PoolConfig(timeout=60)}, r"^pool\.timeout is 60, but it must be at least 120 seconds"),
    ],
)
def test_a_section_that_no_reward_reads_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RewardConfig(**options)


def test_sections_reach_the_rewards_that_are_built_from_them():
    rows = [row(r"\boxed{3.1416}", reference="3.14159265")]
    for tolerance, expected in ((1e-6, 0.0), (1e-4, 1.0)):
        for name in ("boxed", "math"):
            reward = CompositeReward(RewardConfig(accuracy=name, math=MathConfig(tolerance=tolerance)))
            assert reward.score(rows).accuracy.tolist() == [expected]
    config = RewardConfig(language=LanguageConfig(scripts=("cyrillic",), weight=0.5), format_weight=0, termination_weight=0)
    result = CompositeReward(config).score([row("да"), row("yes"), row("2")])
    np.testing.assert_array_equal(result.components["language"], [1, 0, np.nan])
    np.testing.assert_array_equal(result.total, [0.5, 0, 0])
