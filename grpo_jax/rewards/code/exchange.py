"""Several pipes served at the same time: bounded reading and writing until something is so, or a deadline passes."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable


class Sink:
    """What was read from a descriptor.

    Attributes:
      data: the bytes, `limit` of them at most.
      ended: whether the other side has closed it.
      overflown: whether there were more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.data = bytearray()
        self.ended = False
        self.overflown = False

    def _take(self, part: bytes) -> None:
        self.ended = self.ended or not part
        room = self.limit - len(self.data)
        self.overflown = self.overflown or len(part) > room
        self.data += part[:room]


class Exchange:
    """The descriptors of one judgement. It closes one that it writes when all is written, one that it reads at `drop`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._sinks: dict[int, Sink] = {}
        self._feeds: dict[int, memoryview] = {}

    def collect(self, descriptor: int, limit: int) -> Sink:
        """Reads from a descriptor from now on, and keeps up to `limit` bytes."""
        sink = self._sinks[descriptor] = Sink(limit)
        self._poll.register(descriptor, select.POLLIN)
        return sink

    def feed(self, descriptor: int, data: bytes) -> None:
        """Writes data to a descriptor from now on, then closes it."""
        os.set_blocking(descriptor, False)
        self._feeds[descriptor] = memoryview(data)
        self._poll.register(descriptor, select.POLLOUT)

    def drop(self, descriptor: int) -> None:
        """Reads no more from a descriptor, and closes it."""
        if not self._sinks.pop(descriptor).ended:
            self._poll.unregister(descriptor)
        os.close(descriptor)

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Serves until `until()`, or until `deadline` by the monotonic clock; says whether the first came about."""
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, _ in self._poll.poll(left * 1000):
                if descriptor in self._sinks:
                    self._read(descriptor)
                elif descriptor in self._feeds:
                    self._write(descriptor)
        return True

    def close(self) -> None:
        """Closes what is still to be written to."""
        for descriptor in list(self._feeds):
            self._end_feed(descriptor)

    def _read(self, descriptor: int) -> None:
        sink = self._sinks[descriptor]
        sink._take(os.read(descriptor, 1 << 16))
        if sink.ended:
            self._poll.unregister(descriptor)

    def _write(self, descriptor: int) -> None:
        rest = self._feeds[descriptor]
        with contextlib.suppress(BlockingIOError):
            try:
                rest = rest[os.write(descriptor, rest[: 1 << 16]) :]
            except BrokenPipeError:  # a program need not read its input
                rest = rest[len(rest) :]
        self._feeds[descriptor] = rest
        if not rest:
            self._end_feed(descriptor)

    def _end_feed(self, descriptor: int) -> None:
        del self._feeds[descriptor]
        with contextlib.suppress(KeyError):
            self._poll.unregister(descriptor)
        os.close(descriptor)
