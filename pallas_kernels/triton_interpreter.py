"""Triton's interpreter on JAX arrays: the kernel's source, run in NumPy, without torch and without a GPU.

Only where TRITON_INTERPRET=1 was set before Triton was imported: a kernel is wrapped for the interpreter when it is
decorated. Programs run one after the other, so races between programs do not show here.
"""

import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

# Types that NumPy lacks: the interpreter keeps their bits in integers.
_AS_BITS = {
    tl.bfloat16: ml_dtypes.bfloat16,
    tl.float8e4nv: ml_dtypes.float8_e4m3fn,
    tl.float8e5: ml_dtypes.float8_e5m2,
}


def _numbers(handle: Any) -> np.ndarray:
    narrow = _AS_BITS.get(handle.dtype.scalar)
    return handle.data if narrow is None else handle.data.view(narrow)


@functools.cache
def _mend_narrow_types() -> None:
    """Triton 3.9's interpreter multiplies the bits of bfloat16, converts integers to them, and does not round to them."""
    builder = interpreter.InterpreterBuilder
    as_before = {name: getattr(builder, name) for name in ("cast_impl", "create_fp_to_fp", "create_dot")}

    def cast(name: str, self: Any, source: Any, target: Any, *rounding: Any) -> Any:
        scalar = target.scalar
        if source.dtype.scalar not in _AS_BITS and scalar not in _AS_BITS:
            return as_before[name](self, source, target, *rounding)
        numbers = _numbers(source).astype(np.float32)
        if scalar in _AS_BITS:
            numbers = numbers.astype(_AS_BITS[scalar])
        else:
            numbers = numbers.astype(interpreter._get_np_dtype(target))
        return interpreter.TensorHandle(numbers.view(interpreter._get_np_dtype(target)), scalar)

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        if a.dtype.scalar not in _AS_BITS and b.dtype.scalar not in _AS_BITS:
            return as_before["create_dot"](self, a, b, d, input_precision, max_num_imprecise_acc)
        product = np.matmul(_numbers(a).astype(np.float32), _numbers(b).astype(np.float32))
        return interpreter.TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)

    builder.cast_impl = lambda *arguments: cast("cast_impl", *arguments)
    builder.create_fp_to_fp = lambda *arguments: cast("create_fp_to_fp", *arguments)
    builder.create_dot = dot


class _HostTensor:
    """What the interpreter takes for a torch tensor: it asks for a pointer, a dtype, and copies to and from the host."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self.dtype = array.dtype.name

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def element_size(self) -> int:
        return self.array.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def storage_offset(self) -> int:
        return 0

    def untyped_storage(self) -> "_HostTensor":
        return self

    def cpu(self) -> "_HostTensor":
        return self

    def new_empty(self, *size: int, device: str) -> "_HostTensor":
        return _HostTensor(self.array)

    def set_(self, storage: "_HostTensor", *layout: Any) -> None:
        self.array = storage.array

    def copy_(self, source: "_HostTensor") -> None:
        assert source.array is self.array


def _uninitialised(out: jax.ShapeDtypeStruct) -> np.ndarray:
    """Memory that a kernel forgets to write shows as NaN, or as the lowest integer."""
    if jax.numpy.issubdtype(out.dtype, jax.numpy.floating):
        return np.full(out.shape, np.nan, out.dtype)
    return np.full(out.shape, np.iinfo(out.dtype).min, out.dtype)


def run(
    kernel: Any,
    arrays: tuple[Any, ...],
    outputs: tuple[jax.ShapeDtypeStruct, ...],
    grid: tuple[int, ...],
    parameters: dict[str, Any],
) -> tuple[jax.Array, ...]:
    """`triton_launch.launch` in the interpreter; the call may stand inside jit."""
    _mend_narrow_types()
    in_place = [i for i, array in enumerate(arrays) if hasattr(array, "array")]
    inputs = [array.array if hasattr(array, "array") else array for array in arrays]
    changed = tuple(jax.ShapeDtypeStruct(inputs[i].shape, inputs[i].dtype) for i in in_place)

    def call(*given: Any) -> tuple[np.ndarray, ...]:
        # Copies: what JAX hands in may not be written to, and the interpreter wants memory that lies contiguous.
        hosts = [np.array(array, order="C") for array in given]
        written = [_uninitialised(out) for out in outputs]
        kernel[grid](*map(_HostTensor, (*hosts, *written)), **parameters)
        return (*written, *(hosts[i] for i in in_place))

    return jax.pure_callback(call, (*outputs, *changed), *inputs)
