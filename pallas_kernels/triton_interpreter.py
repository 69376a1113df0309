"""Triton's interpreter on JAX arrays: the kernel's source, run in NumPy, without torch and without a GPU.

Only where TRITON_INTERPRET=1 was set before Triton was imported: a kernel is wrapped for the interpreter when it is
decorated. Programs run one after the other, so races between programs do not show here.
"""

from typing import Any

import jax
import numpy as np


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
