"""A pool of processes that judge rows while the trainer does other things.

A reward is somebody's program: it can hang, hold the interpreter's lock for ever, exhaust memory, or end its process. In a
process of its own that costs one row its reward, and no more. A thread for each process hands it rows and reads its
answers; each answer has a time limit, at which the process is ended and another takes its place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax.rewards.pool.config import PoolConfig
from grpo_jax.rewards.pool.process import WorkerEnded, WorkerProcess, WorkerRefused
from grpo_jax.rewards.protocol import RewardInput
from grpo_jax.rewards.verdict import MAX_REPORT, Verdict, raised, timed_out

_log = logging.getLogger(__name__)

GIVE_UP_AFTER = 8
"""Rows of a batch on which one reward may hang or end its process before its other rows are given up: waiting out each would
stop the run."""

_ITEMS_AT_ONCE = 16
_AWAITED_GRACE = 5.0  # awaited rewards are timed by the worker, together
_RESTARTS = 3  # of a worker that could be started before

_Item = tuple[int, str]


class PoolClosed(RuntimeError):
    """The pool was closed while rows waited to be judged."""


class PendingVerdicts:
    """Verdicts to come, of rows that were handed in together."""

    def __init__(self, rows: Sequence[RewardInput], asked: Mapping[str, Sequence[int]], *, probe: bool = False) -> None:
        self.rows, self.probe = rows, probe
        self._verdicts: dict[str, dict[int, Verdict | None]] = {name: dict.fromkeys(asked[name]) for name in asked}
        self._left = sum(map(len, self._verdicts.values()))
        self._lost: dict[str, list[Verdict]] = {name: [] for name in asked}
        self._refused: str | None = None
        self._lock, self._done = threading.Lock(), threading.Event()
        if not self._left and not probe:
            self._done.set()

    def result(self) -> dict[str, dict[int, Verdict]]:
        """The verdicts of each reward by the number of the row, once all are there.

        Raises:
          PoolClosed: the pool was closed before.
          ValueError: the workers cannot build the rewards.
        """
        # In steps, so that a signal is handled while waiting, whatever thread it reaches.
        while not self._done.wait(1.0):
            pass
        if self._refused is not None:
            raise ValueError(self._refused)
        with self._lock:
            if self._left:
                raise PoolClosed("the pool of reward workers was closed while rows waited to be judged")
        return {
            name: {index: verdict for index, verdict in verdicts.items() if verdict is not None}
            for name, verdicts in self._verdicts.items()
        }

    @property
    def done(self) -> bool:
        """Whether nothing is to come."""
        return self._done.is_set()

    def has(self, index: int, name: str) -> bool:
        """Whether this verdict is there."""
        return self._verdicts[name][index] is not None

    def settle(self, index: int, name: str, verdict: Verdict) -> None:
        """Takes a verdict; later ones on the same row are passed over."""
        with self._lock:
            if self._verdicts[name][index] is not None:
                return
            self._verdicts[name][index] = verdict
            if verdict.failure in ("timed_out", "died"):
                self._lost[name].append(verdict)
            self._left -= 1
            if not self._left:
                self._done.set()

    def given_up(self, name: str) -> Verdict | None:
        """The verdict on rows that a reward is not asked about any more, or None while it is."""
        lost = self._lost[name]
        if len(lost) < GIVE_UP_AFTER:
            return None
        report = f"given up: the reward was lost on {GIVE_UP_AFTER} rows of this batch, and at last {lost[-1].report}"
        return Verdict(failure=lost[-1].failure, report=report)

    def abandon(self, refused: str | None = None) -> None:
        """Ends the waiting."""
        self._refused = self._refused or refused
        self._done.set()


class _Shared:
    """What the threads work on; it does not know the pool, so that an unused pool can end."""

    def __init__(self, config: PoolConfig, setup: bytes, awaited: frozenset[str]) -> None:
        self.timeout, self.setup, self.awaited = config.timeout, setup, awaited
        # Of a few rows each: what waits is bounded, and with it the memory.
        self.tasks: queue.Queue[tuple[PendingVerdicts, list[_Item]] | None] = queue.Queue(
            max(config.max_pending // _ITEMS_AT_ONCE, config.processes)
        )
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self.workers: set[WorkerProcess] = set()
        self.owner, self.restarts, self.has_started = os.getpid(), 0, False


class RewardPool:
    """Worker processes that judge rows by rewards; started by the first rows, ended by `close` or with the interpreter.

    Args:
      config: how many, and their limits.
      reward_config: what the workers build the rewards from, by `resolve_reward`.
      rewards: component's name to reward's name or dotted path.
      awaited: the components that are awaited.
    """

    def __init__(
        self, config: PoolConfig, reward_config: Any, rewards: Mapping[str, str], awaited: frozenset[str] = frozenset()
    ) -> None:
        if config.processes < 1:
            raise ValueError(f"workers is {config.workers}, but a pool has at least 1")
        self.config = config
        self.rewards = dict(rewards)
        setup = pickle.dumps((reward_config, list(self.rewards.items()), config.timeout, os.getpid()))
        self._shared = _Shared(config, setup, awaited)
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _close, self._shared, self._threads)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        with self._shared.lock:
            return [worker.pid for worker in self._shared.workers]

    @property
    def restarts(self) -> int:
        """Workers that took the place of one that hung or died."""
        return self._shared.restarts

    def submit(self, rows: Sequence[RewardInput], asked: Mapping[str, Sequence[int]] | None = None) -> PendingVerdicts:
        """Hands in rows to be judged; waits while too many rows wait already.

        Args:
          rows: the rows.
          asked: component's name to the numbers of the rows that it is to judge; None for all rows and components.

        Raises:
          PoolClosed: the pool is closed.
        """
        asked = {name: range(len(rows)) for name in self.rewards} if asked is None else asked
        pending = PendingVerdicts(rows, asked)
        if not pending.done:
            self._start()
        for awaited in (False, True):
            items = sorted(
                (index, name) for name in asked if (name in self._shared.awaited) == awaited for index in asked[name]
            )
            at_once = _ITEMS_AT_ONCE if awaited else min(_ITEMS_AT_ONCE, self._share(len(items)))
            for start in range(0, len(items), at_once):
                self._put((pending, items[start : start + at_once]))
        return pending

    def check(self) -> None:
        """Starts a worker, unless one was started before, to see that it can build the rewards.

        Raises:
          ValueError: it cannot.
        """
        self._start()
        probe = PendingVerdicts((), {}, probe=True)
        self._put((probe, []))
        probe.result()

    def close(self) -> None:
        """Ends the workers at once; rows that wait get no verdict."""
        self._finalizer()

    def _share(self, items: int) -> int:
        """The size of a task: several for each worker, so that none waits long for the last."""
        return max(1, items // (4 * self.config.processes))

    def _put(self, task: tuple[PendingVerdicts, list[_Item]]) -> None:
        while True:
            if self._shared.closing.is_set():
                raise PoolClosed("the pool of reward workers is closed")
            with contextlib.suppress(queue.Full):
                self._shared.tasks.put(task, timeout=0.5)
                return

    def _start(self) -> None:
        if os.getpid() != self._shared.owner:
            raise PoolClosed(
                "the pool of reward workers is that of the process which this one was forked from. Make another"
            )
        if self._shared.closing.is_set():
            raise PoolClosed("the pool of reward workers is closed")
        if not self._threads:
            for number in range(self.config.processes):
                thread = threading.Thread(target=_serve, args=(self._shared,), name=f"reward-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)


def _close(shared: _Shared, threads: Sequence[threading.Thread]) -> None:
    if os.getpid() != shared.owner:  # a forked child's copy: the workers are its parent's
        return
    shared.closing.set()
    with shared.lock:
        workers = list(shared.workers)
    for worker in workers:
        worker.kill()
    for _ in threads:
        with contextlib.suppress(queue.Full):
            shared.tasks.put_nowait(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(timeout=10)
    while True:
        try:
            task = shared.tasks.get_nowait()
        except queue.Empty:
            return
        if task is not None:
            task[0].abandon()


def _serve(shared: _Shared) -> None:
    """A thread's work: tasks to one worker, which is replaced when it hangs or dies."""
    worker: WorkerProcess | None = None
    try:
        while not shared.closing.is_set():
            try:
                task = shared.tasks.get(timeout=1.0)
            except queue.Empty:
                continue
            if task is None:
                return
            pending, items = task
            try:
                worker = _judge(shared, worker, pending, items)
            except WorkerRefused as error:
                worker = None
                _refused(shared, pending, items, error)
            except Exception as error:
                # Whoever waits for these rows must not wait for ever, whatever this thread has met with.
                _log.exception("rows could not be judged")
                if worker is not None:
                    _end(shared, worker)
                    worker = None
                _settle_all(pending, items, raised(error))
            finally:
                if shared.closing.is_set():
                    pending.abandon()
    finally:
        if worker is not None:
            _end(shared, worker)


