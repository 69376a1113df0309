"""The time that one call takes on a device, without the time that Python needs to dispatch it.

A short kernel takes less time than its dispatch, so a program holds several calls, and a chain of programs runs before one
waits. The calls of a program work on copies of the inputs: equal calls would be merged into one by the compiler (a barrier
between them does not prevent it on a TPU), and inputs that were just read would come from a cache and not from memory.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Clock = Callable[[], float]

# Inputs and outputs of all calls of a program; beyond that, a call takes long enough to stand alone.
PROGRAM_BYTES = 2**31
MOST_CALLS = 8

CHAIN_SECONDS = 0.02
REPEATS = 9
LEAST_REPEATS = 3
REPEAT_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one call: the median and the least of the repeats."""

    median: float
    least: float


def calls_of_a_program(call_bytes: int) -> int:
    """How many calls a program holds whose inputs and outputs take `call_bytes` each."""
    return max(1, min(MOST_CALLS, PROGRAM_BYTES // max(1, call_bytes)))


class Program:
    """A compiled program of several calls of `function`, each on a copy of the arrays.

    Args:
        function: takes the arrays, gives a tree of arrays.
        arrays: stay as they are.
        calls: how many.
        in_place: pairs (argument, leaf of the result): the argument's memory is given to the result, and the next run starts
            from that.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arrays: tuple[jax.Array, ...],
        calls: int,
        in_place: tuple[tuple[int, int], ...] = (),
    ):
        self._in_place = in_place
        given = [argument for argument, _ in in_place]
        copied = copies(arrays, calls + 1)[1:] if in_place else copies(arrays, calls)
        self._given = tuple({i: copy[i] for i in given} for copy in copied)
        self._kept = tuple({i: array for i, array in enumerate(copy) if i not in given} for copy in copied)
        whole = jax.jit(several(function), donate_argnums=0)
        self._compiled = whole.lower(self._given, self._kept).compile()

    def __call__(self) -> tuple[Any, ...]:
        """Starts the calls; returns their results, which may not be there yet."""
        results = self._compiled(self._given, self._kept)
        if self._in_place:
            leaves = [jax.tree.leaves(result) for result in results]
            self._given = tuple({argument: leaf[number] for argument, number in self._in_place} for leaf in leaves)
        return results


def several(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """`function` on several sets of arrays, each in two parts, by their numbers."""

    def run(given: tuple[dict[int, jax.Array], ...], kept: tuple[dict[int, jax.Array], ...]) -> tuple[Any, ...]:
        sets = [a | b for a, b in zip(given, kept, strict=True)]
        return tuple(function(*(arrays[i] for i in sorted(arrays))) for arrays in sets)

    return run


def copies(arrays: tuple[jax.Array, ...], count: int) -> tuple[tuple[jax.Array, ...], ...]:
    """The arrays, and count - 1 copies of them elsewhere in memory."""
    return (arrays, *(tuple(jnp.copy(array) for array in arrays) for _ in range(count - 1)))


def time_program(
    run: Callable[[], Any],
    calls: int,
    *,
    output_bytes: int = 0,
    wait: Callable[[Any], Any] = jax.block_until_ready,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Times a compiled program of `calls` calls that has already run once.

    Args:
        run: starts it and returns its outputs, which may not be there yet.
        calls: calls that it holds.
        output_bytes: of the program; many programs in flight may each hold theirs.
        wait: returns when outputs are there.
        clock: seconds.
    """
    before = clock()
    wait(run())
    once = clock() - before
    length = max(1, min(1000, math.ceil(CHAIN_SECONDS / max(once, 1e-9)), PROGRAM_BYTES // max(1, output_bytes)))
    times: list[float] = []
    began = clock()
    while len(times) < LEAST_REPEATS or (len(times) < REPEATS and clock() - began < REPEAT_SECONDS):
        before = clock()
        for _ in range(length - 1):
            run()
        wait(run())
        times.append((clock() - before) / (length * calls))
    return Timing(median=statistics.median(times), least=min(times))


def copy_bandwidth(nbytes: int = 2**30, clock: Clock = time.perf_counter) -> float:
    """Bytes a second, read and written, of a program that reads one array of `nbytes` and writes another."""
    array = jnp.ones(nbytes // 4, jnp.float32)
    negate = jax.jit(jnp.negative).lower(array).compile()
    jax.block_until_ready(negate(array))
    return 2 * array.nbytes / time_program(lambda: negate(array), 1, output_bytes=array.nbytes, clock=clock).median
