"""The monitor names each failure from the metrics alone, and is silent about healthy runs."""

import dataclasses
import math
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_jax.training import schema
from grpo_jax.training.config import RunConfig
from grpo_jax.training.monitor import ACTIONS, ALARMS, Alarm, Monitor, MonitorConfig, parse_actions

PAGE = Path(__file__).parents[2] / "docs" / "alarms.md"

Run = list[dict[str, Any]]
Curve = Callable[[float], float]

# Standard deviation between the steps of a run of 256 rows. KL's is a share of itself: its noise grows with it.
NOISE = {
    "accuracy": 0.03,
    "reward": 0.03,
    "completion_length_mean": 0.7,
    "entropy": 0.005,
    "frac_zero_std": 0.06,
    "repetition": 0.01,
}
STEADY: Mapping[str, Curve] = {
    "accuracy": lambda t: 0.42,
    "reward": lambda t: 0.80,
    "completion_length_mean": lambda t: 40.0,
    "truncated_fraction": lambda t: 0.0,
    "entropy": lambda t: 1.2,
    "kl": lambda t: 0.02,
    "frac_zero_std": lambda t: 0.3,
    "repetition": lambda t: 0.05,
    "mismatch_kl": lambda t: 1e-10,
    "ess": lambda t: 1.0,
}


def between(start: float, end: float) -> Curve:
    """A straight line over the run."""
    return lambda t: start + (end - start) * t


def saturating(start: float, end: float, rate: float = 5.0) -> Curve:
    """Fast at first, as real runs learn."""
    return lambda t: end + (start - end) * math.exp(-rate * t)


def run(steps: int, seed: int = 0, noise: Mapping[str, float] = NOISE, **curves: Curve) -> Run:
    """Records of a run: what is not given is steady. A curve's argument goes from 0 to 1 over the run."""
    draw = random.Random(seed)
    records: Run = []
    for step in range(1, steps + 1):
        values = {name: curve((step - 1) / max(steps - 1, 1)) for name, curve in {**STEADY, **curves}.items()}
        accuracy_noise = draw.gauss(0, noise.get("accuracy", 0))
        for name, deviation in noise.items():
            # The reward is accuracy and little else, so their noise is shared.
            values[name] += accuracy_noise if name in ("accuracy", "reward") else draw.gauss(0, deviation)
        values["kl"] *= math.exp(draw.gauss(0, 0.7))
        for name in ("accuracy", "frac_zero_std", "repetition"):
            values[name] = min(max(values[name], 0.0), 1.0)
        values["entropy"] = max(values["entropy"], 0.001)
        records.append({"phase": "grpo", "step": step, "total_step": 100 + step, **values})
    return records


def raised(records: Run, config: MonitorConfig | None = None) -> list[Alarm]:
    """All that a monitor says that is asked after each step."""
    monitor = Monitor(config or MonitorConfig())
    return [alarm for end in range(1, len(records) + 1) for alarm in monitor.check(records[:end])]


def names(records: Run, **settings: Any) -> set[str]:
    return {alarm.name for alarm in raised(records, MonitorConfig(**settings))}


def then(step: int, before: float, after: float, steps: int = 60) -> Curve:
    """A jump after so many of the steps."""
    return lambda t: before if t * (steps - 1) < step else after


FAILURES: dict[str, dict[str, Curve]] = {
    "entropy_collapse": {"entropy": saturating(1.2, 0.05, rate=6.0)},
    "length_gaming": {"completion_length_mean": between(40, 120), "truncated_fraction": between(0, 0.4)},
    "reward_hacking": {"reward": between(0.8, 1.2), "accuracy": between(0.42, 0.2)},
    "dead_groups": {"frac_zero_std": between(1.5, 1.5)},
    "kl_runaway": {"kl": lambda t: 0.01 * math.exp(7 * t)},
    "sampler_mismatch": {"mismatch_kl": between(3e-3, 5e-3)},
}
# Steps within which each is seen on these runs, which show it from the first step on.
WITHIN = {
    "entropy_collapse": 40,
    "length_gaming": 42,
    "reward_hacking": 36,
    "dead_groups": 10,
    "kl_runaway": 40,
    "sampler_mismatch": 10,
}


@pytest.mark.parametrize("name", ALARMS)
def test_each_failure_is_named_in_time_and_alone(name: str) -> None:
    for seed in range(20):
        alarms = raised(run(60, seed, **FAILURES[name]))
        assert {alarm.name for alarm in alarms} == {name}
        assert alarms[0].step <= WITHIN[name]