def _judge(
    shared: _Shared, worker: WorkerProcess | None, pending: PendingVerdicts, items: Sequence[_Item]
) -> WorkerProcess | None:
    """Has all items judged; returns the worker that is left."""
    if pending.probe:
        worker = worker or _started(shared)
        pending.abandon()
    while not shared.closing.is_set():
        for index, name in items:
            if verdict := pending.given_up(name):
                pending.settle(index, name, verdict)
        left = [(index, name) for index, name in items if not pending.has(index, name)]
        if not left:
            return worker
        request = _request(pending, left)
        if request is None:
            continue
        worker = worker or _started(shared)
        try:
            worker.ask(request)
            while left:
                item, verdict = _read(worker.answer(_limit(shared, left)), left)
                pending.settle(*item, verdict)
                left.remove(item)
            return worker
        except (TimeoutError, WorkerEnded) as error:
            if shared.closing.is_set():
                return worker
            _blame(shared, pending, left, error)
            _end(shared, worker)
            worker = None
            with shared.lock:
                shared.restarts += 1
    return worker


def _request(pending: PendingVerdicts, items: Sequence[_Item]) -> bytes | None:
    """What a worker is sent; None where some rows cannot be sent, whose verdicts that is."""
    try:
        return pickle.dumps([(index, name, pending.rows[index]) for index, name in items])
    except Exception as error:
        refused = [item for item in items if not _can_be_sent(pending.rows[item[0]])] or items
        _settle_all(pending, refused, raised(error))
        return None


