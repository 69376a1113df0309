"""The ways in which a GRPO run fails, each a test of the logged metrics that says what was seen and what to change.

A test reads the first window of the run and its last three, and compares their means: a change is a sign of failure where
it is beyond the noise of the steps (Welch's z) and at least of a given size. A level is judged by the window's median, since
a ratio of probabilities has heavy tails and one token can carry a step's mean KL far beyond any limit. A metric that is
not logged, or in fewer than half the steps of a window, is never judged.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax.training.validation import require

__all__ = ["ALARMS", "Alarm", "MonitorConfig", "Records"]

Records = Sequence[Mapping[str, Any]]
"""Records of the phase `grpo`, the oldest first: `step`, and metrics by name, where None is one that does not apply."""

# Where groups without a signal are said to be too easy or too hard rather than both: shares of right rows.
_NEARLY_ALL, _HARDLY_ANY = 0.8, 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """When an alarm is raised. Thresholds are per window, so that one odd step raises none.

    Attributes:
        window: Steps that are judged together, at least 3. Slow failures need a wide window, small batches too.
        noise_z: How many standard errors two windows' means must lie apart to count as different.
        accuracy_gain: entropy_collapse, length_gaming: the least rise of mean accuracy that excuses them, noise or not.
        entropy_fraction: entropy_collapse: the share of the first window's entropy below which it has collapsed.
        entropy_accuracy: entropy_collapse: the accuracy from which on low entropy is no failure by itself, since little
            is left to explore; 1 excepts none but a policy that is always right.
        repetition_rise: entropy_collapse: the rise of `repetition` that shows degenerate text, whatever the accuracy.
        length_growth: length_gaming: by how much completions grow over three windows, as a share of their length.
        reward_rise: reward_hacking: the least rise of the reward over three windows, in the reward's own unit.
        accuracy_drop: reward_hacking: the least fall of accuracy over three windows.
        dead_fraction: dead_groups: the share of groups without a signal that every step of a window reaches.
        kl_limit: kl_runaway: nats per token to the reference that a window's median may not exceed.
        kl_growth: kl_runaway: the factor by which each window's median exceeds the one before, twice in a row.
        kl_floor: kl_runaway: nats per token below which growth is no concern: KL starts from 0.
        mismatch_limit: sampler_mismatch: nats per token between sampler and trainer that a window's median may not exceed.
        ess_limit: sampler_mismatch: effective sample size below which a window's median may not fall.
    """

    window: int = 10
    noise_z: float = 3.0
    accuracy_gain: float = 0.02
    entropy_fraction: float = 0.3
    entropy_accuracy: float = 0.9
    repetition_rise: float = 0.1
    length_growth: float = 0.1
    reward_rise: float = 0.02
    accuracy_drop: float = 0.03
    dead_fraction: float = 0.9
    kl_limit: float = 0.5
    kl_growth: float = 2.0
    kl_floor: float = 0.2
    mismatch_limit: float = 1e-3
    ess_limit: float = 0.9

    def __post_init__(self) -> None:
        # A steady trend with no noise lies only 2.8 standard errors apart between windows of 2.
        require(self.window >= 3, "window", self.window, "at least 3 steps, or there is no noise to compare with")
        require(0 <= self.noise_z < math.inf, "noise_z", self.noise_z, "a finite number of standard errors, 0 or more")
        for field in (
            "accuracy_gain",
            "entropy_fraction",
            "entropy_accuracy",
            "repetition_rise",
            "accuracy_drop",
            "dead_fraction",
            "ess_limit",
        ):
            require(0 < getattr(self, field) <= 1, field, getattr(self, field), "above 0 and at most 1: it is a share")
        for field in ("length_growth", "reward_rise", "kl_limit", "mismatch_limit"):
            require(0 < getattr(self, field) < math.inf, field, getattr(self, field), "a finite number above 0")
        require(1 < self.kl_growth < math.inf, "kl_growth", self.kl_growth, "a finite factor above 1")
        require(
            0 < self.kl_floor < self.kl_limit,
            "kl_floor",
            self.kl_floor,
            f"above 0 and below kl_limit, which is {self.kl_limit!r}: from there on the limit speaks",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarm:
    """A failure that a run shows.

    Attributes:
        name: its name in `ALARMS`.
        step: the GRPO step at which it was seen.
        message: what was seen, with numbers.
        advice: what to change, by configuration key.
    """

    name: str
    step: int
    message: str
    advice: str


class _Mean(NamedTuple):
    """A window's mean and the square of its standard error."""

    value: float
    error2: float


