"""The processes of a run: one per host, started by the same command, each with its share of the mesh's devices.

All of them go through the same steps with the same draws: jax runs one program over the devices of all, and whatever one
process alone found out (a file's content, a signal, a refusal) is told to the others before anybody acts on it. These
functions are called by every process at the same point; where there is one process, nothing is exchanged.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

# What names the processes where no cluster does (TPU pods and Slurm do). jax itself reads the first only.
ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

_SHUTDOWN_SECONDS = 60
"""How long a process that ends waits for the others. Those of a run end together; one that fails ends them after it."""


def start_hosts(hosts: int, *, timeout: int = 300) -> None:
    """Joins the processes of a run; does nothing for one.

    Call it before anything asks jax for a device. Whether those that found each other are `hosts` is `ensure_devices`' to
    say: jax counts them when its backend starts.

    Args:
        hosts: processes of the run.
        timeout: seconds to wait for the others; the process ends after it, with a message and exit status 2.

    Raises:
        ValueError: nothing says where the other processes are, or what says it contradicts `hosts`.
    """
    if hosts == 1 or jax.distributed.is_initialized():
        return
    address, count, number = os.environ.get(ADDRESS), _whole_number(COUNT), _whole_number(NUMBER)
    by_hand = (
        f"Start the same command on every host. Where neither a TPU pod nor Slurm says who takes part, each needs "
        f"{ADDRESS}=HOST:PORT of the first, {COUNT}={hosts}, and {NUMBER} from 0 to {hosts - 1}"
    )
    if count not in (None, hosts):
        raise ValueError(f"hosts is {hosts}, but {COUNT} is {count}: the two must agree. {by_hand}")
    if number is not None and not 0 <= number < hosts:
        raise ValueError(f"hosts is {hosts}, but {NUMBER} is {number}: it must be from 0 to {hosts - 1}. {by_hand}")
    if address and number is not None:
        count = hosts
    # jax's service for preemptions would take SIGTERM for itself; the training loop has its own handler.
    jax.config.update("jax_enable_preemption_service", False)
    missing = f"hosts is {hosts}, but not all of the {hosts} processes were there within {timeout} seconds. {by_hand}"
    try:
        with _deadline(timeout, missing):
            jax.distributed.initialize(
                address,
                count,
                number,
                # A process has all accelerators of its host. Without this, jax gives a Slurm task one of them.
                local_device_ids=None if "JAX_LOCAL_DEVICE_IDS" in os.environ else [],
                initialization_timeout=timeout + 60,
                shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            )
    except (ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"hosts is {hosts}, but the {hosts} processes did not find each other ({reason}). {by_hand}"
        ) from error


@contextlib.contextmanager
def _deadline(seconds: float, message: str) -> Iterator[None]:
    """Ends the process with a message when the block takes longer: jax would abort it, with a stack trace of its own."""

    def give_up() -> None:
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _whole_number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise ValueError(f"{name} is {text!r}, but it must be a whole number. Correct it, or leave it unset")
    return int(text)


def is_first() -> bool:
    """Whether this process writes what people read of the run: the first of several does, and one alone."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def gathered[T](value: T) -> list[T]:
    """What every process gives, in the order of the processes.

    Args:
        value: anything that can be pickled.
    """
    # Asked in this order, because jax.process_count() starts the backend.
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return [value]
    text = pickle.dumps(value)
    lengths = multihost_utils.process_allgather(np.array([len(text)], np.int32)).reshape(-1)
    # Powers of two, so that few programs are compiled.
    padded = np.zeros(max(256, 1 << int(lengths.max() - 1).bit_length()), np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def from_first[T](value: T) -> T:
    """What the first process gives; what the others give is passed over."""
    return gathered(value if is_first() else None)[0]  # type: ignore[return-value]


@contextlib.contextmanager
def together() -> Iterator[None]:
    """A block that all processes leave alike: an exception within it on one of them is raised on all.

    Nothing in the block may wait for the other processes.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    first = next((each for each in gathered(_portable(problem)) if each is not None), None)
    if problem is not None:
        raise problem
    if first is not None:
        raise first


def _portable(error: Exception | None) -> Exception | None:
    """The exception, or its text where another process could not make it from its pickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__} on another host: {error}")
    return error


def place(array: Any, sharding: Sharding | None) -> jax.Array:
    """An array laid out over devices, of which each process fills its own.

    Args:
        array: whole and the same on every process, or spread over them already.
        sharding: None is the default device.
    """
    spread = isinstance(array, jax.Array) and not array.is_fully_addressable
    if sharding is None or sharding.is_fully_addressable or spread:
        return jax.device_put(array, sharding)
    # device_put would compare the values of all processes first.
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def to_host[T](tree: T) -> T:
    """A tree of arrays as NumPy arrays, whole on every process."""
    return jax.device_get(jax.tree.map(_readable, tree))


def _readable(leaf: Any) -> Any:
    """An array that this process can read; one that is spread over several is gathered."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    return multihost_utils.process_allgather(leaf, tiled=True)
