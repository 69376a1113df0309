"""Norms as Triton kernels: a program holds whole rows in registers, or the first block of a row that is wider than that.

A tile is [ROWS, BLOCK_D]: narrow rows share a program. D is a compile-time constant, so the loops over further blocks of a
row vanish where one block holds it, and loads are known to be aligned.
"""

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Float, Num

from pallas_kernels.fused_norm.quantized import SMALLEST_SCALE, largest
from pallas_kernels.triton_launch import launch

# Numbers of a tile that a program's registers hold: in a forward pass of one array, and where there are more (a sum's terms,
# the steps that a row becomes, the backward pass with its sums of the weight's gradient).
FORWARD_BLOCK = 16384
BLOCK = 8192

# Numbers of a tile that a thread holds. Fewer would leave it waiting for memory with too few loads under way.
PER_THREAD = 16

# Programs of a backward pass: a few for each of a GPU's 108 to 148 multiprocessors. Each leaves a row of partial sums.
PROGRAMS = 256


@triton.jit
def _inside(row, columns, rows, D):
    return (row < rows)[:, None] & (columns < D)[None, :]


@triton.jit
def _load(ptr, row, columns, rows, D):
    at = row[:, None] * D + columns[None, :]
    return tl.load(ptr + at, mask=_inside(row, columns, rows, D), other=0.0).to(tl.float32)


@triton.jit
def _store(ptr, value, row, columns, rows, D):
    at = row[:, None] * D + columns[None, :]
    tl.store(ptr + at, value.to(ptr.dtype.element_ty), mask=_inside(row, columns, rows, D))


@triton.jit
def _load_weight(ptr, columns, D):
    return tl.load(ptr + columns, mask=columns < D, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _program_rows(ROWS: tl.constexpr):
    return tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)


@triton.jit
def _gate(z):
    # GELU(z) = z * gate: (1 + tanh u) / 2 is the logistic function of 2 u.
    return tl.sigmoid(2.0 * 0.7978845608028654 * (z + 0.044715 * z * z * z))


@triton.jit
def _gelu_slope(z):
    gate = _gate(z)
    return gate + z * gate * (1.0 - gate) * (2.0 * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * z * z))


@triton.jit
def _scaled(x, inverse_rms, weight, GELU: tl.constexpr):
    normed = x * inverse_rms[:, None] * weight
    if GELU:
        normed = normed * _gate(normed)
    return normed


