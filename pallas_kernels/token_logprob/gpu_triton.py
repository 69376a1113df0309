"""Log-probs, entropies, top-n and logit gradients as Triton kernels.

Both kernels are matrix products whose results never leave registers: a program has a block of rows, goes through tiles of
the vocabulary, and reduces each tile of logits (forward) or turns it into gradients (backward) where the product left it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob import slabs
from pallas_kernels.token_logprob.partials import Partials, merge
from pallas_kernels.triton_launch import launch

# Programs of the forward grid: enough to fill the largest GPU several times over, so that its last wave is not mostly idle.
PROGRAMS = 512

_MISSING = tl.constexpr(-1e30)
_NO_ID = tl.constexpr(2147483647)


def _tiles(dtype: jnp.dtype, top_n: int = 0) -> tuple[dict[str, Any], dict[str, int]]:
    """Block shapes and precision of the product, and how many warps and stages run it.

    The tile of logits stays in registers next to what reduces it: a larger one than this spills on an A100.
    """
    if dtype == jnp.float32:
        # Without tensor cores, which round float32 to 10 bits.
        return {"BLOCK_M": 64, "BLOCK_V": 64, "BLOCK_D": 32, "PRECISION": "ieee"}, {"warps": 8, "stages": 2}
    rows = 64 if top_n else 128
    return {"BLOCK_M": rows, "BLOCK_V": 128, "BLOCK_D": 64, "PRECISION": "tf32"}, {"warps": 8, "stages": 3}


@triton.jit
def _logits(
    hidden_ptr, kernel_ptr, rows, columns, inside_rows, inside_columns, depth, inverse_temperature,
    D: tl.constexpr, V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of logits. `depth` is D, or 0 for a tile that nobody needs."""
    steps = tl.arange(0, BLOCK_D)
    hidden_ptrs = hidden_ptr + rows.to(tl.int64)[:, None] * D + steps[None, :]
    kernel_ptrs = kernel_ptr + steps.to(tl.int64)[:, None] * V + columns[None, :]
    logits = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    for start in range(0, depth, BLOCK_D):
        if D % BLOCK_D == 0:
            hidden = tl.load(hidden_ptrs, mask=inside_rows[:, None], other=0.0)
            kernel = tl.load(kernel_ptrs, mask=inside_columns[None, :], other=0.0)
        else:
            inside = start + steps < D
            hidden = tl.load(hidden_ptrs, mask=inside_rows[:, None] & inside[None, :], other=0.0)
            kernel = tl.load(kernel_ptrs, mask=inside[:, None] & inside_columns[None, :], other=0.0)
        logits = tl.dot(hidden, kernel, logits, input_precision=PRECISION)
        hidden_ptrs += BLOCK_D
        kernel_ptrs += BLOCK_D * V
    return logits * inverse_temperature


