"""Accuracy on the puzzles of reasoning-gym: its own scorers, held to a full score and kept from running the answer.

The scorers were made for answers of good faith: several call eval on the answer, some give credit to any text, and a few
give a full score to a wrong one. `grpo_jax.rewards.reasoning_gym_checks` has what must hold as well.
"""

import functools
import importlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from grpo_jax.rewards.protocol import RewardInput
from grpo_jax.rewards.reasoning_gym_checks import CHECKS

MAX_CHARACTERS = 10_000
"""The longest answer that is judged."""

# A short text can stand for a number of a billion digits, which a scorer would write out.
_HUGE = re.compile(r"[0-9]{300}|[0-9.][eE][-+]?[0-9]{4}")
_NOT_A_NUMBER = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)


def reasoning_gym_reward(row: RewardInput) -> float | None:
    """1 where the scorer of the row's data set gives the answer its full score and the check on that data set passes.

    The answer is what the last complete `<answer>…</answer>` encloses, without white space at its ends. Everything else
    scores 0: no such span, an empty one, part of a score, an answer that makes the scorer fail. None where the row's
    metadata is not of reasoning-gym.

    Raises:
      ValueError: the package is not installed; or it does not know the data set or its options, or finds the score of
        the answer to be no finite number.
    """
    if "entry" not in row.metadata or "dataset" not in row.metadata:
        return None
    name = row.metadata["dataset"]
    dataset = _dataset(name, json.dumps(row.metadata.get("config", {})))
    answer = _answer(row.completion)
    if not answer or len(answer) > MAX_CHARACTERS:
        return 0.0
    entry = decode(row.metadata["entry"])
    gold = entry["answer"]
    if isinstance(gold, str) and answer == gold.strip():
        return 1.0
    if _HUGE.search(answer) or _NOT_A_NUMBER.search(answer):
        return 0.0
    try:
        if name in CHECKS and not CHECKS[name](answer, entry):
            return 0.0
        score = dataset.score_answer(answer, entry)
    except Exception:  # by an answer that the scorer cannot read; of the entry itself the generator has made sure
        return 0.0
    if not math.isfinite(score):
        raise ValueError(f"the scorer of {name} gave {score}, which is no finite number, for the answer {answer!r:.200}")
    return float(score >= 1.0)


def decode(value: Any) -> Any:
    """The entry that the task has written in JSON's types: {"tuple": [...]} and {"dict": [[key, value], ...]}."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, Mapping):
        if "tuple" in value:
            return tuple(decode(item) for item in value["tuple"])
        return {decode(key): decode(item) for key, item in value["dict"]}
    return value


def _answer(text: str) -> str:
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(close, 0))
    return "" if start < 0 else text[start + len("<answer>") : close].strip()


@functools.lru_cache(maxsize=64)
def _dataset(name: str, config: str) -> Any:
    """The scorer of a data set with a config given as JSON. Its seed and size bear on entries, which it makes none of."""
    try:
        gym = importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ValueError(
            "the reward reasoning_gym needs the package reasoning-gym, which is not installed: pip install 'grpo_jax[gym]'"
        ) from error
    try:
        return gym.create_dataset(name, **json.loads(config), seed=0, size=1)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"reasoning-gym has no data set {name!r} with the options {config}: {error}") from error