def test_entropy_collapse_says_how_far_entropy_fell_and_that_accuracy_did_not_gain() -> None:
    alarm, *_ = raised(run(60, noise={}, **FAILURES["entropy_collapse"]))
    assert alarm.message.startswith("entropy fell from 0.")
    assert alarm.message.endswith("while accuracy stayed at 42 %; repetition did not rise with it: from 5 % to 5 %")
    assert "grpo.entropy_coef" in alarm.advice and "rewards.repetition" not in alarm.advice


def test_entropy_collapse_into_loops_is_named_though_accuracy_gains() -> None:
    curves = {"entropy": saturating(1.2, 0.05), "accuracy": between(0.42, 0.8), "reward": between(0.8, 1.2)}
    assert names(run(60, **curves)) == set()
    alarm, *_ = raised(run(60, repetition=between(0.05, 0.7), **curves))
    assert alarm.name == "entropy_collapse" and "repetition rose with it, from " in alarm.message
    assert "while accuracy rose from " in alarm.message and "rewards.repetition" in alarm.advice


def test_entropy_is_compared_as_soon_as_two_windows_do_not_overlap() -> None:
    alarm, *_ = raised(run(40, noise={}, entropy=then(9, 1.2, 0.05, steps=40)))
    assert alarm.name == "entropy_collapse" and alarm.step == 20


def test_length_gaming_says_lengths_and_what_was_cut_off() -> None:
    alarm, *_ = raised(run(60, noise={}, **FAILURES["length_gaming"]))
    assert alarm.step == 30
    assert (
        alarm.message
        == "completions grew from 46.1 to 73.2 tokens over 30 steps while accuracy stayed at 42 %; 17 % were cut off"
    )


def test_length_may_grow_while_accuracy_gains() -> None:
    assert names(run(60, accuracy=between(0.3, 0.8), reward=between(0.6, 1.1), **FAILURES["length_gaming"])) == set()


def test_length_that_jumps_once_is_no_growth() -> None:
    assert names(run(60, completion_length_mean=then(25, 40, 60))) == set()


def test_reward_hacking_says_both_courses() -> None:
    alarm, *_ = raised(run(60, noise={}, **FAILURES["reward_hacking"]))
    assert alarm.message == "reward rose from 0.831 to 0.966 over 30 steps while accuracy fell from 40 % to 33 %"
    assert "rewards.format_weight" in alarm.advice


def test_reward_and_accuracy_that_move_together_are_no_hacking() -> None:
    assert names(run(60, reward=between(0.8, 0.5), accuracy=between(0.42, 0.12))) == set()
    assert names(run(60, reward=between(0.8, 1.1), accuracy=between(0.42, 0.72))) == set()


@pytest.mark.parametrize(
    ("accuracy", "said", "advised"),
    [(0.99, "too easy", "harder stages"), (0.01, "too hard", "easier stages"), (0.5, "others too hard", "grpo.groups.dead")],
)
def test_dead_groups_says_whether_too_easy_or_too_hard(accuracy: float, said: str, advised: str) -> None:
    alarm, *_ = raised(run(20, noise={}, frac_zero_std=between(0.95, 0.95), accuracy=between(accuracy, accuracy)))
    assert alarm.name == "dead_groups" and alarm.step == 10
    assert alarm.message.startswith("95 % of the groups had no signal over 10 steps: ")
    assert said in alarm.message and advised in alarm.advice


def test_one_step_with_a_signal_keeps_dead_groups_silent() -> None:
    records = run(10, noise={}, frac_zero_std=between(1, 1))
    records[4]["frac_zero_std"] = 0.5
    assert raised(records) == []


def test_kl_runaway_sees_the_level_and_the_growth() -> None:
    level, *_ = raised(run(20, noise={}, kl=between(2.0, 2.0)))
    assert level.step == 10 and "above 0.5" in level.message and "grpo.kl_coef" in level.advice
    growth, *_ = raised(run(30, noise={}, kl=lambda t: 0.02 if t < 1 / 3 else 0.09 if t < 2 / 3 else 0.4))
    assert 25 <= growth.step <= 30 and "nats a token over 30 steps" in growth.message and " grew from " in growth.message


def test_kl_that_jumps_once_to_a_level_within_the_limit_is_no_runaway() -> None:
    records = run(60)
    for record in records:
        record["kl"] = 0.1 if record["step"] <= 30 else 0.3
    assert raised(records) == []


