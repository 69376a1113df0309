"""Schedules: hand-worked values, exact ends, controllers that reach their targets, states that survive JSON."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
import tiny_runs

from grpo_jax.training import schema
from grpo_jax.training.schedule_kinds import KINDS, ScheduleConfig
from grpo_jax.training.schedules import (
    QUANTITIES,
    SchedulesConfig,
    ScheduleState,
    advance_schedules,
    check_schedules,
    initial_schedules,
    needs,
    raise_value,
    scheduled_values,
)

BASES = {"kl_coef": 0.02, "format_weight": 0.2, "termination_weight": 0.2, "entropy_coef": 0.002}
OPTIONS = [field.name for field in dataclasses.fields(ScheduleConfig) if field.name != "kind"]

# Two values of each option, both in range and, on MEASURED, telling.
SAMPLES: dict[str, tuple[float, float]] = {
    "end": (0.001, 0.003),
    "steps": (4, 7),
    "target": (0.3, 0.6),
    "horizon": (100, 1000),
    "smoothing": (0.0, 0.8),
    "threshold": (0.5, 0.9),
    "decay": (0.5, 0.9),
    "floor": (0.0, 0.0019),
    "step_size": (0.0001, 0.0002),
    "ceiling": (0.0021, 0.003),
}
# Low, mixed and high measurements, one after the other; every name has the same.
MEASURED = [0.1] * 10 + np.random.default_rng(0).uniform(size=10).tolist() + [0.99] * 50


def one(quantity: str, kind: str, **options) -> SchedulesConfig:
    return SchedulesConfig(**{quantity: ScheduleConfig(kind=kind, **options)})


def run(config: SchedulesConfig, name: str, base: float, measured, *, rows: int = 16) -> list[float]:
    """The value in effect before each step, and after the last."""
    bases, total = BASES | {name: base}, len(measured)
    state, values = initial_schedules(config, bases), []
    for step, value in enumerate([*measured, None]):
        values.append(scheduled_values(config, bases, state, step, total)[name])
        state = advance_schedules(config, state, {QUANTITIES[name].measured: value}, rows)
    return values


def combinations() -> Iterator[tuple[str, str]]:
    for name, quantity in QUANTITIES.items():
        for kind in quantity.kinds:
            yield name, kind


def required(kind: str) -> dict[str, float]:
    return {option: SAMPLES[option][0] for option in KINDS[kind].required}


# The tables


def test_tables_cover_each_other() -> None:
    assert [field.name for field in dataclasses.fields(SchedulesConfig)] == [*QUANTITIES, "extras"]
    assert {kind for quantity in QUANTITIES.values() for kind in quantity.kinds} == set(KINDS)
    assert {option for kind in KINDS.values() for option in kind.options} == set(OPTIONS)
    described = schema.field_docs(ScheduleConfig)
    assert all(kind in described["kind"] for kind in KINDS)
    for kind, option in itertools.product(KINDS, OPTIONS):
        assert (option in KINDS[kind].options) == (kind in described[option])


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_option_changes_the_values_or_is_refused(kind, option) -> None:
    values = SAMPLES[option]
    if option not in KINDS[kind].options:
        for value in values:
            with pytest.raises(ValueError, match=rf"{option} is {value}, but the kind {kind} has no use for it"):
                ScheduleConfig(kind=kind, **required(kind), **{option: value})
        return
    name = next(name for name, quantity in QUANTITIES.items() if kind in quantity.kinds)
    low, high = (one(name, kind, **required(kind) | {option: value}) for value in values)
    assert run(low, name, 0.002, MEASURED) != run(high, name, 0.002, MEASURED)


@pytest.mark.parametrize(("name", "kind"), combinations())
def test_null_is_the_default_of_the_kind(name, kind) -> None:
    given = {option: value for option, value in KINDS[kind].defaults.items() if value is not None}
    null, explicit = one(name, kind, **required(kind)), one(name, kind, **required(kind), **given)
    assert run(null, name, 0.002, MEASURED) == run(explicit, name, 0.002, MEASURED)
    assert run(null, name, 0.002, MEASURED)[0] == 0.002  # every kind begins at the base


@pytest.mark.parametrize("kind", KINDS)
def test_required_options_are_asked_for(kind) -> None:
    for option in KINDS[kind].required:
        with pytest.raises(ValueError, match=rf"^{option} is None, but it must be given: the kind {kind}"):
            ScheduleConfig(kind=kind)


@pytest.mark.parametrize(
    ("kind", "option", "bad"),
    [
        ("linear", "end", math.inf),
        ("cosine", "steps", 0),
        ("adaptive_kl", "target", 0.0),
        ("adaptive_kl", "horizon", 0),
        ("saturation", "smoothing", 1.0),
        ("saturation", "threshold", 1.1),
        ("saturation", "decay", 1.0),
        ("saturation", "floor", -0.1),
        ("entropy_target", "target", math.nan),
        ("entropy_target", "step_size", 0.0),
        ("entropy_target", "ceiling", 0.0),
    ],
)
def test_options_out_of_range_are_refused(kind, option, bad) -> None:
    with pytest.raises(ValueError, match=rf"^{option} is {bad}, but it must be"):
        ScheduleConfig(kind=kind, **required(kind) | {option: bad})


def test_unknown_kinds_are_refused_with_the_known() -> None:
    with pytest.raises(ValueError, match=r"kind is 'cosin', but it must be one of constant, linear, cosine, adaptive_kl"):
        ScheduleConfig(kind="cosin")


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in QUANTITIES for k in KINDS if k not in QUANTITIES[n].kinds])
def test_a_quantity_refuses_kinds_that_it_does_not_allow(name, kind) -> None:
    with pytest.raises(ValueError, match=rf"^{name}\.kind is '{kind}', but it must be one of constant, linear, cosine"):
        one(name, kind, **required(kind))


@pytest.mark.parametrize("name", ["kl_coef", "entropy_coef"])
def test_the_coefficients_of_the_loss_do_not_end_below_0(name) -> None:
    with pytest.raises(ValueError, match=rf"^{name}\.end is -0\.1, but it must be 0 or more"):
        one(name, "linear", end=-0.1)


def test_messages_of_the_configuration_name_the_whole_key() -> None:
    @dataclasses.dataclass(frozen=True)
    class Run:
        schedules: SchedulesConfig = dataclasses.field(default_factory=SchedulesConfig)

    for tree, message in [
        ({"kl_coef": {"kind": "saturation"}}, r"^schedules\.kl_coef\.kind is 'saturation', but it must be one of"),
        ({"kl_coef": {"kind": "linear", "end": -1.0}}, r"^schedules\.kl_coef\.end is -1\.0"),
        ({"entropy_coef": {"end": 0.1}}, r"^schedules\.entropy_coef\.end is 0\.1, but the kind constant has no use"),
    ]:
        with pytest.raises(schema.ConfigError, match=message):
            schema.built(Run, schema.checked(Run, {"schedules": tree}, "test"))
    tree = {"schedules": {"kl_coef": {"kind": "adaptive_kl", "target": 0.1, "horizon": 500}}}
    built = schema.built(Run, schema.checked(Run, tree, "test"))
    assert built.schedules == one("kl_coef", "adaptive_kl", target=0.1, horizon=500)


# Paths


def test_constant_is_the_base() -> None:
    assert run(SchedulesConfig(), "kl_coef", 0.1, MEASURED) == [0.1] * (len(MEASURED) + 1)


@pytest.mark.parametrize(
    ("kind", "expected"), [("linear", [0.4, 0.3, 0.2, 0.1]), ("cosine", [0.4, 0.3414213562, 0.2, 0.0585786438])]
)
def test_paths_by_hand(kind, expected) -> None:
    values = run(one("kl_coef", kind, steps=4), "kl_coef", 0.4, [None] * 6)
    assert values[:4] == pytest.approx(expected) and values[4:] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize(("base", "end", "steps"), [(0.1, 0.3, 7), (0.7, 0.1, 3), (0.2, -0.1, 49), (0.3, 1e-17, None)])
def test_paths_run_from_the_base_to_the_end_exactly(kind, base, end, steps) -> None:
    total = 60
    values = run(one("format_weight", kind, end=end, steps=steps), "format_weight", base, [None] * total)
    last = steps or total
    assert values[0] == base and values[last:] == [end] * (total + 1 - last)
    ordered = itertools.pairwise(values[: last + 1])
    assert all(other > one_ if end > base else other < one_ for one_, other in ordered)


def test_a_path_in_a_phase_without_steps_is_at_its_base() -> None:
    state = initial_schedules(one("kl_coef", "linear"), BASES)
    assert scheduled_values(one("kl_coef", "linear"), BASES, state, 0, 0)["kl_coef"] == 0.02


# Controllers, by hand and against loops of their own


def test_adaptive_kl_by_hand() -> None:
    config = one("kl_coef", "adaptive_kl", target=0.1, horizon=1000)
    # Errors: +10 %, cut to +20 %, none, cut to −20 %; a tenth of each counts.
    values = run(config, "kl_coef", 0.02, [0.11, 0.5, 0.1, 0.0], rows=100)
    assert values == pytest.approx([0.02, 0.0202, 0.020604, 0.020604, 0.02019192])


def test_saturation_by_hand() -> None:
    config = one("format_weight", "saturation", smoothing=0.5, threshold=0.8, decay=0.5, floor=0.06)
    # Averages: 1, (1 + 2 · 0.5)/3 = 2/3, (1 + 2 · 0.5 + 4 · 1)/7 = 6/7, (6 + 8)/15 = 14/15, (14 + 0)/31.
    values = run(config, "format_weight", 0.2, [1.0, 0.5, 1.0, 1.0, 0.0])
    assert values == [0.2, 0.1, 0.1, 0.06, 0.06, 0.06]  # 0.05 would be below the floor


def test_saturation_at_the_threshold_itself_decays() -> None:
    config = one("format_weight", "saturation", threshold=0.95, decay=0.5)
    assert run(config, "format_weight", 1.0, [0.95] * 8) == [0.5**n for n in range(9)]
    assert run(config, "format_weight", 1.0, [0.9499] * 8) == [1.0] * 9


def test_entropy_target_by_hand() -> None:
    config = one("entropy_coef", "entropy_target", target=0.5, step_size=0.25, ceiling=0.75)
    # The coefficient: 0, 0.25, 0.5, 0.75, 0.75 (ceiling), 0.5 (above: off), 0.5 (at the target: on), 0.25 (off).
    values = run(config, "entropy_coef", 0.0, [0.1, 0.4, 0.2, 0.3, 0.9, 0.5, 0.6])
    assert values == [0.0, 0.25, 0.5, 0.75, 0.75, 0.0, 0.5, 0.0]
    assert run(config, "entropy_coef", 0.25, [0.9, 0.9, 0.4]) == [0.25, 0.0, 0.0, 0.25]  # never below 0


def oracle(kind: str, base: float, measured: list[float | None], rows: int) -> list[float]:
    """The defaults' formulas written out, over the measurements that there are."""
    value, shown, past, values = np.float64(base), np.float64(base), [], [base]
    for x in measured:
        if x is not None and not np.isnan(x):
            past.append(x)
            if kind == "adaptive_kl":
                value = shown = value + value * np.clip((x - 0.3) / 0.3, -0.2, 0.2) * rows / 10000
            if kind == "saturation":
                ages = np.arange(len(past))[::-1]
                if np.average(past, weights=0.9**ages) >= 0.95:
                    value = shown = value * 0.98
            if kind == "entropy_target":
                value = np.clip(value + 0.0001 * np.sign(0.3 - x), 0, 0.005)
                shown = value if x <= 0.3 else np.float64(0)
        values.append(float(shown))
    return values