def _entropy_collapse(records: Records, config: MonitorConfig) -> Alarm | None:
    if len(records) < 2 * config.window:
        return None
    first, now = records[: config.window], _back(records, config)
    entropy = _means("entropy", first, now)
    if entropy is None or entropy[-1].value >= config.entropy_fraction * entropy[0].value:
        return None
    if _difference(entropy, config) >= 0:
        return None
    accuracy, repetition = _means("accuracy", first, now), _means("repetition", first, now)
    unexplored = accuracy is not None and accuracy[-1].value < config.entropy_accuracy and not _gained(accuracy, config)
    degenerate = repetition is not None and _difference(repetition, config) >= config.repetition_rise
    if not (unexplored or degenerate):
        return None
    seen = f"entropy fell from {_number(entropy[0])} to {_number(entropy[-1])} nats a token over {_span(first, now)}"
    if accuracy is not None:
        seen += f" while accuracy {_course(accuracy, config)}"
    if repetition is not None:
        which = "rose with it, " if degenerate else "did not rise with it: "
        seen += f"; repetition {which}{_from_to(repetition, _percent)}"
    return _alarm(
        "entropy_collapse",
        records,
        seen,
        "hold entropy up: raise grpo.policy.clip_high, or set grpo.policy.term to dapo; set grpo.entropy_coef to 0 and "
        "schedules.entropy_coef.kind to entropy_target, which lets it rise; lower grpo.optimizer.learning_rate"
        + "; punish loops by rewards.repetition"
        * degenerate,
    )


def _length_gaming(records: Records, config: MonitorConfig) -> Alarm | None:
    windows = _last_three(records, config)
    length, accuracy = _means("completion_length_mean", *windows), _means("accuracy", *windows)
    if length is None or accuracy is None:
        return None
    if length[-1].value < (1 + config.length_growth) * length[0].value:
        return None
    if _difference(length[:2], config) <= 0 or _difference(length[1:], config) <= 0 or _gained(accuracy, config):
        return None
    seen = (
        f"completions grew from {_number(length[0])} to {_number(length[-1])} tokens over "
        f"{_span(windows[0], windows[-1])} while accuracy {_course(accuracy, config)}"
    )
    cut = _means("truncated_fraction", windows[-1])
    if cut is not None:
        seen += f"; {_percent(cut[0].value)} were cut off"
    return _alarm(
        "length_gaming",
        records,
        seen,
        "make length cost something: raise rewards.termination_weight or give rewards.overlong; set grpo.policy.aggregation "
        "to token_mean, so that a wrong row is not punished less for being long",
    )


def _reward_hacking(records: Records, config: MonitorConfig) -> Alarm | None:
    windows = _last_three(records, config)
    reward, accuracy = _means("reward", *windows), _means("accuracy", *windows)
    if reward is None or accuracy is None:
        return None
    if _difference(reward, config) < config.reward_rise or _difference(accuracy, config) > -config.accuracy_drop:
        return None
    return _alarm(
        "reward_hacking",
        records,
        f"reward rose {_from_to(reward, _short)} over {_span(windows[0], windows[-1])} while accuracy "
        f"{_course(accuracy, config)}",
        "find in metrics.jsonl the component of the reward that rose, and lower its weight (rewards.format_weight, "
        "rewards.termination_weight, rewards.extras) until being right pays most; read samples/ for what it pays for",
    )


def _dead_groups(records: Records, config: MonitorConfig) -> Alarm | None:
    now = _back(records, config)
    dead = _values("frac_zero_std", [_with_signal_counted(record) for record in now])
    if len(now) < config.window or dead is None or min(dead) < config.dead_fraction:
        return None
    seen = f"{_percent(statistics.fmean(dead))} of the groups had no signal over {_span(now, now)}"
    advice = "set grpo.groups.dead to refill, or data.curriculum.mode to difficulty"
    accuracy = _means("accuracy", now)
    if accuracy is not None:
        right = accuracy[0].value
        if right > _NEARLY_ALL:
            seen += f": nearly all rows are right ({_percent(right)}), the problems are too easy"
            advice = "move on to harder stages by data.curriculum, or set grpo.groups.dead to refill"
        elif right < _HARDLY_ANY:
            seen += f": hardly any row is right ({_percent(right)}), the problems are too hard"
            advice = (
                "begin with easier stages by data.curriculum, raise grpo.group_size or sft.steps, or set grpo.groups.dead "
                "to refill"
            )
        else:
            seen += f": {_percent(right)} of the rows are right, so some groups are too easy and the others too hard"
    return _alarm("dead_groups", records, seen, advice)


