"""The table of rewards, and how a name or a dotted path becomes one."""

from __future__ import annotations

import difflib
import pkgutil
from typing import TYPE_CHECKING, Any

from grpo_jax.rewards.format import boxed_once, format_reward, hash_mark_once
from grpo_jax.rewards.mathematics.accuracy import accuracy_reward
from grpo_jax.rewards.mathematics.answers import EXTRACTORS
from grpo_jax.rewards.protocol import BatchReward, Reward
from grpo_jax.rewards.termination import ended, ended_after

if TYPE_CHECKING:
    from grpo_jax.rewards.config import RewardConfig

REWARDS: dict[str, Reward] = {
    # accuracy: where the answer is looked for
    **{name: accuracy_reward(extract) for name, extract in EXTRACTORS.items()},
    # format
    "think_answer": format_reward(("think", "answer")),
    "answer_only": format_reward(("answer",)),
    "boxed_once": boxed_once,
    "hash_mark_once": hash_mark_once,
    # termination
    "eos_after_answer": ended_after("</answer>"),
    "eos": ended,
}
"""Name to reward."""


def check_name(field: str, name: str) -> None:
    """Refuses, without importing anything, a name that is neither in `REWARDS` nor shaped like "package.module:name".

    Raises:
      ValueError: names `field`, the name, and the known ones.
    """
    if name in REWARDS:
        return
    module, colon, attribute = name.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        return
    close = difflib.get_close_matches(name, REWARDS, n=1)
    raise ValueError(
        f"{field} is {name!r}, but it must be one of {sorted(REWARDS)} or a dotted path 'package.module:function'"
        + (f"; did you mean {close[0]!r}?" if close else "")
    )


def resolve_reward(name: str, config: RewardConfig | None = None) -> Any:
    """The reward called `name`, or what the dotted path "package.module:name" leads to.

    Args:
      name: a name of `REWARDS`, or a dotted path.
      config: whose sections say how a reward is built that has one.

    Returns:
      A `Reward`, an `AsyncReward` or a `BatchReward`.

    Raises:
      ValueError: the name is unknown, or the path leads to nothing that judges.
    """
    check_name("reward", name)
    if name in REWARDS:
        return REWARDS[name]
    try:
        reward = pkgutil.resolve_name(name)
    except Exception as error:  # importing a module runs it
        raise ValueError(
            f"reward {name!r} cannot be loaded: {type(error).__name__}: {error}; is its module importable from here?"
        ) from error
    if not callable(reward) and not isinstance(reward, BatchReward):
        raise ValueError(f"reward {name!r} is a {type(reward).__name__}, not a function of a RewardInput")
    return reward
