"""Launching a `@triton.jit` kernel from JAX: through jax-triton on a GPU, or in Triton's interpreter on a CPU.

With TRITON_INTERPRET=1 in the environment before Triton is imported, the same kernel source runs in NumPy, one program at a
time, on any machine; that is how the tests check numerics without a GPU.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax_triton
import triton
from jax._src.interpreters import partial_eval
from jax_triton import triton_lib

from pallas_kernels import triton_interpreter
from pallas_kernels.dispatch import lowering_platform

# PTX of CUDA 12.8: the first that knows Blackwell. Triton would write the newest version that it has heard of, and an
# older CUDA's assembler refuses that.
PTX_VERSION = 87


@dataclasses.dataclass(frozen=True)
class InPlace:
    """An array that a kernel writes to: its new value is returned after the outputs."""

    array: jax.Array


def launch(
    kernel: Any,
    *arrays: Any,
    outputs: Any,
    grid: tuple[int, ...],
    scalars: Mapping[str, int | float] | None = None,
    constants: Mapping[str, Any] | None = None,
    warps: int = 4,
    stages: int = 3,
    name: str | None = None,
) -> tuple[jax.Array, ...]:
    """Runs `kernel` on a grid of programs.

    The kernel's parameters are pointers to `arrays` in order, then pointers to the outputs in order, then the scalars and
    constants by name. Scalars are plain arguments of the kernel, constants its `tl.constexpr` ones.

    Args:
        kernel: a function decorated with `triton.jit`.
        *arrays: contiguous inputs; one that is wrapped in `InPlace` is written to.
        outputs: a sequence of objects with shape and dtype. Their memory is not initialised.
        grid: up to three numbers of programs.
        scalars: values of runtime parameters.
        constants: values of compile-time parameters.
        warps: warps of a program.
        stages: depth of the software pipeline.
        name: what profilers and compiled modules call it; the kernel's own name by default.

    Returns:
        The outputs, then the arrays given as `InPlace`.

    Raises:
        RuntimeError: neither a GPU to lower for nor the interpreter.
    """
    scalars, constants = dict(scalars or {}), dict(constants or {})
    outputs = tuple(jax.ShapeDtypeStruct(out.shape, out.dtype) for out in outputs)
    if 0 in grid:
        # CUDA refuses an empty grid; nothing would have been written.
        zeros = tuple(jax.numpy.zeros(out.shape, out.dtype) for out in outputs)
        return (*zeros, *(array.array for array in arrays if isinstance(array, InPlace)))
    if triton.knobs.runtime.interpret:
        return triton_interpreter.run(kernel, arrays, outputs, grid, {**scalars, **constants})
    if lowering_platform() != "gpu":
        raise RuntimeError(
            f"{kernel.fn.__name__}: a Triton kernel runs on a GPU, and this program is lowered for {lowering_platform()}: "
            "use impl='reference' here, or set TRITON_INTERPRET=1 before Python starts to run it in Triton's interpreter."
        )
    _mend_dce_rule()
    references = [jax.new_ref(array.array) for array in arrays if isinstance(array, InPlace)]
    remaining = iter(references)
    operands = [next(remaining) if isinstance(array, InPlace) else array for array in arrays]
    results = jax_triton.triton_call(
        *operands,
        kernel=kernel,
        out_type=outputs,
        grid=grid,
        name=name or kernel.fn.__name__,
        num_warps=warps,
        num_stages=stages,
        backend_options={"ptx_version": PTX_VERSION, "enable_fp_fusion": True},
        **scalars,
        **constants,
    )
    return (*results, *(reference[...] for reference in references))


def _mend_dce_rule() -> None:
    """jax 0.12 hands rules for dead code a third argument, `live_ins`; jax-triton 0.4.1 takes two.

    tests/pallas_kernels/test_triton_launch.py fails when jax-triton has learnt it and this can go.
    """
    primitive = triton_lib.triton_kernel_call_p
    rule: Any = partial_eval.dce_rules[primitive]
    if jax.__version_info__ >= (0, 12) and len(inspect.signature(rule).parameters) == 2:
        partial_eval.dce_rules[primitive] = lambda used_outs, live_ins, eqn: rule(used_outs, eqn)
