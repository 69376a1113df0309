"""SIGTERM and Ctrl-C as a request to stop after the current step, so that the state can be saved first."""

from __future__ import annotations

import signal
import threading
import types

from grpo_jax.parallel import gathered

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """While entered, the first SIGTERM or SIGINT sets `requested`; a SIGINT after it acts as it does without this.

    Handlers belong to a process's main thread: entered in another, it asks for nothing and `requested` stays None.

    Attributes:
      requested: the signal that asked to stop, or None.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[int, object] = {}

    def agreed(self) -> signal.Signals | None:
        """The signal that asked any process of the run to stop, or None; every process asks at the same point."""
        return next((asked for asked in gathered(self.requested) if asked), None)

    def _ask(self, number: int, frame: types.FrameType | None) -> None:
        self.requested = signal.Signals(number)
        # A second Ctrl-C acts at once. A second SIGTERM does not: `timeout` and others send it to a process twice.
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])  # type: ignore[arg-type]

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self._restore()
