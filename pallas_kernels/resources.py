"""What a compiled kernel takes of its chip: registers, spills and shared memory, as the chip's own assembler counts them."""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels.targets import Target, compiling_for

# How a kernel shows in a compiled module, by platform.
CUSTOM_CALLS = {
    "gpu": ("triton_kernel_call", "mosaic_gpu", "__gpu$xla.gpu.triton"),
    "tpu": ("tpu_custom_call",),
}


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

    with compiling_for(mesh), tempfile.TemporaryDirectory() as folder:
        recorded = _recording_triton(folder) if target.platform == "gpu" else None
        try:
            compiled = jax.jit(whole).lower(*placed).compile()
        finally:
            if recorded is not None:
                recorded()
        text, memory = compiled.as_text(), compiled.memory_analysis()
        assert text is not None and memory is not None
        targets = [f'custom_call_target="{call}' for call in CUSTOM_CALLS[target.platform]]
        calls = sum(any(name in line for name in targets) for line in text.splitlines())
        kernels = tuple(_assemble(path, target.compute_capability) for path in sorted(pathlib.Path(folder).glob("*/*.ptx")))
    return Compiled(calls=calls, kernels=kernels, temporary_bytes=memory.temp_size_in_bytes)


def _recording_triton(folder: str) -> Callable[[], None] | None:
    """Has jax-triton write the PTX of each kernel that it compiles to a folder; the result ends that."""
    try:
        from jax_triton import triton_lib
    except ModuleNotFoundError:
        return None
    # A kernel compiled earlier would be taken from its cache and not be written.
    for name, module in list(sys.modules.items()):
        if name.startswith("pallas_kernels."):
            for value in vars(module).values():
                getattr(value, "_jT_kernel_cache", {}).clear()
    before = triton_lib._JAX_TRITON_DUMP_DIR
    triton_lib._JAX_TRITON_DUMP_DIR = folder

    def end() -> None:
        triton_lib._JAX_TRITON_DUMP_DIR = before

    return end


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
        raise ModuleNotFoundError("ptxas is not installed: pip install 'grpo_jax[aot]'.")
    return found


def _assemble(ptx: pathlib.Path, capability: int) -> Kernel:
    """Counts a kernel's registers by assembling its PTX."""
    suffix = "a" if capability >= 90 else ""
    report = subprocess.run(
        [ptxas(), "-v", f"-arch=sm_{capability}{suffix}", str(ptx), "-o", "/dev/null"],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip

    def number(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, report))

    shared = re.search(r"shared_mem_bytes: ?(\d+)", ptx.with_suffix(".compile_info").read_text())
    assert shared is not None
    return Kernel(
        name=ptx.stem,
        registers=number(r"Used (\d+) registers"),
        spilled_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        shared_bytes=int(shared[1]),
    )