@pytest.mark.parametrize(("name", "kind"), [pair for pair in combinations() if KINDS[pair[1]].advance])
@pytest.mark.parametrize("seed", range(5))
def test_controllers_agree_with_their_formulas_on_random_measurements(name, kind, seed) -> None:
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.permutation([0.25, 0.35, 0.97] * 2), 60)  # stretches on both sides of target and threshold
    noisy = levels + rng.uniform(-0.02, 0.02, levels.size)
    measured = [rng.choice([None, float("nan"), x], p=[0.1, 0.1, 0.8]) for x in noisy]
    values = run(one(name, kind, **required(kind)), name, 0.002, measured, rows=64)
    np.testing.assert_allclose(values, oracle(kind, 0.002, measured, 64), rtol=1e-9, atol=1e-15)
    assert len(set(values)) > 5


@pytest.mark.parametrize(("name", "kind"), combinations())
def test_a_missing_measurement_leaves_the_state_as_it_was(name, kind) -> None:
    config, measures = one(name, kind, **required(kind)), QUANTITIES[name].measured
    state = advance_schedules(config, initial_schedules(config, BASES), {measures: 0.97}, 8)
    others = {quantity.measured: 0.97 for quantity in QUANTITIES.values()} | {measures: None}
    for measured in ({}, {measures: None}, {measures: math.nan}, {measures: math.inf}, others):
        assert advance_schedules(config, state, measured, 8) == state


