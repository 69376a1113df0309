"""The configuration of the composite reward: what is rewarded, and by how much."""

import dataclasses
from collections.abc import Mapping
from math import isfinite

from grpo_jax.rewards.code import CodeConfig
from grpo_jax.rewards.language import LanguageConfig
from grpo_jax.rewards.length import CosineLengthConfig
from grpo_jax.rewards.mathematics import MathConfig
from grpo_jax.rewards.overlong import OverlongConfig
from grpo_jax.rewards.pool.config import PoolConfig
from grpo_jax.rewards.registry import SECTIONS, check_name
from grpo_jax.rewards.repetition import RepetitionConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """What is rewarded, and by how much. Accuracy has weight 1, or 0 where `length` takes its place.

    Every reward is given by a name in `grpo_jax.rewards.REWARD_NAMES` or by a dotted path `package.module:function`.

    Attributes:
      accuracy: the reward for a right answer: answer_tag, boxed, hash_mark, last_number or math say where it is looked for;
        code runs it against tests, reasoning_gym asks the scorer of its data set.
      format: the reward for structure: think_answer, answer_only, nothing_after_answer, boxed_once, boxed_last or
        hash_mark_once.
      termination: the reward for stopping: eos_after_answer, or eos for stopping anywhere.
      format_weight: weight of the format reward; 0 reports it without rewarding it.
      termination_weight: weight of the termination reward; 0 reports it without rewarding it.
      extras: further rewards and their weights, for example {"my_package.rewards:brevity": 0.1}.
      math: how answers are compared with references; null for the defaults.
      code: the sandbox that code is run in, its limits, and what counts; null for the defaults.
      overlong: a punishment that grows as a completion nears the limit (DAPO); null for none.
      repetition: a punishment of repeated n-grams; null for none.
      language: a reward for keeping to a script; null for none.
      length: the cosine length reward in the place of accuracy; null rewards accuracy itself.
      gates: component to the component that is its gate: it counts only in rows where that one is at least 0.5, and is 0
        elsewhere, for example {format: accuracy}. A gated accuracy is a component of its own, gated_accuracy.
      pool: the processes in which rewards of your own and those that run programs are judged; null for the defaults.
    """

    accuracy: str = "answer_tag"
    format: str = "think_answer"
    termination: str = "eos_after_answer"
    format_weight: float = 0.2
    termination_weight: float = 0.2
    extras: Mapping[str, float] = dataclasses.field(default_factory=dict)
    math: MathConfig | None = None
    code: CodeConfig | None = None
    overlong: OverlongConfig | None = None
    repetition: RepetitionConfig | None = None
    language: LanguageConfig | None = None
    length: CosineLengthConfig | None = None
    gates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pool: PoolConfig | None = None

    def __post_init__(self) -> None:
        for field, name in (
            ("accuracy", self.accuracy),
            ("format", self.format),
            ("termination", self.termination),
            *(("extras", name) for name in self.extras),
        ):
            check_name(field, name)
        for field, weight in (
            ("format_weight", self.format_weight),
            ("termination_weight", self.termination_weight),
            *((f"extras[{name!r}]", weight) for name, weight in self.extras.items()),
        ):
            if not isfinite(weight):
                raise ValueError(f"{field} is {weight}, but it must be a finite number")
        for section in ("math", "code"):
            if getattr(self, section) is not None and section not in {SECTIONS.get(name) for name in self.reward_names}:
                users = ", ".join(name for name, of in SECTIONS.items() if of == section)
                raise ValueError(
                    f"{section} is given, but it must be null where no reward has a use for it. The rewards that have are "
                    f"{users}: name one under accuracy or extras"
                )
        self._check_gates()
        self._check_timeout()

    @property
    def reward_names(self) -> tuple[str, ...]:
        """The names and dotted paths of the rewards."""
        return (self.accuracy, self.format, self.termination, *self.extras)

    @property
    def component_names(self) -> tuple[str, ...]:
        """The components that rewards are given for, in the order of the sum, before gates."""
        sections = {"language": self.language, "overlong": self.overlong, "repetition_penalty": self.repetition}
        given = [name for name, section in sections.items() if section is not None]
        last = ["length"] if self.length is not None else []
        return ("accuracy", "format", "termination", *given, *self.extras, *last)

    def _check_timeout(self) -> None:
        """The pool must not end a reward that keeps to its own limit: the row would be missing, and not 0."""
        timeout = (PoolConfig() if self.pool is None else self.pool).timeout
        if "code" in self.reward_names:
            limits = (CodeConfig() if self.code is None else self.code).limits
            least = 2 * max(limits.wall_seconds, limits.total_seconds)
            if timeout < least:
                raise ValueError(
                    f"pool.timeout is {timeout:g}, but it must be at least {least:g} seconds with the reward code: twice "
                    "the larger of code.limits.wall_seconds and total_seconds. Raise it, or lower those"
                )

    def _check_gates(self) -> None:
        known = self.component_names
        for name, gate in self.gates.items():
            for what in (name, gate):
                if what not in known:
                    raise ValueError(
                        f"gates has {what!r}, but it must name components of this reward: {', '.join(known)}. A shaping "
                        "reward is one where its section is given"
                    )
            if name == gate:
                raise ValueError(f"gates[{name!r}] is {gate!r}, but it must be another component")
            if name == "accuracy" and self.length is not None:
                raise ValueError(
                    "gates['accuracy'] is given, but it must not be where length stands in the place of accuracy. Gate "
                    "length instead"
                )
