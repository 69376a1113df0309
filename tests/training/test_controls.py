"""Coefficients and temperature move by schedules, measurements and alarms, and survive JSON exactly."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tiny_runs

from grpo_jax.training.config import RunConfig
from grpo_jax.training.controls import KL_RAISE, TEMPERATURE_FACTOR, Controls

ALL = (
    "schedules.kl_coef.kind=adaptive_kl",
    "schedules.kl_coef.target=0.1",
    "schedules.kl_coef.horizon=100",
    "schedules.format_weight.kind=saturation",
    "schedules.format_weight.threshold=0.5",
    "schedules.format_weight.decay=0.5",
    "schedules.termination_weight.kind=linear",
    "schedules.termination_weight.end=0.8",
    "grpo.entropy_coef=0",
    "schedules.entropy_coef.kind=entropy_target",
    "schedules.entropy_coef.target=2.0",
    "schedules.entropy_coef.step_size=0.001",
)
METRICS = {"kl": 0.3, "format": 0.9, "termination": 0.5, "entropy": 1.0, "reward": 0.4}


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return tiny_runs.load(tmp_path, *ALL)


def test_the_first_step_takes_the_configured_values(config: RunConfig) -> None:
    values = Controls.start(config).values(config, 0)
    assert values == {"kl_coef": 0.02, "format_weight": 0.2, "termination_weight": 0.2, "entropy_coef": 0.0}


def test_each_coefficient_follows_its_own_measurement(config: RunConfig) -> None:
    """KL 0.3 against a target of 0.1 is an error of 200 %, held at 20 %: β grows by 0.2 · 16 rows/100."""
    values = Controls.start(config).after_step(config, METRICS).values(config, 1)
    assert values["kl_coef"] == pytest.approx(0.02 * (1 + 0.2 * 16 / 100))
    assert values["format_weight"] == pytest.approx(0.1)
    assert values["termination_weight"] == pytest.approx(0.2 + 0.6 / 6)
    assert values["entropy_coef"] == pytest.approx(0.001)


def test_a_step_without_measurements_moves_no_controller(config: RunConfig) -> None:
    controls = Controls.start(config)
    assert controls.after_step(config, {"kl": None, "reward": 1.0}) == controls


def test_raising_the_kl_doubles_it_and_nothing_else(config: RunConfig) -> None:
    controls = Controls.start(config)
    raised = controls.after_alarm("raise_kl")
    before, after = controls.values(config, 0), raised.values(config, 0)
    assert KL_RAISE == 2.0 and after == before | {"kl_coef": 2 * before["kl_coef"]}
    assert raised.after_alarm("raise_kl").values(config, 0)["kl_coef"] == 4 * before["kl_coef"]
    assert raised.sampler(config) == controls.sampler(config)
    later = raised.after_step(config, METRICS).values(config, 1)
    assert later["kl_coef"] == pytest.approx(2 * controls.after_step(config, METRICS).values(config, 1)["kl_coef"])


def test_lowering_the_temperature_multiplies_it_and_nothing_else(tmp_path: Path) -> None:
    config = tiny_runs.load(tmp_path, "rollout.sampler.temperature=0.8", "rollout.sampler.top_k=9")
    controls = Controls.start(config)
    assert controls.sampler(config) == config.rollout.sampler
    cooler = controls.after_alarm("lower_temperature").after_alarm("lower_temperature")
    sampler = dataclasses.replace(config.rollout.sampler, temperature=0.8 * (TEMPERATURE_FACTOR * TEMPERATURE_FACTOR))
    assert cooler.sampler(config) == sampler and TEMPERATURE_FACTOR < 1
    assert cooler.values(config, 0) == controls.values(config, 0)
    assert cooler.after_step(config, METRICS).temperature_factor == cooler.temperature_factor


def test_stopping_changes_nothing(config: RunConfig) -> None:
    controls = Controls.start(config)
    assert controls.after_alarm("stop") == controls


def test_controls_survive_json_to_the_bit(config: RunConfig) -> None:
    controls = Controls.start(config).after_alarm("raise_kl").after_alarm("lower_temperature")
    for _ in range(5):
        controls = controls.after_step(config, METRICS)
        again = Controls.from_json(json.loads(json.dumps(controls.to_json())))
        assert again == controls and again.values(config, 3) == controls.values(config, 3)


def test_every_action_of_an_alarm_is_known(config: RunConfig) -> None:
    from grpo_jax.training.monitor import ACTIONS

    for action in ACTIONS:
        Controls.start(config).after_alarm(action)