@pytest.mark.parametrize(("name", "value"), [("kl", 1e6), ("mismatch_kl", 1e6), ("ess", 1e-3)])
def test_one_step_of_any_size_passes_no_limit(name: str, value: float) -> None:
    records = run(60)
    records[30][name] = value
    assert raised(records) == []


@pytest.mark.parametrize(("name", "step"), [("entropy", 3), ("reward", 55)])
def test_one_step_is_no_trend(name: str, step: int) -> None:
    """The means of two windows differ by it, and accuracy falls; but it is all that differs."""
    records = run(60, noise={}, accuracy=between(0.42, 0.2), entropy=between(0.1, 0.1))
    records[step - 1][name] = 5.0
    assert raised(records) == []


def test_sampler_mismatch_sees_kl_and_effective_sample_size() -> None:
    both, *_ = raised(run(10, noise={}, mismatch_kl=between(0.01, 0.01), ess=between(0.5, 0.5)))
    assert "0.01 nats a token, above 0.001" in both.message and "50 %, below 90 %" in both.message
    alone, *_ = raised(run(10, noise={}, ess=between(0.5, 0.5)))
    assert alone.name == "sampler_mismatch" and "KL" not in alone.message and "grpo.off_policy.correction" in alone.advice


def healthy_small(seed: int) -> Run:
    """A small model that learns arithmetic within 60 steps, its entropy falling to a fifth."""
    return run(
        60,
        seed,
        accuracy=saturating(0.60, 0.95),
        reward=saturating(0.95, 1.33),
        completion_length_mean=saturating(21, 34),
        entropy=saturating(0.15, 0.03),
        kl=between(0, 0.06),
        frac_zero_std=saturating(0.15, 0.6),
    )


def healthy_large(seed: int) -> Run:
    """A larger model that learns slowly, its completions growing as it does."""
    return run(
        500,
        seed,
        NOISE | {"completion_length_mean": 9.0, "entropy": 0.03},
        accuracy=between(0.30, 0.55),
        reward=between(0.5, 0.8),
        completion_length_mean=between(300, 450),
        entropy=between(0.5, 0.3),
        kl=between(0, 0.05),
    )


def healthy_steady(seed: int) -> Run:
    """A run that learns nothing, and fails in no way that has a name."""
    return run(60, seed)


@pytest.mark.parametrize(("healthy", "seeds"), [(healthy_small, 200), (healthy_large, 10), (healthy_steady, 60)])
def test_healthy_runs_are_silent(healthy: Callable[[int], Run], seeds: int) -> None:
    assert [raised(healthy(seed)) for seed in range(seeds)] == [[]] * seeds


def test_alarms_at_each_step_are_those_of_the_rule_read_literally() -> None:
    """Reads every prefix whole, at every step anew: the monitor reads only excerpts and stops early."""
    records = run(
        120,
        entropy=saturating(1.2, 0.05),
        kl=lambda t: 1.0 if 0.2 < t < 0.4 or 0.45 < t < 0.5 or t > 0.8 else 0.01,
        completion_length_mean=between(40, 160),
        frac_zero_std=lambda t: 2.0 if 0.3 < t < 0.6 else 0.3,
    )
    config = MonitorConfig()
    holds = {name: [test(records[:end], config) for end in range(1, 121)] for name, test in ALARMS.items()}
    expected = [
        alarm
        for step in range(120)
        for name in ALARMS
        if (alarm := holds[name][step]) and not any(holds[name][max(step - config.window, 0) : step])
    ]
    assert raised(records) == expected
    assert [alarm.name for alarm in expected].count("kl_runaway") == 2 and len({alarm.name for alarm in expected}) == 4


def test_alarm_is_raised_once_while_the_failure_lasts() -> None:
    assert len(raised(run(60, noise={}, mismatch_kl=between(0.01, 0.01)))) == 1


def test_failure_that_flickers_within_a_window_is_one() -> None:
    curve: Curve = lambda t: 0.01 if round(t * 59) % 8 < 5 else 0.0  # noqa: E731
    assert len(raised(run(60, noise={}, mismatch_kl=curve))) == 1


