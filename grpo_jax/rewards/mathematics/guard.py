"""Sympy and math-verify in a process of their own, which ends when an answer takes too long.

Simplification can run for ever, and an integer power inside it holds the interpreter lock, so neither a thread nor a
signal handler stops it; handlers run on the main thread only, which is why math-verify's own limits are off. The system
can end a process. It is started from a file of its own rather than forked, because the trainer's process has threads, and
it imports nothing of the trainer.
"""

import contextlib
import contextvars
import functools
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from grpo_jax.rewards.mathematics.expression import Tree
from grpo_jax.rewards.protocol import Undecided

_SCRIPT = Path(__file__).with_name("guard_worker.py")

TIME_LIMIT = 2.0
"""Seconds of processor time for one comparison."""
LEAST_COST = 0.001
"""Seconds that every question takes from its budget, so that many small ones end, too."""
START_LIMIT = 300.0
"""Seconds to start Python and import sympy on a busy machine."""
WALL_FACTOR = 30.0
"""How much longer than its processor time a comparison may take by the clock, on a busy machine."""

_log = logging.getLogger(__name__)


_shut: contextvars.ContextVar[bool] = contextvars.ContextVar("shut", default=False)


@contextlib.contextmanager
def shut() -> Iterator[None]:
    """Within it no worker is asked: what would ask one raises Undecided."""
    token = _shut.set(True)
    try:
        yield
    finally:
        _shut.reset(token)


class Budget:
    """Processor time for all the questions of one answer.

    Args:
      seconds: of the guard's processor time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Guard:
    """One worker process, started at the first question and again after it ended. Thread-safe.

    The worker ends with this object, with the interpreter, or, should the interpreter be killed, by itself: the system
    kills it with the process whose main thread started it, it reads the end of its input, and the system ends it when a
    question has used its processor time.

    Args:
      time_limit: seconds of processor time for one question that brings no budget.
      start_limit: seconds until the worker must be ready.
    """

    def __init__(self, *, time_limit: float = TIME_LIMIT, start_limit: float = START_LIMIT) -> None:
        if not (time_limit > 0 and start_limit > 0):
            raise ValueError(f"time limits are seconds above 0, got {time_limit} and {start_limit}")
        self.time_limit = time_limit
        self.start_limit = start_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return None if self._process is None else self._process.pid

    def equal(self, left: Tree, right: Tree, budget: Budget | None = None) -> bool:
        """Whether sympy proves the two trees equal within the time limit; False where it does not.

        Raises:
          RuntimeError: the worker cannot be started.
        """
        return self.prove("equal", left, right, budget)

    def prove(self, claim: str, left: Tree | str, right: Tree | str, budget: Budget | None = None) -> bool:
        """Whether the worker proves a claim about two trees, or two texts, within the time limit.

        Args:
          claim: "equal" of trees; "equation" of two differences of the sides of equations, "relation" of two of
            inequalities of one direction; "latex" of two texts that `screen` lets pass.
          left: one side.
          right: the other.
          budget: what is left of the answer's processor time; what the question takes is taken from it.

        Raises:
          RuntimeError: the worker cannot be started.
        """
        if _shut.get():
            raise Undecided("the worker would have to be asked")
        budget = Budget(self.time_limit) if budget is None else budget
        if budget.seconds <= 0:
            return False
        seconds = budget.seconds
        question = json.dumps([claim, left, right, seconds])
        with self._lock:
            # A worker can have been killed by others (a user, the system out of memory): ask a second one.
            for _ in range(2):
                process = self._process or self._start()
                try:
                    answer = self._ask(process, question, seconds)
                except TimeoutError:
                    self._stop()
                    break
                except BaseException:
                    # Interrupted between question and answer: the next question must not read this one's answer.
                    self._stop()
                    raise
                if answer is not None:
                    verdict, _, used = answer.partition(" ")
                    budget.seconds -= max(float(used), LEAST_COST)
                    return verdict == "proved"
                self._stop()
                if process.returncode == -signal.SIGPROF:
                    break
        budget.seconds = 0.0
        _log.info("sympy did not decide within %g s whether %s: %.500s and %.500s", seconds, claim, left, right)
        return False

    def close(self) -> None:
        """Ends the worker, if there is one."""
        with self._lock:
            self._stop()

    def _start(self) -> "subprocess.Popen[bytes]":
        # -P keeps this folder off the worker's path, where its modules could shadow others; PYTHONPATH hands on where
        # this interpreter finds sympy.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        # The system counts a thread that ends as a parent that ends, so only the main thread's worker is killed with it.
        in_main_thread = threading.current_thread() is threading.main_thread()
        process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), str(os.getpid()), "killed" if in_main_thread else "reading"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
        )
        self._process = process
        self._finalizer = weakref.finalize(self, _end, process)
        try:
            greeting = self._read_line(process, self.start_limit)
        except TimeoutError:
            greeting = None
        except BaseException:
            self._stop()
            raise
        if greeting != "ready":
            self._stop()
            raise RuntimeError(
                f"the worker ({sys.executable} {_SCRIPT}) did not get ready within {self.start_limit} s: it said "
                f"{greeting!r}. Check that `python -c 'import sympy'` works"
            )
        return process

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def _ask(self, process: "subprocess.Popen[bytes]", question: str, seconds: float) -> str | None:
        assert process.stdin is not None
        try:
            process.stdin.write(question.encode() + b"\n")
        except BrokenPipeError:
            return None
        return self._read_line(process, WALL_FACTOR * seconds)

    def _read_line(self, process: "subprocess.Popen[bytes]", limit: float) -> str | None:
        """The worker's next line, None where it ends first.

        Raises:
          TimeoutError: it does neither within `limit` seconds.
        """
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + limit
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(descriptor, 4096)
            if not part:
                return None
            line += part
        return line.decode().strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@functools.lru_cache(maxsize=1)
def shared() -> Guard:
    """The worker of this process. A forked child gets one of its own: the parent's pipes are the parent's."""
    return Guard()


os.register_at_fork(after_in_child=shared.cache_clear)
