"""Sandboxes that are kept: in each a process waits with Python loaded, and forks for one completion after the other.

Starting Python takes most of the time of a judgement. What is kept is the sandbox and a process that never runs what a
model or a data set wrote; each completion gets a process of its own in it, which may start no other, signal no other, and
after which the sandbox's only writable folder is emptied. The tested code and its judge are in different sandboxes.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import struct
import threading
import time
import weakref
from functools import cache
from typing import Any

from grpo_jax.rewards.code.config import CodeConfig
from grpo_jax.rewards.code.exchange import Exchange, Sink
from grpo_jax.rewards.code.sandbox import (
    END_LIMIT,
    READY,
    START_LIMIT,
    STARTED,
    Running,
    SandboxFault,
    confinement,
    start,
)
from grpo_jax.rewards.code.seccomp import filter_program

# What solutions and tests import most; none of it starts a thread.
_PRELOAD = ("typing", "math", "re", "collections", "itertools", "functools", "heapq", "string", "random", "copy", "operator")
_NOBODY = 0x7FFF4242  # stands for the number of the process that the filter is for, which only that process knows


class Forked:
    """A process that was forked for one completion. It has what is used of `Running`."""

    def __init__(self, nursery: Nursery, exchange: Exchange, control: int, program: int, payload: bytes) -> None:
        self._nursery, self._exchange = nursery, exchange
        self._descriptor, self._program, self._payload = control, program, payload
        self.control: Sink = exchange.collect(control, 1000)

    def stands(self) -> bool:
        """Whether it said that it stands, or never will."""
        return bool(self.control.data) or self.control.ended

    def send(self) -> None:
        """Sends what it is to run.

        Raises:
          SandboxFault: it does not stand.
        """
        if not self.control.data:
            raise SandboxFault(f"a sandbox that was kept did not answer within {START_LIMIT:g} s")
        program, self._program = self._program, -1
        self._exchange.feed(program, self._payload)

    def check_started(self) -> None:
        """Raises SandboxFault where it ended before its limits held."""
        if not self.control.data.startswith(READY + STARTED):
            raise SandboxFault("a process ended before its limits held, in a sandbox that was kept")

    def end(self) -> None:
        """Kills it, and returns when nothing of it is left."""
        self._nursery.end_child()
        self._exchange.drop(self._descriptor)
        if self._program >= 0:
            os.close(self._program)
            self._program = -1


class Nursery:
    """One kept sandbox of a role, in use by one thread, which must outlive it.

    Raises:
      SandboxFault: it cannot be built.
    """

    def __init__(self, config: CodeConfig, role: str) -> None:
        self.key = _key(config)
        exchange = Exchange()
        self._requests, theirs = socket.socketpair()
        with theirs:
            job = {"role": role, "preload": _PRELOAD}
            running = start(config, f"nursery_{role}", job, exchange, channel=theirs.fileno())
        self._finalizer = weakref.finalize(self, _end, running, exchange, self._requests, os.getpid())
        try:
            exchange.run(running.stands, time.monotonic() + START_LIMIT)
            running.send()
            exchange.run(lambda: len(running.control.data) >= 2 or running.control.ended, time.monotonic() + START_LIMIT)
            running.check_started()
        except BaseException:
            self._finalizer()
            raise
        self._requests.settimeout(END_LIMIT)
        self.busy = False

    @property
    def alive(self) -> bool:
        """Whether it can be asked for another process."""
        return self._finalizer.alive

    def fork(self, config: CodeConfig, job: dict[str, Any], exchange: Exchange, channel: int) -> Forked:
        """Starts a process for one completion.

        Raises:
          OSError: the sandbox is gone.
        """
        confined = confinement(config) | {"forked_filter": _filter()}
        program, program_end = os.pipe()
        control_end, control = os.pipe()
        try:
            socket.send_fds(self._requests, [b"F"], [program, control, channel])
        except OSError:
            os.close(program_end)
            os.close(control_end)
            raise
        finally:
            os.close(program)
            os.close(control)
        self.busy = True
        return Forked(self, exchange, control_end, program_end, marshal.dumps((b"", job, confined)))

    def end_child(self) -> None:
        """Has the process killed; where the sandbox does not say that nothing is left, ends the sandbox with it."""
        self.busy = False
        try:
            self._requests.sendall(b"K")
            if self._requests.recv(1) == b"D":
                return
        except OSError:
            pass
        self._finalizer()

    def close(self) -> None:
        """Ends the sandbox and all in it."""
        self._finalizer()


def start_forked(config: CodeConfig, role: str, job: dict[str, Any], exchange: Exchange, channel: int) -> Forked | Running:
    """A process of a role for one completion: forked in this thread's kept sandbox, or where none can be kept, started.

    Raises:
      SandboxFault: no sandbox can be built.
    """
    if config.sandbox != "bubblewrap":
        return start(config, role, job, exchange, channel=channel)
    kept: dict[str, Nursery] = _of_this_thread.__dict__.setdefault("kept", {})
    for _ in range(2):
        nursery = kept.get(role)
        if nursery is not None and nursery.busy:
            return start(config, role, job, exchange, channel=channel)
        if nursery is None or not nursery.alive or nursery.key != _key(config):
            if nursery is not None:
                nursery.close()
            nursery = kept[role] = Nursery(config, role)
        try:
            return nursery.fork(config, job, exchange, channel)
        except OSError:  # it was killed by others: another one takes its place
            nursery.close()
    raise SandboxFault(f"a sandbox that is kept for the {role} code ends as soon as it is used")


def close_kept() -> None:
    """Ends the sandboxes that this thread keeps."""
    for nursery in _of_this_thread.__dict__.pop("kept", {}).values():
        nursery.close()


_of_this_thread = threading.local()


def _forget() -> None:
    # A forked child's copy: the sandboxes are its parent's, and their pipes too.
    _of_this_thread.__dict__.pop("kept", None)


os.register_at_fork(after_in_child=_forget)


def _key(config: CodeConfig) -> tuple[Any, ...]:
    return config.packages, config.limits.file_mb


@cache
def _filter() -> tuple[bytes, ...]:
    """The filter of a process whose number is not known yet: the parts that stand around the number."""
    return tuple(filter_program(process=_NOBODY).split(struct.pack("=I", _NOBODY)))


def _end(running: Running, exchange: Exchange, requests: socket.socket, owner: int) -> None:
    if os.getpid() == owner:
        running.end()
        exchange.close()
    with contextlib.suppress(OSError):
        requests.close()
