"""Softmax as Triton kernels: a program holds whole rows in registers, or passes twice over blocks of a wider one.

The first pass keeps the greatest number so far and the sum of exponentials below it, rescaled when the greatest grows (the
online softmax of arXiv 1805.02867); the second writes. Of a wide row the first block stays in registers between. V is a
compile-time constant, so the loops vanish where one block holds a row.
"""

import jax
import triton
import triton.language as tl
from jaxtyping import Array, Float

from pallas_kernels.triton_launch import launch

# Numbers of a tile that a program's registers hold: forward one array, backward two.
FORWARD_BLOCK = 16384
BACKWARD_BLOCK = 8192

# Numbers of a tile that a thread holds.
PER_THREAD = 16

# The lowest finite float32: the greatest of a row of -inf, from which -inf can still be subtracted without NaN.
LOWEST = -3.4028234663852886e38


@triton.jit
def _load(ptr, row, columns, rows, V, other):
    inside = (row < rows)[:, None] & (columns < V)[None, :]
    return tl.load(ptr + row[:, None] * V + columns[None, :], mask=inside, other=other).to(tl.float32)


@triton.jit
def _store(ptr, value, row, columns, rows, V):
    inside = (row < rows)[:, None] & (columns < V)[None, :]
    tl.store(ptr + row[:, None] * V + columns[None, :], value.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def _softmax(
    x_ptr, out_ptr, rows, V: tl.constexpr, LOWEST: tl.constexpr, ROWS: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_V)
    # What lies outside is -inf, whose exponential is zero whatever is subtracted.
    x = _load(x_ptr, row, columns, rows, V, -float("inf"))
    greatest = tl.maximum(tl.max(x, axis=1), LOWEST)
    total = tl.sum(tl.exp(x - greatest[:, None]), axis=1)
    for start in range(BLOCK_V, V, BLOCK_V):
        more = _load(x_ptr, row, start + columns, rows, V, -float("inf"))
        higher = tl.maximum(greatest, tl.max(more, axis=1))
        total = total * tl.exp(greatest - higher) + tl.sum(tl.exp(more - higher[:, None]), axis=1)
        greatest = higher
    inverse = 1.0 / tl.where(total == 0.0, 1.0, total)
    _store(out_ptr, tl.exp(x - greatest[:, None]) * inverse[:, None], row, columns, rows, V)
    for start in range(BLOCK_V, V, BLOCK_V):
        more = _load(x_ptr, row, start + columns, rows, V, -float("inf"))
        _store(out_ptr, tl.exp(more - greatest[:, None]) * inverse[:, None], row, start + columns, rows, V)


@triton.jit
def _softmax_backward(
    out_ptr, d_out_ptr, dx_ptr, rows, V: tl.constexpr, ROWS: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_V)
    out = _load(out_ptr, row, columns, rows, V, 0.0)
    d_out = _load(d_out_ptr, row, columns, rows, V, 0.0)
    mean = tl.sum(d_out * out, axis=1)
    for start in range(BLOCK_V, V, BLOCK_V):
        more = _load(out_ptr, row, start + columns, rows, V, 0.0)
        mean += tl.sum(more * _load(d_out_ptr, row, start + columns, rows, V, 0.0), axis=1)
    _store(dx_ptr, out * (d_out - mean[:, None]), row, columns, rows, V)
    for start in range(BLOCK_V, V, BLOCK_V):
        more = _load(out_ptr, row, start + columns, rows, V, 0.0)
        d_more = _load(d_out_ptr, row, start + columns, rows, V, 0.0)
        _store(dx_ptr, more * (d_more - mean[:, None]), row, start + columns, rows, V)


def _tile(V: int, most: int) -> tuple[int, int, int]:
    """ROWS and BLOCK_V of a tile of at most `most` numbers, and the warps that hold it."""
    block = min(triton.next_power_of_2(V), most)
    rows = max(1, 2048 // block)
    return rows, block, max(1, min(16, rows * block // (32 * PER_THREAD)))


def softmax(x: Float[Array, "... V"]) -> Float[Array, "... V"]:
    x_MV = x.reshape(-1, x.shape[-1])
    M, V = x_MV.shape
    rows, block, warps = _tile(V, FORWARD_BLOCK)
    (out,) = launch(
        _softmax, x_MV, outputs=[jax.ShapeDtypeStruct(x_MV.shape, x.dtype)], grid=(triton.cdiv(M, rows),),
        scalars={"rows": M}, constants={"V": V, "LOWEST": LOWEST, "ROWS": rows, "BLOCK_V": block}, warps=warps,
        name="softmax",
    )  # fmt: skip
    return out.reshape(x.shape)


def softmax_backward(out: Float[Array, "... V"], d_out: Float[Array, "... V"]) -> Float[Array, "... V"]:
    out_MV = out.reshape(-1, out.shape[-1])
    M, V = out_MV.shape
    rows, block, warps = _tile(V, BACKWARD_BLOCK)
    (dx,) = launch(
        _softmax_backward, out_MV, d_out.reshape(M, V), outputs=[jax.ShapeDtypeStruct((M, V), out.dtype)],
        grid=(triton.cdiv(M, rows),), scalars={"rows": M}, constants={"V": V, "ROWS": rows, "BLOCK_V": block},
        warps=warps, name="softmax_backward",
    )  # fmt: skip
    return dx.reshape(out.shape)