@pytest.mark.parametrize(("marks", "steps"), [("HHLLHH", [3]), ("HHLLLHH", [3, 7])])
def test_alarm_comes_again_after_a_whole_window_without_it(marks: str, steps: list[int]) -> None:
    """With windows of 3 the condition holds where two of three steps are high: at the last one of HHL, LHH, HHH."""
    records = [{"step": step, "mismatch_kl": float(mark == "H")} for step, mark in enumerate(marks, start=1)]
    assert [alarm.step for alarm in raised(records, MonitorConfig(window=3))] == steps


def test_resumed_run_raises_the_same_alarms_at_the_same_steps() -> None:
    records = run(80, kl=lambda t: 1.0 if 0.3 < t < 0.5 or t > 0.8 else 0.01, frac_zero_std=between(0.5, 2.0))
    whole = raised(records)
    assert len(whole) == 3
    for cut in range(0, 80, 7):
        again = Monitor(MonitorConfig())
        assert [a for end in range(cut + 1, 81) for a in again.check(records[:end])] == [a for a in whole if a.step > cut]


def test_check_reads_no_more_of_a_longer_run() -> None:
    class Counting(dict):
        reads = 0

        def get(self, *key: Any) -> Any:
            Counting.reads += 1
            return super().get(*key)

    def reads(steps: int) -> int:
        Counting.reads = 0
        Monitor(MonitorConfig()).check([Counting(record) for record in run(steps)])
        return Counting.reads

    assert reads(1000) == reads(100) > 0


@pytest.mark.parametrize("absent", ["none", "missing", "nan"])
@pytest.mark.parametrize("name", ALARMS)
def test_metric_that_is_not_logged_keeps_its_alarm_silent(name: str, absent: str) -> None:
    needed = {"sampler_mismatch": ["mismatch_kl"]}.get(name, list(FAILURES[name]))
    for metric in [needed[0]] if name == "length_gaming" else needed:
        records = run(60, **FAILURES[name])
        for record in records:
            record[metric] = math.nan if absent == "nan" else None
            if absent == "missing":
                del record[metric]
        assert raised(records) == []


def test_records_with_nothing_but_a_step_raise_nothing() -> None:
    assert raised([{"step": step} for step in range(1, 61)]) == []
    assert Monitor(MonitorConfig()).check([]) == []


def test_metric_that_some_steps_lack_is_judged_by_the_others() -> None:
    records = run(60, **FAILURES["entropy_collapse"])
    for record in records[::3]:
        record["entropy"] = None
    assert {alarm.name for alarm in raised(records)} == {"entropy_collapse"}


def test_accuracy_is_only_named_by_dead_groups_not_needed() -> None:
    records = [{"step": step, "frac_zero_std": 1.0} for step in range(1, 11)]
    assert [alarm.message for alarm in raised(records)] == ["100 % of the groups had no signal over 10 steps"]


def collapse(accuracy: float, **curves: Curve) -> Run:
    """Entropy that falls to a sixth while accuracy gains no more than given."""
    return run(60, noise={}, entropy=between(1.2, 0.1), accuracy=between(accuracy, accuracy), **curves)


# For each threshold a run, a value, and the alarms by default and with the value.
THRESHOLDS: dict[str, tuple[Run, Any, set[str], set[str]]] = {
    "window": (run(15, **FAILURES["sampler_mismatch"]), 20, {"sampler_mismatch"}, set()),
    "noise_z": (run(60, **FAILURES["reward_hacking"]), 100.0, {"reward_hacking"}, set()),
    "accuracy_gain": (
        run(60, noise={}, entropy=between(1.2, 0.1), accuracy=between(0.42, 0.52)),
        0.2,
        set(),
        {"entropy_collapse"},
    ),
    "entropy_fraction": (collapse(0.42), 0.05, {"entropy_collapse"}, set()),
    "entropy_accuracy": (collapse(0.85), 0.8, {"entropy_collapse"}, set()),
    "repetition_rise": (collapse(0.95, repetition=between(0.05, 0.45)), 0.5, {"entropy_collapse"}, set()),
    "length_growth": (run(60, **FAILURES["length_gaming"]), 0.9, {"length_gaming"}, set()),
    "reward_rise": (run(60, **FAILURES["reward_hacking"]), 0.5, {"reward_hacking"}, set()),
    "accuracy_drop": (run(60, **FAILURES["reward_hacking"]), 0.5, {"reward_hacking"}, set()),
    "dead_fraction": (run(20, noise={}, frac_zero_std=between(0.8, 0.8)), 0.7, set(), {"dead_groups"}),
    "kl_limit": (run(20, noise={}, kl=between(2.0, 2.0)), 50.0, {"kl_runaway"}, set()),
    "kl_growth": (run(30, noise={}, kl=lambda t: 0.02 * 10 ** (1.3 * t)), 4.0, {"kl_runaway"}, set()),
    "kl_floor": (run(30, noise={}, kl=lambda t: 0.001 * 10 ** (1.5 * t)), 0.01, set(), {"kl_runaway"}),
    "mismatch_limit": (run(20, **FAILURES["sampler_mismatch"]), 0.1, {"sampler_mismatch"}, set()),
    "ess_limit": (run(20, noise={}, ess=between(0.5, 0.5)), 0.3, {"sampler_mismatch"}, set()),
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(MonitorConfig)])
def test_every_threshold_decides_about_some_run(field: str) -> None:
    records, value, by_default, with_value = THRESHOLDS[field]
    assert names(records) == by_default
    assert names(records, **{field: value}) == with_value


