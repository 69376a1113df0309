"""Random inputs, drawn on all cores: a cache of a billion numbers would take one core longer than all its rows together."""

import concurrent.futures
import math
import os
from typing import Any

import numpy as np

CHUNK = 2**22


class ParallelGenerator(np.random.Generator):
    """NumPy's generator, whose standard_normal fills large arrays in chunks, each with a stream of its own.

    The numbers depend on the seed alone, and not on how many cores there are.
    """

    def __init__(self, seed: int):
        super().__init__(np.random.PCG64(seed))
        self._seeds = np.random.SeedSequence(seed)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        shape = (size,) if isinstance(size, int) else size
        if shape is None or out is not None or math.prod(shape) <= CHUNK:
            return super().standard_normal(size, dtype, out)
        filled = np.empty(math.prod(shape), dtype)
        chunks = [filled[start : start + CHUNK] for start in range(0, filled.size, CHUNK)]

        def fill(seed: np.random.SeedSequence, chunk: np.ndarray) -> None:
            np.random.Generator(np.random.SFC64(seed)).standard_normal(dtype=dtype, out=chunk)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, self._seeds.spawn(len(chunks)), chunks))
        return filled.reshape(shape)
