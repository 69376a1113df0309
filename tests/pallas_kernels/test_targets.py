"""Devices that are only described: meshes of them, and programs compiled for them."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pallas_kernels import resources
from pallas_kernels.dispatch import lowering_platform
from pallas_kernels.targets import TARGETS, Target, compiling_for, prepare

NAMES = ["a100", "h200", "b200", "v5e", "v6e", "v5p"]


def there(name: str) -> Target:
    target = TARGETS[name]
    if not target.installed:
        pytest.skip(f"{target.package} is not installed: run make test-aot")
    return target


def test_targets_are_found_by_their_names() -> None:
    assert list(TARGETS) == NAMES
    assert all(target.name == name and target.platform in ("gpu", "tpu") for name, target in TARGETS.items())


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_of_the_right_size(name: str) -> None:
    target = TARGETS[name]
    assert 5e11 < target.bandwidth < 1e13 and 1.5e10 < target.memory < 2e11
    assert target.flops["float32"] < target.flops["bfloat16"] < target.flops["int8"]
    # The machine balance of every chip lies between a hundred and six hundred FLOPs a byte.
    assert 100 < target.flops["bfloat16"] / target.bandwidth < 600
    assert (target.compute_capability >= 80) == (target.platform == "gpu") == bool(target.config) != bool(target.chips)


def test_a_missing_compiler_is_an_error_that_says_what_to_install() -> None:
    absent = dataclasses.replace(TARGETS["h200"], package="no_such_package")
    assert not absent.installed
    with pytest.raises(ModuleNotFoundError, match=r"NVIDIA H200 needs no_such_package.*make test-aot sets up \.venv-aot"):
        absent.mesh((1,), ("data",))


@pytest.mark.parametrize("name", NAMES)
def test_a_mesh_of_one_device_is_of_the_target_s_kind(name: str) -> None:
    target = there(name)
    mesh = target.mesh((1, 1), ("fsdp", "tensor"))
    assert dict(mesh.shape) == {"fsdp": 1, "tensor": 1} and mesh.axis_types == (AxisType.Auto,) * 2
    assert {"cuda": "gpu"}.get(mesh.devices.flat[0].platform, mesh.devices.flat[0].platform) == target.platform
    before = lowering_platform()
    with compiling_for(mesh) as inside:
        assert inside is mesh and lowering_platform() == target.platform
    assert lowering_platform() == before


@pytest.mark.parametrize(
    "name,shape,topology",
    [("h200", (2, 8), "1x2x8"), ("h200", (1, 8), None), ("v5e", (4, 4), "v5e:4x4"), ("v5e", (4,), None)],
)
def test_a_mesh_spans_the_topology(name: str, shape: tuple[int, ...], topology: str | None) -> None:
    mesh = there(name).mesh(shape, ("fsdp", "tensor")[: len(shape)], topology)
    assert mesh.devices.shape == shape
    assert len({device.id for device in mesh.devices.flat}) == mesh.size


@pytest.mark.parametrize("name,topology", [("v5e", "v5e:2x2"), ("h200", "1x1x4")])
def test_a_mesh_larger_than_its_topology_is_refused(name: str, topology: str) -> None:
    with pytest.raises(ValueError, match=f"a mesh of 8 devices does not fit topology '{topology}', which has 4"):
        there(name).mesh((8,), ("data",), topology)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_without_kernels_compiles_and_counts_none(name: str) -> None:
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    compiled = resources.compile_for(there(name), lambda x, y: (x @ y) @ y, x, x)
    assert compiled.calls == 0 and compiled.kernels == ()
    assert 0 <= compiled.temporary_bytes < 2**24


def test_a_program_that_does_not_fit_the_chip_is_the_compiler_s_error() -> None:
    huge = jax.ShapeDtypeStruct((2**17, 2**17), jnp.bfloat16)
    with pytest.raises(Exception, match=r"RESOURCE_EXHAUSTED|memory"):
        resources.compile_for(there("v5e"), lambda x: x @ x, huge)


def test_what_the_compilers_read_is_set_and_never_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in ((None, "cpu"), ("tpu", "tpu")):
        if given is None:
            monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        else:
            monkeypatch.setenv("JAX_PLATFORMS", given)
        prepare()
        assert os.environ["JAX_PLATFORMS"] == expected


def test_the_default_sharding_of_a_mesh_is_usable() -> None:
    mesh = there("v5e").mesh((2, 2), ("fsdp", "tensor"))
    on_it = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=on_it)
    text = jax.jit(lambda x: x @ x).lower(x).compile().as_text()
    assert text is not None and "all-gather" in text