def test_advice_names_keys_that_a_run_has() -> None:
    known = {key.path for key in schema.keys(RunConfig)}
    scenarios = [run(60, noise={}, **curves) for curves in FAILURES.values()]
    scenarios += [collapse(0.95, repetition=between(0.05, 0.45))]
    scenarios += [run(20, frac_zero_std=between(2, 2), accuracy=between(right, right)) for right in (0.0, 0.5, 1.0)]
    said = [*(alarm.advice for records in scenarios for alarm in raised(records)), PAGE.read_text(encoding="utf-8")]
    section = "grpo|rewards|rollout|data|schedules|sft"
    named = {key for text in said for key in re.findall(rf"(?<![\w/.])((?:{section})(?:\.[a-z_]+)+)", text)}
    assert named and named <= known


def test_page_states_every_default() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for field in dataclasses.fields(MonitorConfig):
        number = re.escape(f"{field.default:g}")
        assert re.search(rf"{field.name}`?(?: = | \(){number}\b", page), field.name


def test_every_field_is_described() -> None:
    assert set(schema.field_docs(MonitorConfig)) == {field.name for field in dataclasses.fields(MonitorConfig)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 2),
        ("noise_z", -1.0),
        ("noise_z", math.nan),
        ("accuracy_gain", 0.0),
        ("entropy_fraction", 1.5),
        ("dead_fraction", 0.0),
        ("length_growth", math.inf),
        ("reward_rise", 0.0),
        ("kl_growth", 1.0),
        ("kl_limit", 0.0),
        ("kl_floor", 0.6),
        ("mismatch_limit", math.nan),
        ("ess_limit", 1.01),
    ],
)
def test_value_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}, but it must be "):
        MonitorConfig(**{field: value})


def test_actions_for_none_for_all_and_for_some() -> None:
    assert parse_actions("") == parse_actions("  ") == {}
    for action in ACTIONS:
        assert parse_actions(action) == dict.fromkeys(ALARMS, action)
    assert parse_actions("kl_runaway=raise_kl, entropy_collapse=stop") == {
        "kl_runaway": "raise_kl",
        "entropy_collapse": "stop",
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("halt", "'halt' is no action; it must be one of stop, raise_kl, lower_temperature"),
        ("kl_runaway=halt", "'halt' is no action; it must be one of stop, raise_kl, lower_temperature"),
        ("kl_runaway=", "'' is no action"),
        ("kl=stop", "'kl' is no alarm; it must be one of entropy_collapse, length_gaming, reward_hacking, "),
        ("kl_runaway=stop,kl_runaway=raise_kl", "kl_runaway is named twice"),
        ("stop,kl_runaway=raise_kl", "'stop' is neither"),
        ("kl_runaway=stop,", "'' is neither"),
    ],
)
def test_action_that_is_not_understood_is_refused_with_what_is_known(text: str, complaint: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_actions(text)
    assert str(refusal.value).startswith(f"on_alarm is {text!r}, but ") and complaint in str(refusal.value)


def test_groups_that_all_have_a_signal_are_not_dead_whatever_their_rewards() -> None:
    """An estimator that compares with the batch learns from groups of one, whose rewards never differ."""
    records = run(20, noise={}, frac_zero_std=between(1.0, 1.0))
    assert {alarm.name for end in range(1, 21) for alarm in Monitor(MonitorConfig()).check(records[:end])} == {"dead_groups"}
    with_signal = [record | {"groups_without_signal": 0.0} for record in records]
    assert not [alarm for end in range(1, 21) for alarm in Monitor(MonitorConfig()).check(with_signal[:end])]