def test_quantities_move_by_their_own_measurements() -> None:
    config = SchedulesConfig(
        kl_coef=ScheduleConfig(kind="adaptive_kl", target=0.1),
        format_weight=ScheduleConfig(kind="saturation"),
        termination_weight=ScheduleConfig(kind="saturation"),
        entropy_coef=ScheduleConfig(kind="entropy_target", target=0.3),
    )
    start = initial_schedules(config, BASES)
    for name, quantity in QUANTITIES.items():
        state = advance_schedules(config, start, {quantity.measured: 0.99}, 8)
        assert [other for other in QUANTITIES if state[other] != start[other]] == [name]
    assert needs(config) == {"kl", "format", "termination", "entropy"}
    assert needs(SchedulesConfig()) == needs(one("kl_coef", "cosine")) == set()
    assert needs(dataclasses.replace(config, kl_coef=ScheduleConfig())) == {"format", "termination", "entropy"}


def test_unknown_measurements_are_refused() -> None:
    state = initial_schedules(SchedulesConfig(), BASES)
    with pytest.raises(ValueError, match="measured is 'k1', but it must be one of kl, format, termination, entropy"):
        advance_schedules(SchedulesConfig(), state, {"k1": 0.1}, 8)


# Closed loops


@pytest.mark.parametrize("base", [0.02, 0.1, 0.5])
def test_adaptive_kl_settles_at_its_target(base) -> None:
    """A policy whose KL is c/β, with noise of 5 %: β settles at c/target = 0.1, from either side, in 500 steps."""
    config, bases, rng = one("kl_coef", "adaptive_kl", target=0.1), BASES | {"kl_coef": base}, np.random.default_rng(1)
    state, kls = initial_schedules(config, bases), []
    for step in range(1000):
        kls.append(0.01 / scheduled_values(config, bases, state, step, 1000)["kl_coef"])
        state = advance_schedules(config, state, {"kl": kls[-1] * rng.uniform(0.95, 1.05)}, 256)
    np.testing.assert_allclose(kls[500:], 0.1, rtol=0.03)
    assert base == 0.1 or abs(kls[50] / 0.1 - 1) > 0.1  # it had a way to go