@triton.jit
def _rms_norm(
    x_ptr, weight_ptr, out_ptr, rows, eps,
    D: tl.constexpr, GELU: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = _program_rows(ROWS)
    columns = tl.arange(0, BLOCK_D)
    x = _load(x_ptr, row, columns, rows, D)
    squares = tl.sum(x * x, axis=1)
    for start in range(BLOCK_D, D, BLOCK_D):
        more = _load(x_ptr, row, start + columns, rows, D)
        squares += tl.sum(more * more, axis=1)
    inverse_rms = 1.0 / tl.sqrt(squares / D + eps)
    _store(out_ptr, _scaled(x, inverse_rms, _load_weight(weight_ptr, columns, D), GELU), row, columns, rows, D)
    for start in range(BLOCK_D, D, BLOCK_D):
        more = _load(x_ptr, row, start + columns, rows, D)
        weight = _load_weight(weight_ptr, start + columns, D)
        _store(out_ptr, _scaled(more, inverse_rms, weight, GELU), row, start + columns, rows, D)


@triton.jit
def _load_sum(x_ptr, residual_ptr, row, columns, rows, D):
    total = _load(x_ptr, row, columns, rows, D) + _load(residual_ptr, row, columns, rows, D)
    # What is normed is the sum as it will be stored.
    return total.to(x_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def _add_rms_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, rows, eps,
    D: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = _program_rows(ROWS)
    columns = tl.arange(0, BLOCK_D)
    x = _load_sum(x_ptr, residual_ptr, row, columns, rows, D)
    _store(sum_ptr, x, row, columns, rows, D)
    squares = tl.sum(x * x, axis=1)
    for start in range(BLOCK_D, D, BLOCK_D):
        more = _load_sum(x_ptr, residual_ptr, row, start + columns, rows, D)
        _store(sum_ptr, more, row, start + columns, rows, D)
        squares += tl.sum(more * more, axis=1)
    inverse_rms = 1.0 / tl.sqrt(squares / D + eps)
    _store(out_ptr, _scaled(x, inverse_rms, _load_weight(weight_ptr, columns, D), False), row, columns, rows, D)
    for start in range(BLOCK_D, D, BLOCK_D):
        # Added again rather than read back: nothing orders one thread's reads after another's writes.
        more = _load_sum(x_ptr, residual_ptr, row, start + columns, rows, D)
        weight = _load_weight(weight_ptr, start + columns, D)
        _store(out_ptr, _scaled(more, inverse_rms, weight, False), row, start + columns, rows, D)


@triton.jit
def _round(x):
    # Adding 1.5 * 2^23 leaves no bits for a fraction, and the addition itself rounds to nearest even.
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _float8_bits(x):
    """The bits of x in float8_e4m3fn, |x| <= 448. In integers, because GPUs before Hopper have no instruction for it."""
    size = tl.abs(x)
    bits = size.to(tl.int32, bitcast=True)
    # Three of 23 bits of mantissa stay, rounded to nearest even; the exponent's bias goes from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 steps are even, 2^-9 wide; the eighth is 2^-6 itself, whose bits are 8.
    tiny = _round(size * 512.0).to(tl.int32)
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return tl.where(size < 0.015625, tiny, normal) | sign


@triton.jit
def _steps(normed, inverse_scale, FLOAT8: tl.constexpr):
    steps = normed * inverse_scale[:, None]
    if FLOAT8:
        steps = _float8_bits(steps)
    else:
        steps = _round(steps)
    return steps


@triton.jit
def _rms_norm_quantize(
    x_ptr, weight_ptr, out_ptr, scale_ptr, rows, eps,
    D: tl.constexpr, LARGEST: tl.constexpr, SMALLEST_SCALE: tl.constexpr, FLOAT8: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = _program_rows(ROWS)
    columns = tl.arange(0, BLOCK_D)
    x = _load(x_ptr, row, columns, rows, D)
    weight = _load_weight(weight_ptr, columns, D)
    squares = tl.sum(x * x, axis=1)
    # The largest normed number is the largest of x * weight, times what the whole row is multiplied by.
    greatest = tl.max(tl.abs(x * weight), axis=1)
    for start in range(BLOCK_D, D, BLOCK_D):
        more = _load(x_ptr, row, start + columns, rows, D)
        squares += tl.sum(more * more, axis=1)
        greatest = tl.maximum(greatest, tl.max(tl.abs(more * _load_weight(weight_ptr, start + columns, D)), axis=1))
    inverse_rms = 1.0 / tl.sqrt(squares / D + eps)
    scale = greatest * inverse_rms / LARGEST
    scale = tl.where(scale >= SMALLEST_SCALE, scale, 0.0)
    inverse_scale = tl.where(scale > 0.0, 1.0 / tl.where(scale > 0.0, scale, 1.0), 0.0)
    tl.store(scale_ptr + row, scale, mask=row < rows)
    _store(out_ptr, _steps(_scaled(x, inverse_rms, weight, False), inverse_scale, FLOAT8), row, columns, rows, D)
    for start in range(BLOCK_D, D, BLOCK_D):
        more = _load(x_ptr, row, start + columns, rows, D)
        normed = _scaled(more, inverse_rms, _load_weight(weight_ptr, start + columns, D), False)
        _store(out_ptr, _steps(normed, inverse_scale, FLOAT8), row, start + columns, rows, D)


@triton.jit
def _load_cotangent(d_out_ptr, x, inverse_rms, weight, row, columns, rows, D, GELU: tl.constexpr):
    """Of the normed row, before GELU. Needs the row's inverse rms only for GELU."""
    d_normed = _load(d_out_ptr, row, columns, rows, D)
    if GELU:
        d_normed *= _gelu_slope(x * inverse_rms[:, None] * weight)
    return d_normed


@triton.jit
def _inverse_rms(squares, row, rows, D, eps):
    # Rows past the end are zeros, whose inverse would be infinite at eps = 0.
    return tl.where(row < rows, 1.0 / tl.sqrt(squares / D + eps), 0.0)


@triton.jit
def _row_sums(
    x_ptr, weight_ptr, d_out_ptr, inverse_rms_ptr, pull_ptr, rows, eps,
    D: tl.constexpr, GELU: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """For rows wider than a block: what every column of a row needs to know of the others."""
    row = _program_rows(1)
    columns = tl.arange(0, BLOCK_D)
    squares = tl.zeros([1], tl.float32)
    for start in range(0, D, BLOCK_D):
        x = _load(x_ptr, row, start + columns, rows, D)
        squares += tl.sum(x * x, axis=1)
    inverse_rms = _inverse_rms(squares, row, rows, D, eps)
    product = tl.zeros([1], tl.float32)
    for start in range(0, D, BLOCK_D):
        x = _load(x_ptr, row, start + columns, rows, D)
        weight = _load_weight(weight_ptr, start + columns, D)
        d_normed = _load_cotangent(d_out_ptr, x, inverse_rms, weight, row, start + columns, rows, D, GELU)
        product += tl.sum(d_normed * weight * x, axis=1)
    tl.store(inverse_rms_ptr + row, inverse_rms, mask=row < rows)
    tl.store(pull_ptr + row, inverse_rms * inverse_rms * inverse_rms * product / D, mask=row < rows)


@triton.jit
def _rms_norm_backward(
    x_ptr, weight_ptr, d_out_ptr, d_sum_ptr, inverse_rms_ptr, pull_ptr, dx_ptr, d_weight_ptr, rows, eps,
    D: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dx = r w g - x r^3 mean(w g x), dw = sum over rows of g x r; r the inverse rms, g the cotangent of the normed row.

    A program takes every so many-th tile of rows and sums its share of dw in registers. It holds WHOLE rows, or a block of
    their columns, where the sums over a row (`pull` is the second one) were computed before.
    """
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    weight = _load_weight(weight_ptr, columns, D)
    d_weight = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = tl.arange(0, ROWS).to(tl.int64) + first
        x = _load(x_ptr, row, columns, rows, D)
        if WHOLE:
            inverse_rms = _inverse_rms(tl.sum(x * x, axis=1), row, rows, D, eps)
            g = _load_cotangent(d_out_ptr, x, inverse_rms, weight, row, columns, rows, D, GELU)
            pull = inverse_rms * inverse_rms * inverse_rms * tl.sum(g * weight * x, axis=1) / D
        else:
            inverse_rms = tl.load(inverse_rms_ptr + row, mask=row < rows, other=0.0)
            pull = tl.load(pull_ptr + row, mask=row < rows, other=0.0)
            g = _load_cotangent(d_out_ptr, x, inverse_rms, weight, row, columns, rows, D, GELU)
        dx = g * weight * inverse_rms[:, None] - x * pull[:, None]
        if ADD:
            dx += _load(d_sum_ptr, row, columns, rows, D)
        _store(dx_ptr, dx, row, columns, rows, D)
        d_weight += g * x * inverse_rms[:, None]
    total = tl.sum(d_weight, axis=0)
    tl.store(d_weight_ptr + tl.program_id(0).to(tl.int64) * D + columns, total, mask=columns < D)


def _tile(D: int, most: int) -> tuple[int, int, int]:
    """ROWS and BLOCK_D of a tile of at most `most` numbers, and the warps that hold it."""
    block = min(triton.next_power_of_2(D), most)
    rows = max(1, 2048 // block)
    return rows, block, max(1, min(16, rows * block // (32 * PER_THREAD)))


def _like(array: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _forward(x: Array, weight_D: Array, *, eps: float, gelu: bool) -> Array:
    x_MD = x.reshape(-1, x.shape[-1])
    rows, block, warps = _tile(x_MD.shape[1], FORWARD_BLOCK)
    (out,) = launch(
        _rms_norm, x_MD, weight_D, outputs=[_like(x_MD)], grid=(triton.cdiv(x_MD.shape[0], rows),),
        scalars={"rows": x_MD.shape[0], "eps": eps},
        constants={"D": x_MD.shape[1], "GELU": gelu, "ROWS": rows, "BLOCK_D": block},
        warps=warps, name="rms_norm_gelu" if gelu else "rms_norm",
    )  # fmt: skip
    return out.reshape(x.shape)


def rms_norm(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    return _forward(x, weight_D, eps=eps, gelu=False)


def rms_norm_gelu(x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float) -> Float[Array, "... D"]:
    return _forward(x, weight_D, eps=eps, gelu=True)


def add_rms_norm(
    x: Float[Array, "... D"], residual: Float[Array, "... D"], weight_D: Float[Array, " D"], *, eps: float
) -> tuple[Float[Array, "... D"], Float[Array, "... D"]]:
    x_MD = x.reshape(-1, x.shape[-1])
    rows, block, warps = _tile(x_MD.shape[1], BLOCK)
    out, total = launch(
        _add_rms_norm, x_MD, residual.reshape(x_MD.shape), weight_D, outputs=[_like(x_MD)] * 2,
        grid=(triton.cdiv(x_MD.shape[0], rows),), scalars={"rows": x_MD.shape[0], "eps": eps},
        constants={"D": x_MD.shape[1], "ROWS": rows, "BLOCK_D": block}, warps=warps, name="add_rms_norm",
    )  # fmt: skip
    return out.reshape(x.shape), total.reshape(x.shape)


def rms_norm_quantize(
    x: Float[Array, "... D"], weight_D: Float[Array, " D"], *, dtype: jnp.dtype, eps: float
) -> tuple[Num[Array, "... D"], Float[Array, "..."]]:
    x_MD = x.reshape(-1, x.shape[-1])
    rows, block, warps = _tile(x_MD.shape[1], BLOCK)
    float8 = dtype != jnp.int8
    steps, scale = launch(
        _rms_norm_quantize, x_MD, weight_D,
        outputs=[
            jax.ShapeDtypeStruct(x_MD.shape, jnp.uint8 if float8 else jnp.int8),
            jax.ShapeDtypeStruct(x_MD.shape[:1], jnp.float32),
        ],
        grid=(triton.cdiv(x_MD.shape[0], rows),), scalars={"rows": x_MD.shape[0], "eps": eps},
        constants={
            "D": x_MD.shape[1], "LARGEST": largest(dtype), "SMALLEST_SCALE": SMALLEST_SCALE, "FLOAT8": float8,
            "ROWS": rows, "BLOCK_D": block,
        },
        warps=warps, name="rms_norm_quantize",
    )  # fmt: skip
    if float8:
        steps = jax.lax.bitcast_convert_type(steps, dtype)
    return steps.reshape(x.shape), scale.reshape(x.shape[:-1])


def _backward(
    x: Array, weight_D: Array, d_out: Array, d_sum: Array | None, *, eps: float, gelu: bool, name: str
) -> tuple[Array, Array]:
    x_MD = x.reshape(-1, x.shape[-1])
    M, D = x_MD.shape
    d_out_MD = d_out.reshape(x_MD.shape)
    # A kernel that does not add never reads its fourth argument, nor one that holds whole rows the fifth and sixth.
    d_sum_MD = d_out_MD if d_sum is None else d_sum.reshape(x_MD.shape)
    rows, block, warps = _tile(D, BLOCK)
    whole = block >= D
    sums: tuple[Array, ...] = (weight_D, weight_D)
    if not whole:
        row = jax.ShapeDtypeStruct((M,), jnp.float32)
        sums = launch(
            _row_sums, x_MD, weight_D, d_out_MD, outputs=[row, row], grid=(M,), scalars={"rows": M, "eps": eps},
            constants={"D": D, "GELU": gelu, "BLOCK_D": block}, warps=warps, name=f"{name}_row_sums",
        )  # fmt: skip
    # Programs of few threads have to be more, to fill the GPU.
    programs = min(triton.cdiv(M, rows), PROGRAMS * 16 // warps)
    dx, d_weight = launch(
        _rms_norm_backward, x_MD, weight_D, d_out_MD, d_sum_MD, *sums,
        outputs=[_like(x_MD), jax.ShapeDtypeStruct((programs, D), jnp.float32)],
        grid=(programs, triton.cdiv(D, block)), scalars={"rows": M, "eps": eps},
        constants={"D": D, "GELU": gelu, "ADD": d_sum is not None, "WHOLE": whole, "ROWS": rows, "BLOCK_D": block},
        warps=warps, name=name,
    )  # fmt: skip
    return dx.reshape(x.shape), d_weight.sum(0).astype(weight_D.dtype)


def rms_norm_backward(x: Array, weight_D: Array, d_out: Array, *, eps: float) -> tuple[Array, Array]:
    return _backward(x, weight_D, d_out, None, eps=eps, gelu=False, name="rms_norm_backward")


def rms_norm_gelu_backward(x: Array, weight_D: Array, d_out: Array, *, eps: float) -> tuple[Array, Array]:
    return _backward(x, weight_D, d_out, None, eps=eps, gelu=True, name="rms_norm_gelu_backward")


def add_rms_norm_backward(
    total: Array, weight_D: Array, d_normed: Array, d_sum: Array, *, eps: float
) -> tuple[Array, Array]:
    return _backward(total, weight_D, d_normed, d_sum, eps=eps, gelu=False, name="add_rms_norm_backward")
