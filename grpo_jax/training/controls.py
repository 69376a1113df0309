"""What a run may change on its way without compiling a new loss: coefficients, reward weights, temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from grpo_jax.generation import SamplerConfig
from grpo_jax.training.config import RunConfig
from grpo_jax.training.schedules import (
    ScheduleState,
    advance_schedules,
    initial_schedules,
    raise_value,
    scheduled_values,
)

KL_RAISE = 2.0
"""What the action `raise_kl` of an alarm multiplies the KL coefficient by."""

TEMPERATURE_FACTOR = 0.9
"""What the action `lower_temperature` of an alarm multiplies the sampling temperature by."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Controls:
    """The state of schedules and controllers, and what alarms have changed; JSON all through.

    Attributes:
      schedules: the state of the schedules.
      temperature_factor: what alarms have multiplied the sampling temperature by.
    """

    schedules: ScheduleState
    temperature_factor: float = 1.0

    @classmethod
    def start(cls, config: RunConfig) -> Self:
        """The controls before the first step of GRPO."""
        return cls(schedules=initial_schedules(config.schedules, config.coefficients))

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The controls that `to_json` gave."""
        return cls(**document)

    def to_json(self) -> dict[str, Any]:
        """A JSON document that `from_json` reads back."""
        return dataclasses.asdict(self)

    def values(self, config: RunConfig, step: int) -> dict[str, float]:
        """The coefficients and weights in effect during a step (from 0), by the names of `SchedulesConfig`."""
        return scheduled_values(config.schedules, config.coefficients, self.schedules, step, config.grpo.steps)

    def sampler(self, config: RunConfig) -> SamplerConfig:
        """The distribution that completions are drawn from now."""
        sampler = config.rollout.sampler
        return dataclasses.replace(sampler, temperature=sampler.temperature * self.temperature_factor)

    def after_step(self, config: RunConfig, metrics: Mapping[str, float | None]) -> Controls:
        """The controls after a step that measured `metrics`."""
        measured = {name: metrics.get(name) for name in ("kl", "format", "termination", "entropy")}
        schedules = advance_schedules(config.schedules, self.schedules, measured, config.grpo.rows)
        return dataclasses.replace(self, schedules=schedules)

    def after_alarm(self, action: str) -> Controls:
        """The controls after the action of an alarm, `stop` apart, which changes none."""
        return _ACTIONS[action](self)


_ACTIONS = {
    "stop": lambda controls: controls,
    "raise_kl": lambda controls: dataclasses.replace(
        controls, schedules=raise_value(controls.schedules, "kl_coef", KL_RAISE)
    ),
    "lower_temperature": lambda controls: dataclasses.replace(
        controls, temperature_factor=controls.temperature_factor * TEMPERATURE_FACTOR
    ),
}
