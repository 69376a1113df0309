"""What an op is checked and timed on: one table of cases per op, which the check, the tests and the benchmarks share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pallas_kernels.dispatch import Implementation

Arrays = tuple[np.ndarray, ...]


def normals(generator: np.random.Generator, arguments: tuple[jax.ShapeDtypeStruct, ...]) -> Arrays:
    """Standard normals of the given shapes and dtypes."""
    return tuple(generator.standard_normal(a.shape, np.float32).astype(a.dtype) for a in arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """An op at one shape.

    Attributes:
        op: the public function's name.
        label: the shape as a table prints it: "B64 S8192 N16 C512 R64".
        dtype: of the arguments that matter.
        table: the op's implementations.
        arguments: shapes and dtypes of the arrays that `run` takes.
        run: calls the op on those arrays: run(*arrays, impl=name) gives a tree of arrays.
        expected: float64 NumPy, sharing no code with the implementations: what `run` should give for these arrays, or the
            leading part of it along any dimension, where all of it would take long.
        bytes: bytes that must cross device memory at least, each input and output once.
        flops: floating-point operations of the matrix products.
        fill: makes the arrays.
        backward: whether `run` also computes gradients.
        tolerance: greatest error allowed, absolute and relative to 1 + |expected|.
        in_place: pairs (argument, result), by their numbers: the result is the argument's new value, and takes its memory.
            Without this, timing an op that writes a few slots of a cache would time the copy of the cache.
    """

    op: str
    label: str
    dtype: str
    table: tuple[Implementation, ...]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    run: Callable[..., Any]
    expected: Callable[..., Any]
    bytes: int
    flops: int
    fill: Callable[[np.random.Generator, tuple[jax.ShapeDtypeStruct, ...]], Arrays] = normals
    backward: bool = False
    tolerance: float | None = None
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def allowed(self) -> float:
        return self.tolerance if self.tolerance is not None else {"float32": 1e-5}.get(self.dtype, 1e-2)

    def implementations(self, platform: str) -> tuple[Implementation, ...]:
        """Those of a platform that serve this case; the reference serves every platform."""
        return tuple(i for i in self.table if i.platform in (platform, None))

    def abstract_outputs(self) -> Any:
        return jax.eval_shape(lambda *arrays: self.run(*arrays, impl="reference"), *self.arguments)
