"""Devices for a mesh: made on a CPU host before jax starts, and otherwise refused with the count."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from grpo_jax.parallel import MeshShape, ensure_devices

FRESH = """
import jax
from grpo_jax.parallel import MeshShape, ensure_devices, make_mesh, row_sharding
shape = MeshShape.parse("3")
print(ensure_devices(shape))
rows = jax.device_put(jax.numpy.arange(6), row_sharding(make_mesh(shape)))
print(len(jax.devices()), len(rows.addressable_shards), jax.jit(lambda x: x.sum())(rows))
print(ensure_devices(shape))
"""

STARTED = """
import jax
from grpo_jax.parallel import MeshShape, ensure_devices
print(len(jax.devices()))
print(ensure_devices(MeshShape()))
try:
    ensure_devices(MeshShape.parse("1x4"))
except ValueError as error:
    print(error)
"""


def _lines(program):
    """What a process of its own prints, with as many devices as jax gives it by itself."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    environment["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_missing_cpu_devices_are_made_and_said_in_one_line():
    assert _lines(FRESH) == ["mesh fsdp=3: this CPU host's 3 devices are virtual.", "3 3 15", "None"]


def test_cpu_backend_that_already_runs_with_too_few_is_refused():
    count, unneeded, error = _lines(STARTED)
    assert (count, unneeded) == ("1", "None")
    assert error.startswith("mesh tensor=4 covers 4 devices, but the CPU backend already runs with 1: ")
    assert "before the first jax computation" in error and "JAX_NUM_CPU_DEVICES=4" in error


def test_devices_that_suffice_need_no_word():
    assert ensure_devices(MeshShape.parse("8")) is None
    assert ensure_devices(MeshShape.parse("2x2")) is None


def test_a_refused_mesh_leaves_the_setting_alone():
    with pytest.raises(ValueError, match="already runs with 8"):
        ensure_devices(MeshShape.parse("16"))
    assert jax.config.jax_num_cpu_devices == 8


@pytest.mark.parametrize("mesh, count", [("4", 2), ("2", 4)])
def test_accelerators_of_another_count_are_refused(monkeypatch, mesh, count):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu")] * count)
    with pytest.raises(ValueError, match=rf"covers {mesh} devices, but this machine has {count} gpu devices"):
        ensure_devices(MeshShape.parse(mesh))


def test_accelerators_of_the_right_count_need_no_word(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu")] * 4)
    assert ensure_devices(MeshShape.parse("2x2")) is None