def test_entropy_target_keeps_a_falling_entropy_near_its_target() -> None:
    """Entropy falls by 0.001 a step and rises by 2 a step and unit of coefficient: 0.0005 holds it."""

    def entropies(config: SchedulesConfig) -> list[float]:
        bases, entropy, seen = BASES | {"entropy_coef": 0.0}, 0.6, []
        state = initial_schedules(config, bases)
        for step in range(1000):
            coef = scheduled_values(config, bases, state, step, 1000)["entropy_coef"]
            entropy = max(entropy - 0.001 + 2.0 * coef, 0.0)
            seen.append(entropy)
            state = advance_schedules(config, state, {"entropy": entropy}, 256)
        return seen

    held = entropies(one("entropy_coef", "entropy_target", target=0.3))
    np.testing.assert_allclose(held[350:], 0.3, atol=0.01)
    assert max(held[250:300]) > 0.3  # it did not start there
    assert entropies(SchedulesConfig())[-1] == 0.0  # nothing else holds it


# State


@pytest.mark.parametrize(("name", "kind"), combinations())
def test_a_state_read_back_from_json_goes_on_exactly(name, kind) -> None:
    config = one(name, kind, **required(kind))
    whole = read_back = initial_schedules(config, BASES)
    for step, value in enumerate(MEASURED):
        assert all(type(x) is float for entry in whole.values() for x in entry.values())
        read_back = json.loads(json.dumps(read_back, allow_nan=False))
        assert read_back == whole
        values = [scheduled_values(config, BASES, state, step, len(MEASURED)) for state in (whole, read_back)]
        assert values[0] == values[1]
        measured = {QUANTITIES[name].measured: np.float32(value)}
        whole, read_back = (advance_schedules(config, state, measured, 8) for state in (whole, read_back))
        if step == 7:
            whole, read_back = (raise_value(state, name, 1.5) for state in (whole, read_back))


