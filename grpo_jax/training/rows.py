"""The rows of a batch: their order, and their place on the devices."""

from __future__ import annotations

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from grpo_jax.parallel import place, row_sharding


def place_rows(array: np.ndarray, mesh: Mesh | None) -> Array:
    """An array of a batch on the device, or on the mesh with its rows split over the mesh's row axes."""
    return place(array, None if mesh is None else row_sharding(mesh))


def live_first(live: Bool[np.ndarray, " B"], microbatches: int) -> np.ndarray:
    """An order of rows that fills whole microbatches with live rows first: a microbatch without one is never computed.

    Row r of a batch belongs to microbatch r mod M (steps.py).
    """
    ranked = np.argsort(~live, kind="stable")
    return ranked.reshape(microbatches, -1).T.reshape(-1)
