"""The table of rewards, and how a name or a dotted path becomes one."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grpo_jax.rewards.code import CodeConfig, code_reward
from grpo_jax.rewards.format import boxed_last, boxed_once, format_reward, hash_mark_once, nothing_after_answer
from grpo_jax.rewards.language import LanguageConfig, ascii_only, language_reward
from grpo_jax.rewards.mathematics import EXTRACTORS, MathConfig, accuracy_reward, equality
from grpo_jax.rewards.protocol import BatchReward, Reward
from grpo_jax.rewards.reasoning_gym import reasoning_gym_reward
from grpo_jax.rewards.termination import ended, ended_after

if TYPE_CHECKING:
    from grpo_jax.rewards.config import RewardConfig

AT_ONCE: dict[str, Reward] = {
    # format
    "think_answer": format_reward(("think", "answer")),
    "answer_only": format_reward(("answer",)),
    "nothing_after_answer": nothing_after_answer,
    "boxed_once": boxed_once,
    "boxed_last": boxed_last,
    "hash_mark_once": hash_mark_once,
    "ascii_only": ascii_only,
    "language_consistency": language_reward(LanguageConfig()),
    # termination
    "eos_after_answer": ended_after("</answer>"),
    "eos": ended,
}
"""The rewards that only read a row's text, within moments whatever it holds."""


def _mathematics(name: str) -> Callable[[RewardConfig | None], Reward]:
    def build(config: RewardConfig | None) -> Reward:
        math = None if config is None else config.math
        return accuracy_reward(EXTRACTORS[name], equality(MathConfig() if math is None else math))

    return build


def _code(config: RewardConfig | None) -> Reward:
    code = None if config is None else config.code
    return code_reward(CodeConfig() if code is None else code)


SECTIONS: dict[str, str | None] = {**dict.fromkeys(EXTRACTORS, "math"), "code": "code", "reasoning_gym": None}
"""The rewards that may take longer, each with the section of `RewardConfig` that it is built from."""

_BUILDERS: dict[str, Callable[[RewardConfig | None], Reward]] = {
    **{name: _mathematics(name) for name in EXTRACTORS},
    "code": _code,
    "reasoning_gym": lambda config: reasoning_gym_reward,
}

REWARD_NAMES = (*SECTIONS, *AT_ONCE)
"""The names of all rewards of this package."""


def check_name(field: str, name: str) -> None:
    """Refuses, without importing anything, a name that is neither in `REWARD_NAMES` nor shaped like "package.module:name".

    Raises:
      ValueError: names `field`, the name, and the known ones.
    """
    if name in REWARD_NAMES:
        return
    module, colon, attribute = name.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        return
    close = difflib.get_close_matches(name, REWARD_NAMES, n=1)
    raise ValueError(
        f"{field} is {name!r}, but it must be one of {sorted(REWARD_NAMES)} or a dotted path 'package.module:function'"
        + (f"; did you mean {close[0]!r}?" if close else "")
    )


def resolve_reward(name: str, config: RewardConfig | None = None) -> Any:
    """The reward called `name`, or what the dotted path "package.module:name" leads to.

    Args:
      name: a name of `REWARD_NAMES`, or a dotted path.
      config: whose sections say how a reward is built that has one; None builds it by its defaults.

    Returns:
      A `Reward`, an `AsyncReward` or a `BatchReward`.

    Raises:
      ValueError: the name is unknown, or the path leads to nothing that judges.
      SandboxFault: the reward runs code, and the sandbox does not work on this machine.
    """
    check_name("reward", name)
    if name in AT_ONCE:
        return AT_ONCE[name]
    if name in _BUILDERS:
        return _BUILDERS[name](config)
    try:
        reward = pkgutil.resolve_name(name)
    except Exception as error:  # importing a module runs it
        raise ValueError(
            f"reward {name!r} cannot be loaded: {type(error).__name__}: {error}; is its module importable from here?"
        ) from error
    if not callable(reward) and not isinstance(reward, BatchReward):
        raise ValueError(f"reward {name!r} is a {type(reward).__name__}, not a function of a RewardInput")
    return reward
