"""The process of one worker: judges the rows that it is sent, and ends with the trainer.

Run as `python -m grpo_jax.rewards.pool.worker`. It reads pickles from its standard input: first (search path, config, names
of rewards, seconds for one verdict, parent's process id), then lists of (number, name, row). It answers with lines of
JSON: {"ready": true} or {"refused": text}, then [number, name, value, failure, report] for each row and reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import json
import math
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

Item = tuple[int, str, Any]

WATCHDOG_GRACE = 10.0
"""Seconds beyond a verdict's own after which a worker ends itself: its parent, which would have ended it, is gone."""

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answers until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    # What a reward prints must not get among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    search_path, setup = pickle.load(requests)
    sys.path[:] = search_path
    config, names, seconds, parent = pickle.loads(setup)
    _end_with(parent)
    rewards = _rewards(config, names, answers)
    if rewards is None:
        return
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _judge(rewards, _next(requests), seconds, answers)


def _rewards(config: Any, names: Sequence[tuple[str, str]], answers: Any) -> dict[str, Any] | None:
    from grpo_jax.rewards.registry import resolve_reward

    try:
        rewards = {name: resolve_reward(reward, config) for name, reward in names}
    except BaseException as error:
        _say(answers, {"refused": f"{type(error).__name__}: {error}"})
        return None
    _say(answers, {"ready": True})
    return rewards


def _next(requests: BinaryIO) -> Sequence[Item]:
    return pickle.load(requests)


def _judge(rewards: dict[str, Any], items: Sequence[Item], seconds: float, answers: Any) -> None:
    from grpo_jax.rewards.verdict import Verdict, awaited_verdict, is_awaited, verdict

    def say(number: int, name: str, result: Verdict) -> None:
        value = None if math.isnan(result.value) else result.value
        _say(answers, [number, name, value, result.failure, result.report])

    with open(os.devnull, "w") as nowhere:

        def watch() -> None:
            # A thread of C, which needs no lock of the interpreter's: it works where the reward holds that for ever.
            faulthandler.dump_traceback_later(seconds + WATCHDOG_GRACE, exit=True, file=nowhere)

        waiting = []
        for number, name, row in items:
            if is_awaited(rewards[name]):
                waiting.append((number, name, row))
                continue
            watch()
            say(number, name, verdict(rewards[name], row))

        async def together() -> None:
            async def one(number: int, name: str, row: Any) -> None:
                say(number, name, await awaited_verdict(rewards[name], row, seconds))

            await asyncio.gather(*(one(*item) for item in waiting))

        if waiting:
            watch()
            asyncio.run(together())
        faulthandler.cancel_dump_traceback_later()


def _say(answers: Any, message: Any) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _end_with(parent: int) -> None:
    """Asks the system to end this process with the one that started it, where it can; else the input's end does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    main()