def _with_signal_counted(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record, with no group counted as dead where every group has a signal: not all estimators compare groups."""
    return {**record, "frac_zero_std": 0.0} if record.get("groups_without_signal") == 0 else record


def _kl_runaway(records: Records, config: MonitorConfig) -> Alarm | None:
    advice = (
        "hold the policy nearer to its reference: raise grpo.kl_coef, lower grpo.optimizer.learning_rate, or take fewer "
        "grpo.updates_per_rollout"
    )
    now = _back(records, config)
    kl = _median("kl", now)
    if len(now) < config.window or kl is None:
        return None
    if kl > config.kl_limit:
        seen = f"KL to the reference was {_short(kl)} nats a token over {_span(now, now)}, above {_short(config.kl_limit)}"
        return _alarm("kl_runaway", records, seen, advice)
    windows = _last_three(records, config)
    oldest, middle = (_median("kl", window) for window in windows[:2])
    if oldest is None or middle is None or kl < config.kl_floor:
        return None
    if kl < config.kl_growth * middle or middle < config.kl_growth * oldest:
        return None
    seen = (
        f"KL to the reference grew from {_short(oldest)} through {_short(middle)} to {_short(kl)} nats a token over "
        f"{_span(windows[0], windows[-1])}"
    )
    return _alarm("kl_runaway", records, seen, advice)


def _sampler_mismatch(records: Records, config: MonitorConfig) -> Alarm | None:
    now = _back(records, config)
    if len(now) < config.window:
        return None
    kl, ess = _median("mismatch_kl", now), _median("ess", now)
    seen = []
    if kl is not None and kl > config.mismatch_limit:
        seen.append(f"the KL between them is {_short(kl)} nats a token, above {_short(config.mismatch_limit)}")
    if ess is not None and ess < config.ess_limit:
        seen.append(f"the effective sample size is {_percent(ess)}, below {_percent(config.ess_limit)}")
    if not seen:
        return None
    return _alarm(
        "sampler_mismatch",
        records,
        f"sampler and trainer disagreed over {_span(now, now)}: {'; '.join(seen)}",
        "draw from the distribution that is scored: set rollout.sampler.top_p to 1, top_k to null and min_p to 0; weigh "
        "tokens by grpo.off_policy.correction tis; sample from fresher parameters in the trainer's precision",
    )


ALARMS: Mapping[str, Callable[[Records, MonitorConfig], Alarm | None]] = {
    "entropy_collapse": _entropy_collapse,
    "length_gaming": _length_gaming,
    "reward_hacking": _reward_hacking,
    "dead_groups": _dead_groups,
    "kl_runaway": _kl_runaway,
    "sampler_mismatch": _sampler_mismatch,
}
"""By name, whether the last window shows the failure. Each reads the first window and the last three, nothing else."""


def _alarm(name: str, records: Records, message: str, advice: str) -> Alarm:
    return Alarm(name=name, step=records[-1]["step"], message=message, advice=advice)


def _back(records: Records, config: MonitorConfig, windows: int = 0) -> Records:
    """The last window, or the one that lies so many windows before it."""
    end = len(records) - windows * config.window
    return records[max(end - config.window, 0) : max(end, 0)]


def _last_three(records: Records, config: MonitorConfig) -> tuple[Records, Records, Records]:
    """The last three windows, the oldest first; the first of them is empty where the run is shorter."""
    if len(records) < 3 * config.window:
        return (), (), ()
    return _back(records, config, 2), _back(records, config, 1), _back(records, config)


def _values(name: str, window: Records) -> list[float] | None:
    """A metric's finite values; None where fewer than half the steps have one."""
    values = [float(value) for record in window if (value := record.get(name)) is not None and math.isfinite(value)]
    return values if len(values) >= 2 and 2 * len(values) >= len(window) else None


def _median(name: str, window: Records) -> float | None:
    values = _values(name, window)
    return None if values is None else statistics.median(values)


def _means(name: str, *windows: Records) -> list[_Mean] | None:
    """A metric's mean in each window; None where any of them has too few values."""
    means = []
    for window in windows:
        values = _values(name, window)
        if values is None:
            return None
        count, mean = len(values), math.fsum(values) / len(values)
        means.append(_Mean(mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count))
    return means


def _difference(means: Sequence[_Mean], config: MonitorConfig) -> float:
    """The last mean less the first, 0 where that is within the noise: Welch's z, (b − a) / √(SE_a² + SE_b²)."""
    before, after = means[0], means[-1]
    difference = after.value - before.value
    return difference if abs(difference) > config.noise_z * math.sqrt(before.error2 + after.error2) else 0.0


def _gained(accuracy: Sequence[_Mean], config: MonitorConfig) -> bool:
    # By the means alone: that a gain cannot be told from noise does not show that there was none.
    return accuracy[-1].value - accuracy[0].value >= config.accuracy_gain


def _course(accuracy: Sequence[_Mean], config: MonitorConfig) -> str:
    difference = _difference(accuracy, config)
    if difference == 0:
        return f"stayed at {_percent(accuracy[-1].value)}"
    return f"{'rose' if difference > 0 else 'fell'} {_from_to(accuracy, _percent)}"


def _from_to(means: Sequence[_Mean], form: Callable[[float], str]) -> str:
    return f"from {form(means[0].value)} to {form(means[-1].value)}"


def _span(first: Records, last: Records) -> str:
    return f"{last[-1]['step'] - first[0]['step'] + 1} steps"


def _number(mean: _Mean) -> str:
    return _short(mean.value)


def _short(value: float) -> str:
    return f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
