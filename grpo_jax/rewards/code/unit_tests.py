"""A completion against unit tests: the tested process, the judge's, and the verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import time
from collections.abc import Sequence

from grpo_jax.rewards.code.config import CodeConfig
from grpo_jax.rewards.code.exchange import Exchange
from grpo_jax.rewards.code.nursery import start_forked
from grpo_jax.rewards.code.sandbox import READY, START_LIMIT, STARTED

_VERDICT = re.compile(rb"verdict ([0-9]{1,9}) ([0-9]{1,9})\n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitTests:
    """Trusted tests of a function or class.

    Attributes:
      sources: Python sources, each one test or, where there is but one, one that holds several asserts.
      entry_point: what `check(candidate)` is given: a name, or an expression such as "Solution().solve"; None where the
        tests name what they test.
      preamble: Python source that comes before the completion.
    """

    sources: Sequence[str]
    entry_point: str | None = None
    preamble: str = ""


def passed_tests(variants: list[list[str]], tests: UnitTests, config: CodeConfig) -> tuple[int, int]:
    """(tests that passed, tests in all) of a program given in several ways, of which the first that compiles counts.

    Without partial credit there is one test, which passes where all do. Whatever goes wrong passes none.

    Raises:
      SandboxFault: a sandbox cannot be built.
      ValueError: the tests cannot judge.
    """
    message_limit = config.limits.message_kb << 10
    tested_job = {"variants": variants, "message_limit": message_limit}
    judge_job = {
        "tests": list(tests.sources),
        "entry_point": tests.entry_point,
        "preamble": tests.preamble,
        "partial": config.partial_credit,
        "message_limit": message_limit,
    }
    with contextlib.ExitStack() as stack:
        exchange = Exchange()
        stack.callback(exchange.close)
        theirs, judges = socket.socketpair()
        with theirs, judges:
            tested = start_forked(config, "tested", tested_job, exchange, theirs.fileno())
            stack.callback(tested.end)
            judge = start_forked(config, "judge", judge_job, exchange, judges.fileno())
            stack.callback(judge.end)
        exchange.run(lambda: tested.stands() and judge.stands(), time.monotonic() + START_LIMIT)
        judge.send()
        tested.send()
        exchange.run(lambda: judge.control.ended, time.monotonic() + config.limits.wall_seconds)
        said = bytes(judge.control.data)
    judge.check_started()
    if said.startswith(READY + STARTED + b"bad "):
        raise ValueError(said[len(READY + STARTED + b"bad ") :].decode(errors="replace").strip())
    tested.check_started()
    verdict = _VERDICT.fullmatch(said.removeprefix(READY + STARTED))
    if verdict is None:
        return 0, 1
    passed, total = int(verdict[1]), int(verdict[2])
    return (passed, total) if 0 <= passed <= total and total > 0 else (0, 1)
