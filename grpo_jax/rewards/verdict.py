"""The verdict on one row by one reward: its value, or why there is none."""

import asyncio
import dataclasses
import inspect
import math
import traceback
from typing import Any, Literal

from grpo_jax.rewards.protocol import QuickReward, RewardInput, Undecided

Failure = Literal["raised", "timed_out", "died"]
"""Why there is no value: the reward raised or returned no finite number, took too long, or ended its process."""

MOST = 1e30
"""The greatest size of a reward: its sums and squares in float32 stay finite."""

MAX_REPORT = 4000
"""Characters kept of what a failure says of itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a reward said of a row.

    Attributes:
      value: the reward; NaN where it does not apply or failed.
      failure: how it failed, or None.
      report: what the failure says of itself, the traceback of an exception for example.
    """

    value: float = math.nan
    failure: Failure | None = None
    report: str = ""


def verdict_of_value(value: Any) -> Verdict:
    """The verdict of what a reward returned: None and NaN do not apply; what is no finite number is a failure."""
    try:
        number = math.nan if value is None else float(value)
    except Exception:
        return raised(TypeError(f"a reward is a finite number, None or NaN; got a {type(value).__name__}"))
    if abs(number) > MOST:
        return raised(ValueError(f"a reward is a number of at most {MOST:g}, None or NaN; got {number}"))
    return Verdict(value=number)


def verdict(reward: Any, row: RewardInput) -> Verdict:
    """The verdict of a reward that is not awaited, however it behaves, as long as it ends."""
    try:
        return verdict_of_value(reward(row))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit in a reward is no reason to end a run
        return raised(error)


def quick_verdict(reward: QuickReward, row: RewardInput) -> Verdict | None:
    """The verdict that is there at once, or None."""
    try:
        return verdict_of_value(reward.quick(row))
    except Undecided:
        return None
    except Exception as error:
        return raised(error)


async def awaited_verdict(reward: Any, row: RewardInput, timeout: float | None) -> Verdict:
    """The verdict of an awaited reward, which has `timeout` seconds; None for as long as it takes."""
    try:
        return verdict_of_value(await asyncio.wait_for(reward(row), timeout))
    except TimeoutError as error:
        # The reward's own time-outs arrive as the same class, with a cause or a message.
        return raised(error) if error.args or timeout is None else timed_out(timeout)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return raised(error)


def raised(error: BaseException) -> Verdict:
    """The verdict of a reward that raised."""
    try:
        report = "".join(traceback.format_exception(error))
    except Exception:  # an exception of the reward's own whose text cannot be had
        report = f"a {type(error).__name__} whose text cannot be had"
    # The end names the exception; a deep stack would bury it.
    return Verdict(failure="raised", report=report[-MAX_REPORT:])


def timed_out(seconds: float) -> Verdict:
    """The verdict of a reward that did not answer in time."""
    return Verdict(failure="timed_out", report=f"no answer within {seconds:g} s")


def is_awaited(reward: Any) -> bool:
    """Whether calling the reward gives something to await."""
    return inspect.iscoroutinefunction(reward) or (callable(reward) and inspect.iscoroutinefunction(type(reward).__call__))