def _can_be_sent(row: RewardInput) -> bool:
    try:
        pickle.dumps(row)
    except Exception:
        return False
    return True


def _read(answer: Any, left: Sequence[_Item]) -> tuple[_Item, Verdict]:
    """An answer's row and verdict.

    Raises:
      WorkerEnded: it is none; a reward has written among the answers, or answers twice.
    """
    try:
        index, name, value, failure, report = answer
        known = (index, name) in left and (value is None or isinstance(value, float | int)) and isinstance(report, str)
        if known and failure in (None, "raised", "timed_out"):
            return (index, name), Verdict(failure=failure, report=report) if value is None else Verdict(value=float(value))
    except (TypeError, ValueError):
        pass
    raise WorkerEnded(f"it said {str(answer)[:80]}, which is no answer to what it was asked")


def _limit(shared: _Shared, left: Sequence[_Item]) -> float:
    return shared.timeout + (_AWAITED_GRACE if left[0][1] in shared.awaited else 0.0)


def _blame(shared: _Shared, pending: PendingVerdicts, left: Sequence[_Item], error: Exception) -> None:
    """The verdict on what the worker was at when it hung or died: the first that is left, or all that are awaited."""
    late = isinstance(error, TimeoutError)
    verdict = timed_out(shared.timeout) if late else Verdict(failure="died", report=str(error)[:MAX_REPORT])
    culprits = [item for item in left if item[1] in shared.awaited] if late and left[0][1] in shared.awaited else left[:1]
    for index, name in culprits:
        pending.settle(index, name, verdict)
    _log.info("a reward worker is replaced: %s", error)


def _started(shared: _Shared) -> WorkerProcess:
    for attempt in range(_RESTARTS):
        try:
            worker = WorkerProcess(shared.setup)
            break
        except WorkerRefused:
            # Where one was started before, the machine may be short of something for a moment.
            if not shared.has_started or attempt == _RESTARTS - 1 or shared.closing.wait(2.0**attempt):
                raise
    with shared.lock:
        shared.workers.add(worker)
        shared.has_started = True
    if shared.closing.is_set():
        worker.kill()
    return worker


def _refused(shared: _Shared, pending: PendingVerdicts, items: Sequence[_Item], error: WorkerRefused) -> None:
    """A configuration that cannot work ends the waiting; a machine in need, later in a run, costs these rows only."""
    if not shared.has_started:
        pending.abandon(f"the reward workers cannot build their rewards: {error}")
        return
    _log.warning("a reward worker cannot be started again: %s", error)
    _settle_all(pending, items, Verdict(failure="died", report=str(error)[:MAX_REPORT]))


def _settle_all(pending: PendingVerdicts, items: Sequence[_Item], verdict: Verdict) -> None:
    if pending.probe:
        pending.abandon()
    for index, name in items:
        pending.settle(index, name, verdict)


def _end(shared: _Shared, worker: WorkerProcess) -> None:
    with shared.lock:
        shared.workers.discard(worker)
    worker.end()