def test_whole_numbers_become_floats() -> None:
    config = one("format_weight", "saturation")
    assert type(initial_schedules(config, BASES | {"format_weight": 1})["format_weight"]["value"]) is float


@pytest.mark.parametrize(("name", "kind"), combinations())
def test_a_raised_value_is_in_effect_and_stays(name, kind) -> None:
    config = one(name, kind, **required(kind))

    def values(raised_at: int | None) -> list[float]:
        state, shown = initial_schedules(config, BASES), []
        for step in range(20):
            state = raise_value(raise_value(state, name, 2.0), name, 1.5) if step == raised_at else state
            shown.append(scheduled_values(config, BASES, state, step, 20)[name])
            state = advance_schedules(config, state, {QUANTITIES[name].measured: 0.2}, 8)
        return shown

    plain, raised = values(None), values(5)
    assert raised[:5] == plain[:5]
    assert raised[5:] == pytest.approx([3.0 * value for value in plain[5:]], rel=1e-12)
    assert all(value > 0.0 for value in plain)


@pytest.mark.parametrize("factor", [1.0, 0.5, math.inf, math.nan])
def test_a_factor_that_raises_nothing_is_refused(factor) -> None:
    with pytest.raises(ValueError, match=rf"factor is {factor}, but it must be a finite number above 1"):
        raise_value(initial_schedules(SchedulesConfig(), BASES), "kl_coef", factor)


def test_an_unknown_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="quantity is 'beta', but it must be one of kl_coef"):
        raise_value(initial_schedules(SchedulesConfig(), BASES), "beta", 2.0)


@pytest.mark.parametrize(("name", "kind"), combinations())
def test_a_state_is_never_changed_in_place(name, kind) -> None:
    config = one(name, kind, **required(kind))
    state = initial_schedules(config, BASES)
    before: ScheduleState = json.loads(json.dumps(state))
    after = advance_schedules(config, state, {QUANTITIES[name].measured: 0.99}, 8)
    raise_value(after, name, 2.0)
    after[name]["multiplier"] = 7.0
    assert state == before


# Combinations


@pytest.mark.parametrize(("name", "kind"), combinations())
def test_schedules_that_have_an_effect_pass(name, kind) -> None:
    check_schedules(one(name, kind, **required(kind)), BASES, 100, rows=8)


@pytest.mark.parametrize(
    ("name", "schedule", "base", "message"),
    [
        ("kl_coef", {"kind": "adaptive_kl", "target": 0.1}, 0.0, "kind is 'adaptive_kl', but it must be constant when grpo"),
        ("kl_coef", {"kind": "linear", "end": 0.1}, 0.0, "kind is 'linear', but it must be constant when grpo.kl_coef is 0"),
        ("format_weight", {"kind": "saturation"}, 0.0, "kind is 'saturation', but it must be constant when the base value"),
        ("format_weight", {"kind": "saturation"}, -0.2, "kind is 'saturation', but it must be constant when the base value"),
        ("format_weight", {"kind": "saturation", "floor": 0.2}, 0.2, "floor is 0.2, but it must be below the base value"),
        ("format_weight", {"kind": "linear"}, 0.0, "end is 0.0, but it must be other than the base value, 0"),
        ("kl_coef", {"kind": "cosine", "end": 0.02}, 0.02, "end is 0.02, but it must be other than the base value, 0.02"),
        ("kl_coef", {"kind": "cosine", "steps": 101}, 0.02, "steps is 101, but it must be at most grpo.steps, 100"),
        ("entropy_coef", {"kind": "entropy_target", "target": 0.3}, 0.01, "ceiling is 0.005, but it must be at least the"),
        ("kl_coef", {"kind": "adaptive_kl", "target": 0.1, "horizon": 16}, 0.02, "horizon is 16, but it must be above 0.2"),
    ],
)
def test_schedules_without_effect_are_refused(name, schedule, base, message) -> None:
    config = SchedulesConfig(**{name: ScheduleConfig(**schedule)})
    with pytest.raises(ValueError) as refused:
        check_schedules(config, BASES | {name: base}, 100, rows=80)
    assert str(refused.value).startswith(f"schedules.{name}.{message}")