@triton.jit
def _forward(
    hidden_ptr, kernel_ptr, targets_ptr, greatest_ptr, total_ptr, weighted_ptr, target_ptr, top_logits_ptr, top_ids_ptr,
    M, tiles_of_split, inverse_temperature,
    D: tl.constexpr, V: tl.constexpr, TOP_N: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Programs that run at once differ in their rows first: they read the same tiles of the kernel, and the hidden states
    # of all of them stay in the L2 cache.
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(1)
    inside_rows = rows < M
    targets = tl.load(targets_ptr + rows, mask=inside_rows, other=-1)
    greatest = tl.full((BLOCK_M,), _MISSING, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    weighted = tl.zeros((BLOCK_M,), tl.float32)
    target = tl.zeros((BLOCK_M,), tl.float32)
    slots = tl.arange(0, BLOCK_N)[None, :]
    # Free slots have ids above all others, so that they are replaced first; slots past TOP_N never are.
    top_logits = tl.zeros((BLOCK_M, BLOCK_N), tl.float32) + tl.where(slots < TOP_N, _MISSING, -_MISSING)
    top_ids = tl.zeros((BLOCK_M, BLOCK_N), tl.int32) + (_NO_ID - slots)

    first = split * tiles_of_split
    last = tl.minimum(first + tiles_of_split, tl.cdiv(V, BLOCK_V))
    for tile in range(first, last):
        columns = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        inside_columns = columns < V
        logits = _logits(
            hidden_ptr, kernel_ptr, rows, columns, inside_rows, inside_columns, D, inverse_temperature,
            D, V, BLOCK_M, BLOCK_V, BLOCK_D, PRECISION,
        )  # fmt: skip
        logits = tl.where(inside_columns[None, :], logits, _MISSING)
        target += tl.sum(tl.where(columns[None, :] == targets[:, None], logits, 0.0), axis=1)
        higher = tl.maximum(greatest, tl.max(logits, axis=1))
        below = greatest - higher
        scale = tl.exp(below)
        shifted = logits - higher[:, None]
        exp = tl.exp(shifted)
        weighted = scale * (weighted + total * below) + tl.sum(exp * shifted, axis=1)
        total = scale * total + tl.sum(exp, axis=1)
        greatest = higher
        if TOP_N > 0:
            # The greatest logit of the tile replaces the least of the top ones, as long as some row has such a pair: after
            # the first tiles hardly any does. Equals stay out, since their ids are higher.
            best = tl.max(logits, axis=1)
            least = tl.min(top_logits, axis=1)
            while tl.max((best > least).to(tl.int32), axis=0) > 0:
                best_id = tl.min(tl.where(logits == best[:, None], columns[None, :], _NO_ID), axis=1)
                leaving = tl.max(tl.where(top_logits == least[:, None], top_ids, -1), axis=1)
                replaced = (top_ids == leaving[:, None]) & (best > least)[:, None]
                top_logits = tl.where(replaced, best[:, None], top_logits)
                top_ids = tl.where(replaced, best_id[:, None], top_ids)
                logits = tl.where(columns[None, :] == best_id[:, None], _MISSING, logits)
                best = tl.max(logits, axis=1)
                least = tl.min(top_logits, axis=1)

    out = split.to(tl.int64) * M + rows
    tl.store(greatest_ptr + out, greatest, mask=inside_rows)
    tl.store(total_ptr + out, total, mask=inside_rows)
    tl.store(weighted_ptr + out, weighted, mask=inside_rows)
    tl.store(target_ptr + out, target, mask=inside_rows)
    if TOP_N > 0:
        top_logits = tl.where(slots < TOP_N, top_logits, 2 * _MISSING)
        for place in range(TOP_N):
            best = tl.max(top_logits, axis=1)
            best_id = tl.min(tl.where(top_logits == best[:, None], top_ids, _NO_ID), axis=1)
            tl.store(top_logits_ptr + out * TOP_N + place, best, mask=inside_rows)
            tl.store(top_ids_ptr + out * TOP_N + place, best_id, mask=inside_rows)
            top_logits = tl.where(top_ids == best_id[:, None], 2 * _MISSING, top_logits)


@triton.jit
def _logit_gradients(
    hidden_ptr, kernel_ptr, start_ptr, targets_ptr, lse_ptr, target_ptr, constant_ptr, slope_ptr, out_ptr,
    M, inverse_temperature,
    WIDTH: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    places = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside_rows = rows < M
    inside = places < WIDTH
    # Slabs begin at whole tiles; unless it is said, loads are not known to be aligned.
    columns = tl.multiple_of(tl.load(start_ptr), BLOCK_V) + places
    target = tl.load(target_ptr + rows, mask=inside_rows, other=0.0)
    constant = tl.load(constant_ptr + rows, mask=inside_rows, other=0.0)
    slope = tl.load(slope_ptr + rows, mask=inside_rows, other=0.0)
    # Rows without cotangents come in blocks (prompts, unused places); their gradients are 0 whatever the logits are.
    counting = (target != 0.0) | (constant != 0.0) | (slope != 0.0)
    depth = tl.where(tl.max(counting.to(tl.int32), axis=0) > 0, D, 0)
    logits = _logits(
        hidden_ptr, kernel_ptr, rows, columns, inside_rows, inside, depth, inverse_temperature,
        D, V, BLOCK_M, BLOCK_V, BLOCK_D, PRECISION,
    )  # fmt: skip
    targets = tl.load(targets_ptr + rows, mask=inside_rows, other=-1)
    log_probs = logits - tl.load(lse_ptr + rows, mask=inside_rows, other=0.0)[:, None]
    gradients = tl.exp(log_probs) * (constant[:, None] + slope[:, None] * log_probs)
    gradients += tl.where(columns[None, :] == targets[:, None], target[:, None], 0.0)
    gradients = tl.where(counting[:, None], gradients, 0.0)
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * WIDTH + places[None, :]
    tl.store(out_ptrs, gradients.to(out_ptr.dtype.element_ty), mask=inside_rows[:, None] & inside[None, :])


def forward(
    hidden_MD: Float[Array, "M D"], kernel_DV: Float[Array, "D V"], targets_M: Int[Array, " M"],
    *, temperature: float, top_n: int,
) -> Partials:  # fmt: skip
    (M, D), V = hidden_MD.shape, kernel_DV.shape[1]
    constants, running = _tiles(hidden_MD.dtype, top_n)
    row_blocks, tiles = triton.cdiv(M, constants["BLOCK_M"]), triton.cdiv(V, constants["BLOCK_V"])
    tiles_of_split = triton.cdiv(tiles, min(tiles, triton.cdiv(PROGRAMS, row_blocks)))
    splits = triton.cdiv(tiles, tiles_of_split)
    sums = jax.ShapeDtypeStruct((splits, M), jnp.float32)
    # A parameter that nothing is written to still needs an address.
    top = (splits, M, top_n) if top_n else (1, 1, 1)
    *parts, top_logits, top_ids = launch(
        _forward,
        hidden_MD,
        kernel_DV,
        targets_M,
        outputs=[*[sums] * 4, jax.ShapeDtypeStruct(top, jnp.float32), jax.ShapeDtypeStruct(top, jnp.int32)],
        grid=(row_blocks, splits),
        scalars={"M": M, "tiles_of_split": tiles_of_split, "inverse_temperature": 1.0 / temperature},
        constants={**constants, "D": D, "V": V, "TOP_N": top_n, "BLOCK_N": triton.next_power_of_2(max(top_n, 2))},
        name="token_logprob",
        **running,
    )  # fmt: skip
    if not top_n:
        top_logits, top_ids = jnp.zeros((splits, M, 0), jnp.float32), jnp.zeros((splits, M, 0), jnp.int32)
    return merge(Partials._make((*parts, top_logits, top_ids)), top_n)


def logit_gradients(
    hidden_MD: Float[Array, "M D"], kernel_DV: Float[Array, "D V"], start: Int[Array, " 1"], width: int,
    rows: slabs.RowCotangents, *, temperature: float,
) -> Float[Array, "M W"]:  # fmt: skip
    """The slab of dz that begins at id `start`, `width` ids wide."""
    (M, D), V = hidden_MD.shape, kernel_DV.shape[1]
    constants, running = _tiles(hidden_MD.dtype)
    (gradients,) = launch(
        _logit_gradients,
        hidden_MD,
        kernel_DV,
        start,
        *rows,
        outputs=[jax.ShapeDtypeStruct((M, width), hidden_MD.dtype)],
        grid=(triton.cdiv(M, constants["BLOCK_M"]), triton.cdiv(width, constants["BLOCK_V"])),
        scalars={"M": M, "inverse_temperature": 1.0 / temperature},
        constants={**constants, "WIDTH": width, "D": D, "V": V},
        name="token_logprob_logit_gradients",
        **running,
    )
    return gradients


backward = functools.partial(slabs.backward, logit_gradients)
