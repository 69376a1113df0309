"""One worker process as the trainer sees it: start, ask, read an answer in time, end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from typing import Any

START_LIMIT = 300.0
"""Seconds to start Python and import the rewards on a busy machine."""


class WorkerEnded(Exception):
    """The worker's process has ended, by itself or by others."""


class WorkerRefused(Exception):
    """The worker cannot build its rewards; the message says why."""


class WorkerProcess:
    """A started worker; the thread that starts it must outlive it.

    Args:
      setup: the pickle of (config, names of rewards, seconds for one verdict, this process's id).

    Raises:
      WorkerRefused: it cannot build its rewards, or did not start.
    """

    def __init__(self, setup: bytes) -> None:
        search_path = [entry or os.getcwd() for entry in sys.path]
        self._buffer = b""
        self._process = subprocess.Popen(
            # -P keeps the current folder off the path unless it is on this interpreter's.
            [sys.executable, "-P", "-m", "grpo_jax.rewards.pool.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # so that what a reward starts can be ended with it
            # Two workers on two cores gain nothing from threads of their own in linear algebra.
            # A reward whose module imports jax must not take a share of the trainer's accelerators.
            env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            | os.environ
            | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(search_path)},
        )
        try:
            self._write(pickle.dumps((search_path, setup)))
            answer = self.answer(START_LIMIT)
        except (WorkerEnded, TimeoutError) as error:
            self.end()
            raise WorkerRefused(f"a reward worker did not get ready ({sys.executable}): {error}") from error
        except BaseException:
            self.end()
            raise
        if "refused" in answer:
            self.end()
            raise WorkerRefused(answer["refused"])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, request: bytes) -> None:
        """Sends rows to judge: a pickle of a list of (number, name of the reward, row).

        Raises:
          WorkerEnded: it has ended.
        """
        self._write(request)

    def answer(self, seconds: float) -> Any:
        """Its next line.

        Raises:
          TimeoutError: there is none within `seconds`.
          WorkerEnded: it has ended.
        """
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            _wait(descriptor, select.POLLIN, deadline, f"no answer within {seconds:g} s")
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise WorkerEnded(f"its process ended with status {self._process.wait()}")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError as error:  # a reward has written among the answers
            raise WorkerEnded(f"it said {line[:80]!r}, which is no answer") from error

    def kill(self) -> None:
        """Ends the process at once, from any thread; whoever waits for an answer learns of it."""
        _kill(self._process)

    def end(self) -> None:
        """Ends the process and lets go of it."""
        _kill(self._process)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, message: bytes) -> None:
        assert self._process.stdin is not None
        descriptor, deadline = self._process.stdin.fileno(), time.monotonic() + START_LIMIT
        rest = memoryview(message)
        try:
            # A process that was stopped reads nothing, and its pipe is full at some time.
            while rest:
                _wait(descriptor, select.POLLOUT, deadline, f"took no request for {START_LIMIT:g} s")
                rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]
        except BrokenPipeError as error:
            raise WorkerEnded("its process has ended") from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the worker, and the processes that its rewards have started and not moved elsewhere."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _wait(descriptor: int, event: int, deadline: float, otherwise: str) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError(otherwise)