def test_schedules_at_the_edge_pass() -> None:
    check_schedules(SchedulesConfig(), dict.fromkeys(BASES, 0.0), 100)
    check_schedules(one("kl_coef", "linear", steps=100), BASES, 100)
    check_schedules(one("format_weight", "linear", end=0.1), BASES | {"format_weight": 0.0}, 100)
    check_schedules(one("entropy_coef", "entropy_target", target=0.3), BASES | {"entropy_coef": 0.0}, 100)
    check_schedules(one("kl_coef", "linear", steps=100), BASES, 0)  # the phase is skipped


def test_too_many_rows_for_the_horizon_are_refused_at_a_step_too() -> None:
    config = one("kl_coef", "adaptive_kl", target=0.1, horizon=20)
    state = initial_schedules(config, BASES)
    assert advance_schedules(config, state, {"kl": 0.0}, 99)["kl_coef"]["value"] > 0.0
    with pytest.raises(ValueError, match=r"^schedules\.kl_coef\.horizon is 20, but it must be above 0\.2 · 100 completions"):
        advance_schedules(config, state, {"kl": 0.0}, 100)


# Weights of further rewards


EXTRA = SchedulesConfig(extras={"my.rewards:brevity": ScheduleConfig(kind="linear", end=0.5, steps=4)})


def test_the_weight_of_a_further_reward_moves_as_the_others_do() -> None:
    bases = BASES | {"extras.my.rewards:brevity": 0.1, "extras.eos": 1.0}
    check_schedules(EXTRA, bases, 8, 8)
    state = initial_schedules(EXTRA, bases)
    values = [scheduled_values(EXTRA, bases, state, step, 8)["extras.my.rewards:brevity"] for step in range(6)]
    np.testing.assert_allclose(values, [0.1, 0.2, 0.3, 0.4, 0.5, 0.5])
    assert "extras.eos" not in scheduled_values(EXTRA, bases, state, 0, 8)
    assert advance_schedules(EXTRA, state, {"kl": 0.1}, 8) == state


def test_a_schedule_of_no_reward_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^schedules\.extras is 'my\.rewards:brevity'.*rewards\.extras: eos"):
        check_schedules(EXTRA, BASES | {"extras.eos": 1.0}, 8)
    with pytest.raises(ValueError, match=r"^extras\.eos\.kind is 'saturation'"):
        SchedulesConfig(extras={"eos": ScheduleConfig(kind="saturation")})


def test_a_run_file_gives_schedules_of_further_rewards_and_they_reach_the_reward(tmp_path) -> None:
    given = "schedules.extras={'tiny_runs:short': {kind: linear, end: 1.0, steps: 2}}"
    run = tiny_runs.Steps(tiny_runs.load(tmp_path, "rewards.extras={'tiny_runs:short': 0.5}", given))
    assert isinstance(run.config.schedules.extras["tiny_runs:short"], ScheduleConfig)
    assert schema.built(SchedulesConfig, schema.plain(run.config.schedules)) == run.config.schedules
    outcomes = [run.next() for _ in range(3)]
    assert [outcome.metrics["extras.tiny_runs:short"] for outcome in outcomes] == [0.5, 0.75, 1.0]
    assert [outcome.sampled.results[0].weights["tiny_runs:short"] for outcome in outcomes] == [0.5, 0.75, 1.0]
