"""One Python program in the sandbox: its input, its output, and how it ended."""

from __future__ import annotations

import dataclasses
import time
from typing import Literal

from grpo_jax.rewards.code.config import CodeConfig
from grpo_jax.rewards.code.exchange import Exchange
from grpo_jax.rewards.code.sandbox import START_LIMIT, start

Status = Literal["ok", "error", "timeout", "output_limit", "killed"]
"""How a program ended: with exit status 0, with another, by the clock, by writing too much, or by a signal (of the limits
on processor time or memory, for example)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """What became of a program.

    Attributes:
      status: how it ended.
      exit_code: its exit status, negative for the number of the signal that ended it; None where it was stopped from here.
      stdout: what it wrote to its output, up to the limit; bytes that are no UTF-8 are replaced.
      stderr: what it wrote to its errors, likewise.
    """

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str


def run_python(code: str, *, stdin: str = "", config: CodeConfig) -> ProgramResult:
    """Runs a program as `python program.py` would, in a fresh sandbox that is gone when this returns.

    Args:
      code: its source.
      stdin: its input.
      config: the sandbox and its limits.

    Raises:
      SandboxFault: the sandbox cannot be built.
    """
    return run_variants([[code]], stdin=stdin, config=config, output_limit=config.limits.output_kb << 10)


def run_variants(variants: list[list[str]], *, stdin: str, config: CodeConfig, output_limit: int) -> ProgramResult:
    """The same for the first of several ways to put a program together that compiles; each a list of sources."""
    exchange = Exchange()
    job = {"variants": variants}
    running = start(
        config, "program", job, exchange, stdin=stdin.encode("utf-8", "surrogatepass"), output_limit=output_limit
    )
    output, errors = running.output, running.errors
    assert output is not None
    try:
        exchange.run(running.stands, time.monotonic() + START_LIMIT)
        running.send()
        over = exchange.run(
            # A program can close its streams and go on, or leave them to nobody: both ends and its own end count.
            lambda: output.overflown or errors.overflown or (output.ended and errors.ended),
            time.monotonic() + config.limits.wall_seconds,
        )
        status: Status = "timeout"
        exit_code = None
        if output.overflown or errors.overflown:
            status = "output_limit"
        elif over:
            exit_code = running.wait(config.limits.wall_seconds)
            if exit_code is not None:
                # bubblewrap gives 128 + the signal's number.
                exit_code = 128 - exit_code if config.sandbox == "bubblewrap" and exit_code > 128 else exit_code
                status = "ok" if exit_code == 0 else "killed" if exit_code < 0 else "error"
    finally:
        running.end()
        exchange.close()
    running.check_started()
    return ProgramResult(
        status=status,
        exit_code=exit_code,
        stdout=output.data.decode(errors="replace"),
        stderr=errors.data.decode(errors="replace"),
    )
