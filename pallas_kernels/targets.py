"""GPUs and TPUs to compile for on a machine that has none, with the figures that a roofline needs.

    mesh = TARGETS["h200"].mesh((1, 8), ("fsdp", "tensor"))
    with targets.compiling_for(mesh):
        compiled = jax.jit(f).lower(*shapes_with_shardings_on(mesh)).compile()

The chip's own compiler runs: the program lowers, is partitioned and fits, or the compiler says why not. Nothing runs, so
this tells nothing of numerics or speed. It takes the packages of the extra `aot`, and `prepare()` before JAX starts.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator, Sequence

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

# How the compilers are had.
INSTALL = "make test-aot sets up .venv-aot, whose Python has it (the extra aot of grpo_jax)"


def prepare() -> None:
    """Sets what the compilers read from the environment. Call it before JAX has started a backend.

    The process then computes on its CPU, unless JAX_PLATFORMS says otherwise: a plugin without its device would make JAX
    complain at start-up.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu asks a metadata server which chips there are
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # several processes may compile at once
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # the plugin wants cuDNN, which compiling does not


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A device to compile for.

    Attributes:
        name: as the command line has it.
        platform: "gpu" or "tpu".
        description: what the device is called in tables.
        bandwidth: bytes a second that its memory moves at most, from its data sheet.
        flops: floating-point operations a second of its matrix units, dense, by dtype, from its data sheet.
        memory: bytes of device memory.
        package: what has to be installed to compile for it.
        config: a GPU's properties as a text proto of XLA's GpuTargetConfigProto; empty for a TPU.
        compute_capability: a GPU's architecture times ten (90 is Hopper); 0 for a TPU.
        chips: a TPU's smallest topology, which a mesh of one device is taken from.
    """

    name: str
    platform: str
    description: str
    bandwidth: float
    flops: dict[str, float]
    memory: int
    package: str
    config: str = ""
    compute_capability: int = 0
    chips: str = ""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def mesh(self, shape: Sequence[int], axes: Sequence[str], topology: str | None = None) -> Mesh:
        """A mesh of devices that are only described.

        Args:
            shape: devices along each axis.
            axes: the axes' names.
            topology: how the devices hang together: "hosts" or slices of a GPU cluster as "1x8x8", a TPU's as "v5e:8x8".
                By default, GPUs of one host, or a TPU's smallest topology, of which the first devices are taken.

        Raises:
            ModuleNotFoundError: the packages to compile for it are missing.
            ValueError: the topology has fewer devices than the mesh.
        """
        if not self.installed:
            raise ModuleNotFoundError(
                f"compiling for {self.description} needs {self.package}, which is not installed: {INSTALL}."
            )
        prepare()
        count = math.prod(shape)
        if self.platform == "gpu":
            described = topologies.get_topology_desc(
                platform="cuda", topology_name="topology", topology=topology or f"1x1x{count}", target_config=self.config
            )
        else:
            described = topologies.get_topology_desc(platform="tpu", topology_name=topology or self.chips)
        if len(described.devices) < count:
            raise ValueError(
                f"{self.name}: a mesh of {count} devices does not fit topology {topology or self.chips!r}, which has "
                f"{len(described.devices)}."
            )
        if len(described.devices) == count:
            devices = topologies.make_mesh(described, tuple(shape), tuple(axes)).devices
        else:
            import numpy as np

            devices = np.array(described.devices[:count]).reshape(shape)
        return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def _gpu(name: str, description: str, capability: tuple[int, int], properties: str, **figures) -> Target:
    config = (
        f"gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 "
        f"threads_per_core_limit: 2048 fpus_per_core: {64 if capability == (8, 0) else 128} "
        f"block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 "
        f"memory_bandwidth: {int(figures['bandwidth'])} device_memory_size: {figures['memory']} {properties} "
        f"cuda_compute_capability {{ major: {capability[0]} minor: {capability[1]} }} "
        f"registers_per_core_limit: 65536 registers_per_block_limit: 65536 }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{description}"'
    )
    return Target(
        name=name, platform="gpu", description=description, package="jax_cuda13_plugin", config=config,
        compute_capability=10 * capability[0] + capability[1], **figures,
    )  # fmt: skip


def _tpu(name: str, description: str, chips: str, **figures) -> Target:
    return Target(name=name, platform="tpu", description=description, package="libtpu", chips=chips, **figures)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _gpu(
            "a100", "NVIDIA A100-SXM4-80GB", (8, 0),
            "shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 core_count: 108 l2_cache_size: 41943040 "
            "clock_rate_ghz: 1.41",
            bandwidth=2.039e12, memory=85_017_755_648, flops={"bfloat16": 312e12, "float32": 19.5e12, "int8": 624e12},
        ),
        _gpu(
            "h200", "NVIDIA H200", (9, 0),
            "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 core_count: 132 l2_cache_size: 52428800 "
            "clock_rate_ghz: 1.98",
            bandwidth=4.8e12, memory=151_397_597_184, flops={"bfloat16": 989e12, "float32": 67e12, "int8": 1979e12},
        ),
        _gpu(
            "b200", "NVIDIA B200", (10, 0),
            "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 core_count: 148 l2_cache_size: 132644864 "
            "clock_rate_ghz: 1.965",
            bandwidth=8e12, memory=191_514_345_472, flops={"bfloat16": 2250e12, "float32": 75e12, "int8": 4500e12},
        ),
        _tpu(
            "v5e", "TPU v5e", "v5e:2x2",
            bandwidth=819e9, memory=16 * 2**30, flops={"bfloat16": 197e12, "float32": 197e12 / 6, "int8": 394e12},
        ),
        _tpu(
            "v6e", "TPU v6e", "v6e:2x2",
            bandwidth=1640e9, memory=32 * 2**30, flops={"bfloat16": 918e12, "float32": 918e12 / 6, "int8": 1836e12},
        ),
        _tpu(
            "v5p", "TPU v5p", "v5p:2x2x1",
            bandwidth=2765e9, memory=95 * 2**30, flops={"bfloat16": 459e12, "float32": 459e12 / 6, "int8": 918e12},
        ),
    )
}  # fmt: skip


@contextlib.contextmanager
def compiling_for(mesh: Mesh) -> Iterator[Mesh]:
    """What is traced inside is for the mesh's devices: ops choose their implementations by them."""
    # The mesh's own abstract mesh knows the kind of its devices; one made of sizes and names would not.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield mesh
