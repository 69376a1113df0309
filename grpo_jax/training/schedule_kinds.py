"""The kinds of schedules: how one coefficient moves with the GRPO step, or follows what the steps measured.

All is plain arithmetic on the host. What a controller remembers is JSON floats, so that a resumed run goes on exactly where
it stood.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from grpo_jax.training.validation import require as _require

__all__ = ["KINDS", "KL_ERROR_CLIP", "Kind", "Memory", "ScheduleConfig"]

# What one schedule remembers between two steps.
Memory = dict[str, float]

_Options = Mapping[str, float | None]

# How far the relative error of one step counts, in Ziegler et al. (1909.08593).
KL_ERROR_CLIP = 0.2


# The kinds. `start` makes what a kind remembers, `value` reads it, `advance` moves it on after a step.


def _remember_nothing(base: float) -> Memory:
    return {}


def _remember_value(base: float) -> Memory:
    return {"value": base}


def _base_value(options: _Options, base: float, entry: Memory, step: int, total_steps: int) -> float:
    return base


def _entry_value(options: _Options, base: float, entry: Memory, step: int, total_steps: int) -> float:
    return entry["value"]


def _between(share_left: Callable[[float], float]) -> Callable[[_Options, float, Memory, int, int], float]:
    """A path from the base to `end`; `share_left` is 1 at progress 0 and 0 at progress 1, exactly."""

    def value(options: _Options, base: float, entry: Memory, step: int, total_steps: int) -> float:
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


def _advance_adaptive_kl(options: _Options, entry: Memory, measured: float, rows: int) -> Memory:
    """β ← β · (1 + clip(KL/target − 1, −0.2, 0.2) · rows/horizon): Ziegler et al. 2019 (1909.08593).

    Their KL is that of a whole completion; here KL and target are both per token, and their ratio is all that counts.
    """
    error = measured / _number(options, "target") - 1.0
    clipped = min(max(error, -KL_ERROR_CLIP), KL_ERROR_CLIP)
    return {"value": entry["value"] * (1.0 + clipped * rows / _number(options, "horizon"))}


def _remember_average(base: float) -> Memory:
    return {"value": base, "average": 0.0, "weight": 0.0}


def _advance_saturation(options: _Options, entry: Memory, measured: float, rows: int) -> Memory:
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


def _remember_gate(base: float) -> Memory:
    return {"value": base, "in_effect": 1.0}


def _gated_value(options: _Options, base: float, entry: Memory, step: int, total_steps: int) -> float:
    return entry["value"] * entry["in_effect"]


def _advance_entropy_target(options: _Options, entry: Memory, measured: float, rows: int) -> Memory:
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
    start: Callable[[float], Memory] = _remember_nothing
    value: Callable[[_Options, float, Memory, int, int], float] = _base_value
    advance: Callable[[_Options, Memory, float, int], Memory] | None = None
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
