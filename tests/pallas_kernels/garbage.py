"""What tests leave in memory that an op must not use: NaN for kernels, large numbers for references."""

from typing import Any

import jax
import numpy as np

LARGE = 1e30


def garbage_for(impl: str, tree: Any) -> Any:
    """The tree as it is for a kernel. A reference multiplies what is hidden by 0, so its garbage must be finite."""

    def finite(array: Any) -> Any:
        array = np.asarray(array)
        wide = array.astype(np.float64) if array.dtype.kind in "fV" else array
        if not np.isnan(wide).any():
            return array
        largest = float(jax.numpy.finfo(array.dtype).max)
        return np.where(np.isnan(wide), min(LARGE, largest), wide).astype(array.dtype)

    return jax.tree.map(finite, tree) if impl == "reference" else tree
