"""Sympy in a process of its own, which ends when an answer takes too long.

Simplification can run for ever, and an integer power inside it holds the interpreter lock, so neither a thread nor a
signal handler stops it (and handlers run on the main thread only). The system can end a process. It is started from a
file of its own rather than forked, because the trainer's process has threads, and it imports nothing of the trainer.
"""

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
from pathlib import Path

from grpo_jax.rewards.expression import Tree

_SCRIPT = Path(__file__).with_name("sympy_worker.py")

TIME_LIMIT = 2.0
"""Seconds of processor time for one comparison."""
START_LIMIT = 300.0
"""Seconds to start Python and import sympy on a busy machine."""
WALL_FACTOR = 30.0
"""How much longer than its processor time a comparison may take by the clock, on a busy machine."""

_log = logging.getLogger(__name__)


class SympyProcess:
    """One worker process, started at the first question and again after it ended. Thread-safe.

    The worker ends with this object, with the interpreter, or, should the interpreter be killed, by itself: it reads
    the end of its input, and the system ends it when a question has used its processor time.

    Args:
      time_limit: seconds of processor time for one comparison.
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

    def equal(self, left: Tree, right: Tree) -> bool:
        """Whether sympy proves the two trees equal within the time limit; False where it does not.

        Raises:
          RuntimeError: the worker cannot be started.
        """
        question = json.dumps([left, right])
        with self._lock:
            # A worker can have been killed by others (a user, the system out of memory): ask a second one.
            for _ in range(2):
                process = self._process or self._start()
                try:
                    answer = self._ask(process, question)
                except TimeoutError:
                    self._stop()
                    break
                except BaseException:
                    # Interrupted between question and answer: the next question must not read this one's answer.
                    self._stop()
                    raise
                if answer is not None:
                    return answer == "equal"
                self._stop()
                if process.returncode == -signal.SIGPROF:
                    break
        _log.info("sympy did not decide within %g s: %s = %s", self.time_limit, left, right)
        return False

    def close(self) -> None:
        """Ends the worker, if there is one."""
        with self._lock:
            self._stop()

    def _start(self) -> "subprocess.Popen[bytes]":
        # -P keeps this folder off the worker's path, where its modules could shadow others; PYTHONPATH hands on where
        # this interpreter finds sympy.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), str(self.time_limit)],
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
                f"the sympy worker ({sys.executable} {_SCRIPT}) did not get ready within {self.start_limit} s: it said "
                f"{greeting!r}. Check that `python -c 'import sympy'` works"
            )
        return process

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def _ask(self, process: "subprocess.Popen[bytes]", question: str) -> str | None:
        assert process.stdin is not None
        try:
            process.stdin.write(question.encode() + b"\n")
        except BrokenPipeError:
            return None
        return self._read_line(process, WALL_FACTOR * self.time_limit)

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
def shared() -> SympyProcess:
    """The worker of this process. A forked child gets one of its own: the parent's pipes are the parent's."""
    return SympyProcess()


os.register_at_fork(after_in_child=shared.cache_clear)
