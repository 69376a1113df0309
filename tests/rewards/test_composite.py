"""The composite reward: its sum, its parts, and rewards that do not apply or that fail."""

import logging
import math
import time

import numpy as np
import pytest

from grpo_jax.rewards import REWARDS, CompositeReward, RewardConfig, RewardInput, accuracy_reward, resolve_reward

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
    for name, reward in REWARDS.items():
        assert reward(row()) in (0.0, 1.0), name


MEGABYTE = "<answer>" * 2**17


@pytest.mark.parametrize("text", ["9" * 2**20, "1," * 2**19, "(" * 2**20, MEGABYTE, "\\boxed{" * 2**17, "#" * 2**20])
def test_a_megabyte_of_anything_is_scored_in_moments(text):
    started = time.process_time()
    for name, reward in REWARDS.items():
        assert reward(row(text, reference="42")) == (1.0 if name == "eos" else 0.0), name
    assert time.process_time() - started < 5
