"""Every test process gets eight virtual CPU devices, so that sharded tests need no process of their own."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

# Through jax.config rather than the environment: programs that a test starts choose their own number of devices.
jax.config.update("jax_num_cpu_devices", 8)

# Tests, and the programs that they start, compile far more than they compute. Without LLVM's optimizations, which change
# how fast a program is and not what XLA makes of it, they take a third less time.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


# Every compiled program is some memory maps of its process, of which Linux allows 65,530; a process that runs half of the
# suite would come to more, and from then on nothing could be compiled.
_MAPS = Path("/proc/self/maps")
_MOST_MAPS = 20_000
_TESTS_BETWEEN_LOOKS = 20
_finished = 0


def pytest_runtest_teardown() -> None:
    """Lets the compiled programs go, now and then, where they have become many."""
    global _finished
    _finished += 1
    if _finished % _TESTS_BETWEEN_LOOKS == 0 and _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
