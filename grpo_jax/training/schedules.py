"""Schedules and controllers of coefficients: β, the entropy coefficient, and the weights λ of format and termination.

All is plain arithmetic on the host. A schedule is a function of the GRPO step; a controller also follows what the steps
measured, and what it remembers is a state of JSON floats, so that a resumed run goes on exactly where it stood.

A step reads `scheduled_values`, trains with them, and hands what it measured to `advance_schedules`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from grpo_jax.training.validation import require as _require

__all__ = [
    "KINDS",
    "QUANTITIES",
    "Kind",
    "Quantity",
    "ScheduleConfig",
    "ScheduleState",
    "SchedulesConfig",
    "advance_schedules",
    "check_schedules",
    "initial_schedules",
    "needs",
    "raise_value",
    "scheduled_values",
]

# What the schedules remember between two steps: floats by name, for each quantity. It is JSON as it stands.
ScheduleState = dict[str, dict[str, float]]

_Entry = dict[str, float]
_Options = Mapping[str, float | None]

# How far the relative error of one step counts, in Ziegler et al. (1909.08593).
_KL_ERROR_CLIP = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How one coefficient moves from its base value, which is the coefficient's own key (`grpo.kl_coef` and so on).

    An option that is null takes the default of its kind; one that the kind has no use for must be null.

    Attributes:
        kind: `constant`; `linear` or `cosine` from the base to `end`; `adaptive_kl` follows a target KL;
            `saturation` decays a reward's weight while its success rate is high; `entropy_target` follows a target
            entropy.
        end: linear, cosine: the value after `steps`, held from then on; null is 0.
        steps: linear, cosine: GRPO steps from the base to `end`; null is all steps of the phase.
        target: adaptive_kl: the KL to the reference to hold; entropy_target: the entropy to hold. In nats per token;
            both kinds need it.
        horizon: adaptive_kl: completions over which an error of 100 % would double the value, were errors not cut
            off at 20 %; null is 10000. More is slower.
        smoothing: saturation: the share of the past in the moving average of the success rate; 0 takes the last rate
            alone; null is 0.9.
        threshold: saturation: the averaged success rate at and above which the value decays; null is 0.95.
        decay: saturation: what the value is multiplied by after such a step; null is 0.98.
        floor: saturation: the value below which it does not decay; null is 0.
        step_size: entropy_target: what is added to or taken from the coefficient after a step; null is 0.0001.
        ceiling: entropy_target: the most that the coefficient grows to; null is 0.005.
    """

    kind: str = "constant"
    end: float | None = None
    steps: int | None = None
    target: float | None = None
    horizon: int | None = None
    smoothing: float | None = None
    threshold: float | None = None
    decay: float | None = None
    floor: float | None = None
    step_size: float | None = None
    ceiling: float | None = None

    def __post_init__(self) -> None:
        _require(self.kind in KINDS, "kind", self.kind, f"one of {', '.join(KINDS)}")
        for name, (holds, rule) in _RANGES.items():
            value = getattr(self, name)
            if value is None:
                _require(
                    name not in KINDS[self.kind].required,
                    name,
                    value,
                    f"given: the kind {self.kind} has no default for it. It is {rule}",
                )
                continue
            if name not in KINDS[self.kind].options:
                users = ", ".join(kind for kind in KINDS if name in KINDS[kind].options)
                raise ValueError(
                    f"{name} is {value!r}, but the kind {self.kind} has no use for it; leave it null, "
                    f"or choose one of {users}"
                )
            _require(holds(value), name, value, rule)

    @property
    def options(self) -> dict[str, float | None]:
        """The options of the kind, defaults filled in. `steps` stays None for all steps of the phase."""
        given = {name: getattr(self, name) for name in KINDS[self.kind].options}
        return {name: KINDS[self.kind].defaults.get(name) if value is None else value for name, value in given.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulesConfig:
    """How the coefficients of the objective and the reward move during GRPO.

    Attributes:
        kl_coef: The schedule of grpo.kl_coef (β): constant, linear, cosine or adaptive_kl.
        format_weight: The schedule of rewards.format_weight: constant, linear, cosine or saturation.
        termination_weight: The schedule of rewards.termination_weight: constant, linear, cosine or saturation.
        entropy_coef: The schedule of grpo.entropy_coef: constant, linear, cosine or entropy_target.
    """

    kl_coef: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    format_weight: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    termination_weight: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    entropy_coef: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        for name, quantity in QUANTITIES.items():
            schedule: ScheduleConfig = getattr(self, name)
            _require(schedule.kind in quantity.kinds, f"{name}.kind", schedule.kind, f"one of {', '.join(quantity.kinds)}")
            _require(
                schedule.end is None or schedule.end >= quantity.least,
                f"{name}.end",
                schedule.end,
                f"{quantity.least:g} or more, like {quantity.key} itself",
            )


# The kinds. `start` makes what a kind remembers, `value` reads it, `advance` moves it on after a step.


def _remember_nothing(base: float) -> _Entry:
    return {}


def _remember_value(base: float) -> _Entry:
    return {"value": base}


def _base_value(options: _Options, base: float, entry: _Entry, step: int, total_steps: int) -> float:
    return base


def _entry_value(options: _Options, base: float, entry: _Entry, step: int, total_steps: int) -> float:
    return entry["value"]


def _between(share_left: Callable[[float], float]) -> Callable[[_Options, float, _Entry, int, int], float]:
    """A path from the base to `end`; `share_left` is 1 at progress 0 and 0 at progress 1, exactly."""

    def value(options: _Options, base: float, entry: _Entry, step: int, total_steps: int) -> float:
        steps, end = options["steps"], _number(options, "end")
        share = share_left(min(step / max(total_steps if steps is None else steps, 1), 1.0))
        # The weighted mean, not base + (end − base) · t: with a share of 1 or 0 it is the base or the end to the bit.
        return share * base + (1.0 - share) * end

    return value


def _check_path(options: _Options, base: float, total_steps: int) -> Iterator[tuple[str, object, str]]:
    steps, end = options["steps"], options["end"]
    if end == base:
        yield "end", end, f"other than the base value, {base:g}: the schedule would change nothing. Choose kind constant"
    if steps is not None and steps > total_steps:
        yield "steps", steps, f"at most grpo.steps, {total_steps}: the schedule would never reach its end"


def _advance_adaptive_kl(options: _Options, entry: _Entry, measured: float, rows: int) -> _Entry:
    """β ← β · (1 + clip(KL/target − 1, −0.2, 0.2) · rows/horizon): Ziegler et al. 2019 (1909.08593).

    Their KL is that of a whole completion; here KL and target are both per token, and their ratio is all that counts.
    """
    error = measured / _number(options, "target") - 1.0
    clipped = min(max(error, -_KL_ERROR_CLIP), _KL_ERROR_CLIP)
    return {"value": entry["value"] * (1.0 + clipped * rows / _number(options, "horizon"))}


def _remember_average(base: float) -> _Entry:
    return {"value": base, "average": 0.0, "weight": 0.0}


def _advance_saturation(options: _Options, entry: _Entry, measured: float, rows: int) -> _Entry:
    """λ ← max(λ · decay, floor) where the moving average of the success rate is at or above the threshold.

    The value never grows back, even when the rate falls again; give a floor to keep a part of it.

    The average is freed from its start at 0 as Adam's is (1412.6980, section 3): it is the mean of the rates so far,
    their weights falling by `smoothing` a step back. In this form equal rates average to that rate exactly.
    """
    smoothing = _number(options, "smoothing")
    weight = smoothing * entry["weight"] + (1.0 - smoothing)
    average = entry["average"] + (1.0 - smoothing) / weight * (measured - entry["average"])
    value = entry["value"]
    if average >= _number(options, "threshold"):
        value = max(value * _number(options, "decay"), _number(options, "floor"))
    return {"value": value, "average": average, "weight": weight}


def _check_saturation(options: _Options, base: float, total_steps: int) -> Iterator[tuple[str, object, str]]:
    floor = _number(options, "floor")
    if base <= 0.0:
        yield "kind", "saturation", f"constant when the base value is {base:g}: nothing is left to decay. Raise the base"
    elif floor >= base:
        yield "floor", floor, f"below the base value, {base:g}: the weight would never decay"


def _remember_gate(base: float) -> _Entry:
    return {"value": base, "in_effect": 1.0}


def _gated_value(options: _Options, base: float, entry: _Entry, step: int, total_steps: int) -> float:
    return entry["value"] * entry["in_effect"]


def _advance_entropy_target(options: _Options, entry: _Entry, measured: float, rows: int) -> _Entry:
    """c ← c ± step_size, up below the target and down above it, in [0, ceiling]; in effect only at or below the target.

    Skywork-OR1's adaptive entropy control (2505.22312, section 3.2.5): α_k = c_k · 1{entropy ≤ target}. There the gate
    reads the entropy of the rollout that is trained on; here it reads that of the step before, which is the last one
    known when a step begins. Until a first entropy is measured the base is in effect.
    """
    target = _number(options, "target")
    direction = (measured < target) - (measured > target)
    value = entry["value"] + direction * _number(options, "step_size")
    return {"value": min(max(value, 0.0), _number(options, "ceiling")), "in_effect": float(measured <= target)}


def _check_entropy_target(options: _Options, base: float, total_steps: int) -> Iterator[tuple[str, object, str]]:
    ceiling = _number(options, "ceiling")
    if not 0.0 <= base <= ceiling:
        yield "ceiling", ceiling, f"at least the base value, {base:g}, which must be 0 or more. Raise it, or lower the base"


def _check_nothing(options: _Options, base: float, total_steps: int) -> Iterator[tuple[str, object, str]]:
    yield from ()


def _number(options: _Options, name: str) -> float:
    value = options[name]
    assert value is not None
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of schedule.

    Attributes:
        required: options that must be given.
        defaults: options that may be null, and what they are then.
        start: from the base value, what the kind remembers.
        value: from options, base value, what is remembered, GRPO step and steps of the phase, the value in effect.
        advance: from options, what is remembered, the quantity's measurement and the rows of the step, what is
            remembered next; None for a kind that follows the step alone.
        check: from options, base value and steps of the phase: option, value and rule of each that cannot work.
    """

    required: tuple[str, ...] = ()
    defaults: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    start: Callable[[float], _Entry] = _remember_nothing
    value: Callable[[_Options, float, _Entry, int, int], float] = _base_value
    advance: Callable[[_Options, _Entry, float, int], _Entry] | None = None
    check: Callable[[_Options, float, int], Iterator[tuple[str, object, str]]] = _check_nothing

    @property
    def options(self) -> tuple[str, ...]:
        """The options that the kind has a use for."""
        return (*self.required, *self.defaults)


_PATH: Mapping[str, float | None] = {"end": 0.0, "steps": None}

KINDS: dict[str, Kind] = {
    "constant": Kind(),
    "linear": Kind(defaults=_PATH, value=_between(lambda progress: 1.0 - progress), check=_check_path),
    "cosine": Kind(
        defaults=_PATH, value=_between(lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress))), check=_check_path
    ),
    "adaptive_kl": Kind(
        required=("target",),
        defaults={"horizon": 10_000},
        start=_remember_value,
        value=_entry_value,
        advance=_advance_adaptive_kl,
    ),
    "saturation": Kind(
        defaults={"smoothing": 0.9, "threshold": 0.95, "decay": 0.98, "floor": 0.0},
        start=_remember_average,
        value=_entry_value,
        advance=_advance_saturation,
        check=_check_saturation,
    ),
    # Step size and ceiling are those of the training scripts released with Skywork-OR1, whose base is 0.
    "entropy_target": Kind(
        required=("target",),
        defaults={"step_size": 0.0001, "ceiling": 0.005},
        start=_remember_gate,
        value=_gated_value,
        advance=_advance_entropy_target,
        check=_check_entropy_target,
    ),
}

# Each option's range, whatever the kind.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "end": (math.isfinite, "a finite number"),
    "steps": (lambda value: value >= 1, "at least 1"),
    "target": (lambda value: 0.0 < value < math.inf, "a finite number above 0, in nats per token"),
    "horizon": (lambda value: value >= 1, "at least 1"),
    "smoothing": (lambda value: 0.0 <= value < 1.0, "in [0, 1)"),
    "threshold": (lambda value: 0.0 < value <= 1.0, "in (0, 1]"),
    "decay": (lambda value: 0.0 <= value < 1.0, "in [0, 1)"),
    "floor": (lambda value: 0.0 <= value < math.inf, "a finite number, 0 or more"),
    "step_size": (lambda value: 0.0 < value < math.inf, "a finite number above 0"),
    "ceiling": (lambda value: 0.0 < value < math.inf, "a finite number above 0"),
}


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


_BY_STEP = ("constant", "linear", "cosine")

QUANTITIES: dict[str, Quantity] = {
    "kl_coef": Quantity("grpo.kl_coef", (*_BY_STEP, "adaptive_kl"), "kl", 0.0),
    "format_weight": Quantity("rewards.format_weight", (*_BY_STEP, "saturation"), "format", -math.inf),
    "termination_weight": Quantity("rewards.termination_weight", (*_BY_STEP, "saturation"), "termination", -math.inf),
    "entropy_coef": Quantity("grpo.entropy_coef", (*_BY_STEP, "entropy_target"), "entropy", 0.0),
}


def initial_schedules(config: SchedulesConfig, bases: Mapping[str, float]) -> ScheduleState:
    """The state before the first step, from the base value of each quantity."""
    return {
        name: {"multiplier": 1.0, **KINDS[schedule.kind].start(float(bases[name]))} for name, schedule in _schedules(config)
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
    for name, schedule in _schedules(config):
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
    for name, schedule in _schedules(config):
        advance, value = KINDS[schedule.kind].advance, measured.get(QUANTITIES[name].measured)
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
    return {QUANTITIES[name].measured for name, schedule in _schedules(config) if KINDS[schedule.kind].advance is not None}


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
    for name, schedule in _schedules(config):
        key, base = f"schedules.{name}", float(bases[name])
        _require(
            name != "kl_coef" or base > 0.0 or schedule.kind == "constant",
            f"{key}.kind",
            schedule.kind,
            f"constant when grpo.kl_coef is {base:g}: no reference is loaded for a β of 0, so β can neither rise from it "
            "nor be steered, and a product never leaves 0. Set grpo.kl_coef above 0",
        )
        for option, value, rule in KINDS[schedule.kind].check(schedule.options, base, total_steps):
            _require(False, f"{key}.{option}", value, f"{rule} ({QUANTITIES[name].key} is the base)")
    if rows is not None:
        _check_rows(config, rows)


def _check_rows(config: SchedulesConfig, rows: int) -> None:
    """One step of adaptive_kl must leave β above 0: 1 − 0.2 · rows/horizon > 0."""
    _require(rows >= 1, "rows", rows, "at least 1")
    if config.kl_coef.kind == "adaptive_kl":
        horizon = _number(config.kl_coef.options, "horizon")
        _require(
            horizon > _KL_ERROR_CLIP * rows,
            "schedules.kl_coef.horizon",
            horizon,
            f"above {_KL_ERROR_CLIP:g} · {rows} completions of a step: one step would take β to 0 or below",
        )


def _schedules(config: SchedulesConfig) -> Iterator[tuple[str, ScheduleConfig]]:
    for name in QUANTITIES:
        yield name, getattr(config, name)
