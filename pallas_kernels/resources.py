"""What a compiled kernel takes of its chip: registers, spills and shared memory, as the chip's own assembler counts them."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels.targets import INSTALL, Target, compiling_for

# How a kernel shows in a compiled module.
_KERNEL_CALL = re.compile(r'custom_call_target="(triton_kernel_call|mosaic_gpu|__gpu\$xla\.gpu\.triton|tpu_custom_call)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel of a compiled program, as ptxas counts it."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A program compiled for a target.

    Attributes:
        calls: the custom calls in the module that are kernels.
        kernels: what the assembler says of each GPU kernel; empty for a TPU.
        temporary_bytes: device memory that XLA plans for intermediate arrays.
    """

    calls: int
    kernels: tuple[Kernel, ...]
    temporary_bytes: int


def kernel_calls(text: str) -> int:
    """How many kernels the text of a compiled module calls; what stands in a loop is counted once."""
    return len(_KERNEL_CALL.findall(text))


def compile_for(target: Target, function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> Compiled:
    """Compiles `function` for one device of the target.

    Args:
        target: from TARGETS.
        function: takes arrays of the given shapes.
        *arguments: shapes and dtypes.
    """
    mesh = target.mesh((1,), ("device",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    placed = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere) for a in arguments]

    def on_device(*arrays: jax.Array) -> Any:
        return function(*arrays)

    def whole(*arrays: jax.Array) -> Any:
        # A Mosaic kernel cannot be partitioned automatically, not even over one device.
        spec = PartitionSpec()
        return jax.shard_map(
            on_device, mesh=mesh, in_specs=tuple(spec for _ in arrays), out_specs=spec, check_vma=False
        )(*arrays)  # fmt: skip

    with compiling_for(mesh), tempfile.TemporaryDirectory() as parent:
        triton_folder, mosaic_folder = pathlib.Path(parent, "triton"), pathlib.Path(parent, "mosaic")
        with contextlib.ExitStack() as recording:
            if target.platform == "gpu":
                recording.enter_context(_recording_triton(triton_folder))
                recording.enter_context(_recording_mosaic(mosaic_folder))
            compiled = jax.jit(whole).lower(*placed).compile()
        text, memory = compiled.as_text(), compiled.memory_analysis()
        assert text is not None and memory is not None
        kernels = tuple(_assemble(path, target.compute_capability) for path in sorted(triton_folder.glob("*/*.ptx")))
        kernels += _read_mosaic(mosaic_folder) if target.platform == "gpu" else ()
    return Compiled(calls=kernel_calls(text), kernels=kernels, temporary_bytes=memory.temp_size_in_bytes)


@contextlib.contextmanager
def _recording_triton(folder: pathlib.Path) -> Iterator[None]:
    """jax-triton writes the PTX of each kernel that it compiles inside to the folder."""
    try:
        from jax_triton import triton_lib
    except ModuleNotFoundError:
        yield
        return
    folder.mkdir()
    # A kernel compiled earlier would be taken from its cache and not be written.
    for name, module in list(sys.modules.items()):
        if name.startswith("pallas_kernels."):
            for value in vars(module).values():
                getattr(value, "_jT_kernel_cache", {}).clear()
    before = triton_lib._JAX_TRITON_DUMP_DIR
    triton_lib._JAX_TRITON_DUMP_DIR = str(folder)
    try:
        yield
    finally:
        triton_lib._JAX_TRITON_DUMP_DIR = before


@contextlib.contextmanager
def _recording_mosaic(folder: pathlib.Path) -> Iterator[None]:
    """Mosaic GPU writes what ptxas says of each kernel that it compiles inside, and much else, to the folder."""
    folder.mkdir()
    settings = {"MOSAIC_GPU_DUMP_TO": str(folder), "MOSAIC_GPU_DUMP_PTXAS": "1"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# What ptxas said of the Mosaic kernels that this process has compiled. From jax 0.12 on, one is assembled once a process.
_mosaic_reports: dict[str, str] = {}


def _read_mosaic(folder: pathlib.Path) -> tuple[Kernel, ...]:
    """The Mosaic kernels of a program, from what was written to a folder while it was compiled.

    Of every kernel that is lowered, files NAME_NUMBER.resources.txt and .before_layout_inference.txt (its MLIR); of every
    kernel that is assembled, NAME_NUMBER.ptxas. They are numbered independently, but in the same order.
    """

    def written(suffix: str) -> list[pathlib.Path]:
        return sorted(folder.glob(f"*{suffix}"), key=lambda path: int(path.name.removesuffix(suffix).rpartition("_")[2]))

    def module(resources: pathlib.Path) -> str:
        name = resources.name.removesuffix(".resources.txt")
        return resources.with_name(f"{name}.before_layout_inference.txt").read_text().replace(f'"{name}"', "")

    lowered = written(".resources.txt")
    modules = list(map(module, lowered))
    new = [text for text in dict.fromkeys(modules) if text not in _mosaic_reports]
    reports = [path.read_text() for path in written(".ptxas")]
    if len(reports) not in (len(new), len(modules)):
        raise RuntimeError(
            f"{len(new)} Mosaic kernels are new to compile_for, and {len(reports)} were assembled: "
            "compile none by other means in this process, since Mosaic may assemble a kernel only once."
        )
    _mosaic_reports.update(zip(new if len(reports) == len(new) else modules, reports, strict=True))
    kernels = []
    for path, text in zip(lowered, modules, strict=True):
        needs = path.read_text()
        barriers = re.findall(r"num_barriers=(\d+)[^)]*\): (\d+)", needs)
        shared = _sum(r"smem_scratch_bytes=(\d+)", needs) + 8 * sum(int(each) * int(times) for each, times in barriers)
        name = path.name.removesuffix(".resources.txt").rpartition("_")[0]
        kernels.append(_count(name, _mosaic_reports[text], shared))
    return tuple(kernels)


def ptxas() -> str:
    """The assembler that comes with the CUDA packages, Triton or the system.

    Raises:
        ModuleNotFoundError: there is none.
    """
    for entry in map(pathlib.Path, sys.path):
        for place in ("nvidia/cu13/bin/ptxas", "triton/backends/nvidia/bin/ptxas"):
            if (entry / place).exists():
                return str(entry / place)
    found = shutil.which("ptxas")
    if found is None:
        raise ModuleNotFoundError(f"ptxas is not installed: {INSTALL}.")
    return found


def _assemble(ptx: pathlib.Path, capability: int) -> Kernel:
    """Counts a kernel's registers by assembling its PTX."""
    suffix = "a" if capability >= 90 else ""
    report = subprocess.run(
        [ptxas(), "-v", f"-arch=sm_{capability}{suffix}", str(ptx), "-o", "/dev/null"],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip

    shared = re.search(r"shared_mem_bytes: ?(\d+)", ptx.with_suffix(".compile_info").read_text())
    assert shared is not None
    return _count(ptx.stem, report, int(shared[1]))


def _count(name: str, report: str, shared_bytes: int) -> Kernel:
    """Reads the registers and spills of one kernel from what ptxas reports of it."""
    return Kernel(
        name=name,
        registers=_sum(r"Used (\d+) registers", report),
        spilled_bytes=_sum(r"stack frame, (\d+) bytes spill stores", report)
        + _sum(r"stack frame, \d+ bytes spill stores, (\d+) bytes spill loads", report),
        shared_bytes=shared_bytes,
    )


def _sum(pattern: str, text: str) -> int:
    return sum(int(found) for found in re.findall(pattern, text))
