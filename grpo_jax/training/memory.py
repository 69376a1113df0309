"""Peak memory: of this process, and of its fullest device."""

import resource
import sys
from collections.abc import Sequence

import jax

from grpo_jax.training.metrics_log import Record

HOST, DEVICE = "peak_memory/host", "peak_memory/device"
"""Names of the two metrics, in bytes."""


def memory_metrics() -> dict[str, int | None]:
    """The most bytes used so far by this process, and on the fullest device; None where the platform does not say."""
    # Linux counts in kibibytes, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    used = [stats["peak_bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    return {HOST: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, DEVICE: max(used, default=None)}


def peak_memory(records: Sequence[Record]) -> dict[str, int | None]:
    """The most bytes that any process of a run has used, from its log and this process, by `host` and `device`."""
    sources = [memory_metrics(), *records]

    def most(name: str) -> int | None:
        return max((value for source in sources if (value := source.get(name)) is not None), default=None)

    return {"host": most(HOST), "device": most(DEVICE)}
