"""The schedules of a run: β, the entropy coefficient, and the weights λ of rewards.

A schedule is a function of the GRPO step; a controller also follows what the steps measured (schedule_kinds.py). A step
reads `scheduled_values`, trains with them, and hands what it measured to `advance_schedules`.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from grpo_jax.training.schedule_kinds import KINDS, KL_ERROR_CLIP, Memory, ScheduleConfig
from grpo_jax.training.validation import require as _require

__all__ = [
    "EXTRAS",
    "QUANTITIES",
    "Quantity",
    "ScheduleState",
    "SchedulesConfig",
    "advance_schedules",
    "check_schedules",
    "initial_schedules",
    "needs",
    "quantity_of",
    "raise_value",
    "scheduled_values",
]

# What the schedules remember between two steps, for each quantity. It is JSON as it stands.
ScheduleState = dict[str, Memory]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulesConfig:
    """How the coefficients of the objective and the reward move during GRPO.

    Attributes:
        kl_coef: The schedule of grpo.kl_coef (β): constant, linear, cosine or adaptive_kl.
        format_weight: The schedule of rewards.format_weight: constant, linear, cosine or saturation.
        termination_weight: The schedule of rewards.termination_weight: constant, linear, cosine or saturation.
        entropy_coef: The schedule of grpo.entropy_coef: constant, linear, cosine or entropy_target.
        extras: The schedules of weights of rewards.extras, by the same names: constant, linear or cosine.
    """

    kl_coef: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    format_weight: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    termination_weight: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    entropy_coef: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    extras: Mapping[str, ScheduleConfig] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, schedule in self.by_name():
            quantity = quantity_of(name)
            _require(schedule.kind in quantity.kinds, f"{name}.kind", schedule.kind, f"one of {', '.join(quantity.kinds)}")
            _require(
                schedule.end is None or schedule.end >= quantity.least,
                f"{name}.end",
                schedule.end,
                f"{quantity.least:g} or more, like {quantity.key} itself",
            )

    def by_name(self) -> Iterator[tuple[str, ScheduleConfig]]:
        """Each schedule with the name of what it moves: one of `QUANTITIES`, or `extras.` and the name of a reward."""
        for name in QUANTITIES:
            yield name, getattr(self, name)
        for name, schedule in self.extras.items():
            yield EXTRAS + name, schedule


class Quantity(NamedTuple):
    """One coefficient that a schedule may move.

    Attributes:
        key: the key of its base value.
        kinds: the kinds that it allows.
        measured: what its controller follows: `kl` and `entropy` in nats per token, `format` and `termination` as
            success rates in [0, 1].
        least: the least value that it may have.
    """

    key: str
    kinds: tuple[str, ...]
    measured: str
    least: float


EXTRAS = "extras."
"""What the names of the weights of `rewards.extras` begin with."""

_BY_STEP = ("constant", "linear", "cosine")

QUANTITIES: dict[str, Quantity] = {
    "kl_coef": Quantity("grpo.kl_coef", (*_BY_STEP, "adaptive_kl"), "kl", 0.0),
    "format_weight": Quantity("rewards.format_weight", (*_BY_STEP, "saturation"), "format", -math.inf),
    "termination_weight": Quantity("rewards.termination_weight", (*_BY_STEP, "saturation"), "termination", -math.inf),
    "entropy_coef": Quantity("grpo.entropy_coef", (*_BY_STEP, "entropy_target"), "entropy", 0.0),
}


def quantity_of(name: str) -> Quantity:
    """What a schedule of this name moves."""
    if name.startswith(EXTRAS):
        return Quantity(f"rewards.{name}", _BY_STEP, "", -math.inf)
    return QUANTITIES[name]


def initial_schedules(config: SchedulesConfig, bases: Mapping[str, float]) -> ScheduleState:
    """The state before the first step, from the base value of each quantity."""
    return {
        name: {"multiplier": 1.0, **KINDS[schedule.kind].start(float(bases[name]))} for name, schedule in config.by_name()
    }


def scheduled_values(
    config: SchedulesConfig, bases: Mapping[str, float], state: ScheduleState, step: int, total_steps: int
) -> dict[str, float]:
    """The value of each quantity in effect during a step.

    Args:
        config: the schedules.
        bases: the base value of each quantity.
        state: the state after the steps before this one.
        step: GRPO steps done, 0 for the first.
        total_steps: GRPO steps of the phase.
    """
    values = {}
    for name, schedule in config.by_name():
        entry = state[name]
        value = KINDS[schedule.kind].value(schedule.options, float(bases[name]), entry, step, total_steps)
        values[name] = entry["multiplier"] * value
    return values


def advance_schedules(
    config: SchedulesConfig, state: ScheduleState, measured: Mapping[str, float | None], rows: int
) -> ScheduleState:
    """The state after a step; `state` itself is left as it was.

    Args:
        config: the schedules.
        state: the state before the step.
        measured: what the step measured, by the names of `needs`. A controller whose measurement is absent, None or
            not finite stays as it was.
        rows: completions of the step.

    Raises:
        ValueError: a name in `measured` is unknown, or `rows` is too many for the horizon of adaptive_kl.
    """
    known = [quantity.measured for quantity in QUANTITIES.values()]
    for name in measured:
        _require(name in known, "measured", name, f"one of {', '.join(known)}")
    _check_rows(config, rows)
    after = {}
    for name, schedule in config.by_name():
        advance, value = KINDS[schedule.kind].advance, measured.get(quantity_of(name).measured)
        after[name] = dict(state[name])
        if advance is not None and value is not None and math.isfinite(value):
            after[name] |= advance(schedule.options, state[name], float(value), rows)
    return after


def raise_value(state: ScheduleState, quantity: str, factor: float) -> ScheduleState:
    """The state with one quantity's value multiplied by `factor` from now on, whatever its kind.

    The factor stays: a path goes on at the multiplied height (an end of 0 stays 0), and a controller steers from
    there. `state` itself is left as it was.

    Raises:
        ValueError: the quantity is unknown, or the factor is not a finite number above 1.
    """
    _require(quantity in QUANTITIES, "quantity", quantity, f"one of {', '.join(QUANTITIES)}")
    _require(1.0 < factor < math.inf, "factor", factor, "a finite number above 1")
    raised = {**state[quantity], "multiplier": state[quantity]["multiplier"] * float(factor)}
    return {**state, quantity: raised}


def needs(config: SchedulesConfig) -> set[str]:
    """The names of the measurements that the controllers follow: a part of kl, format, termination, entropy."""
    return {quantity_of(name).measured for name, schedule in config.by_name() if KINDS[schedule.kind].advance is not None}


def check_schedules(config: SchedulesConfig, bases: Mapping[str, float], total_steps: int, rows: int | None = None) -> None:
    """Refuses schedules that would have no effect with these base values, or never end.

    Args:
        config: the schedules.
        bases: the base value of each quantity.
        total_steps: GRPO steps of the phase; 0 skips the phase, and with it the check.
        rows: completions of a step; None leaves the horizon of adaptive_kl unchecked.

    Raises:
        ValueError: the message names the key, for example `schedules.kl_coef.kind`.
    """
    if total_steps == 0:
        return
    extras = ", ".join(name.removeprefix(EXTRAS) for name in bases if name.startswith(EXTRAS))
    for name, schedule in config.by_name():
        key = f"schedules.{name}"
        _require(
            name in bases,
            "schedules.extras",
            name.removeprefix(EXTRAS),
            f"the name of a reward of rewards.extras: {extras or 'there is none'}",
        )
        base = float(bases[name])
        _require(
            name != "kl_coef" or base > 0.0 or schedule.kind == "constant",
            f"{key}.kind",
            schedule.kind,
            f"constant when grpo.kl_coef is {base:g}: no reference is loaded for a β of 0, so β can neither rise from it "
            "nor be steered, and a product never leaves 0. Set grpo.kl_coef above 0",
        )
        for option, value, rule in KINDS[schedule.kind].check(schedule.options, base, total_steps):
            _require(False, f"{key}.{option}", value, f"{rule} ({quantity_of(name).key} is the base)")
    if rows is not None:
        _check_rows(config, rows)


def _check_rows(config: SchedulesConfig, rows: int) -> None:
    """One step of adaptive_kl must leave β above 0: 1 − 0.2 · rows/horizon > 0."""
    _require(rows >= 1, "rows", rows, "at least 1")
    if config.kl_coef.kind == "adaptive_kl":
        horizon = config.kl_coef.options["horizon"]
        assert horizon is not None
        _require(
            horizon > KL_ERROR_CLIP * rows,
            "schedules.kl_coef.horizon",
            horizon,
            f"above {KL_ERROR_CLIP:g} · {rows} completions of a step: one step would take β to 0 or below",
        )
