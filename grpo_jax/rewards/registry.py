"""The table of rewards, and how a name or a dotted path becomes one."""

import difflib
import pkgutil

from grpo_jax.rewards.accuracy import accuracy_reward
from grpo_jax.rewards.answers import EXTRACTORS
from grpo_jax.rewards.format import boxed_once, format_reward, hash_mark_once
from grpo_jax.rewards.protocol import Reward
from grpo_jax.rewards.termination import ended, ended_after

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


def resolve_reward(name: str) -> Reward:
    """The reward called `name` in `REWARDS`, or the function at dotted path "package.module:function".

    Raises:
      ValueError: the name is unknown, or the path leads to nothing that can be called.
    """
    check_name("reward", name)
    if name in REWARDS:
        return REWARDS[name]
    try:
        reward = pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward {name!r} cannot be loaded: {error}; is its module importable from here?") from error
    if not callable(reward):
        raise ValueError(f"reward {name!r} is a {type(reward).__name__}, not a function of a RewardInput")
    return reward
