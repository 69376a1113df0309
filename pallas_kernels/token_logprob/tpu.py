"""Log-probs, entropies, top-n and logit gradients as Pallas TPU kernels.

The grid goes through blocks of rows, tiles of the vocabulary and, where D is large, parts of D; a tile of logits is summed
up in VMEM and reduced, or turned into gradients, when it is complete. A block of hidden states stays in VMEM while the
kernel's tiles stream past it, so the kernel is read once for each block of rows.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pallas_kernels.token_logprob import slabs
from pallas_kernels.token_logprob.partials import MISSING, Partials, varying_as

LANES = 128
_NO_ID = 2**31 - 1


def _blocks(M: int, D: int, V: int, dtype: jnp.dtype, top_n: int = 0) -> tuple[int, int, int]:
    """Rows, columns and depth of a step. In VMEM are two blocks of each input and a few float32 tiles of logits, more of
    them where the top ones are looked for: 12 MiB at most."""
    rows, columns, depth = (256, 256, 1024) if dtype == jnp.float32 else (512, 256 if top_n else 512, 2048)
    return min(rows, M), min(columns, V), min(depth, D)


def _add_product(hidden_ref, kernel_ref, logits_ref, *, D: int, depth: int, temperature: float) -> None:
    """Adds this step's part of D to the tile of logits, and divides by the temperature when it is complete."""
    step = pl.program_id(2)
    hidden, kernel = hidden_ref[...], kernel_ref[...]
    if D % depth:
        # What a block holds past the end of an array is anything, also NaN.
        inside = D - step * depth
        hidden = jnp.where(jax.lax.broadcasted_iota(jnp.int32, hidden.shape, 1) < inside, hidden, jnp.zeros_like(hidden))
        kernel = jnp.where(jax.lax.broadcasted_iota(jnp.int32, kernel.shape, 0) < inside, kernel, jnp.zeros_like(kernel))
    precision = jax.lax.Precision.HIGHEST if hidden.dtype == jnp.float32 else None
    partial = jnp.dot(hidden, kernel, precision=precision, preferred_element_type=jnp.float32)
    if depth >= D:
        logits_ref[...] = partial / temperature
        return

    @pl.when(step == 0)
    def _first() -> None:
        logits_ref[...] = partial

    @pl.when(step > 0)
    def _later() -> None:
        logits_ref[...] += partial

    @pl.when(step == pl.num_programs(2) - 1)
    def _last() -> None:
        logits_ref[...] /= temperature


def _keep_top(logits_ref, top_logits_ref, top_ids_ref, columns: Array, top_n: int) -> None:
    """Moves logits of the tile that belong there into the sorted list in the lanes of `top_logits_ref`.

    The tile's greatest enters behind the list's equals, whose ids are lower, and pushes the rest down, as long as some row
    has one that exceeds its last: after the first tiles hardly any does.
    """
    lanes = jax.lax.broadcasted_iota(jnp.int32, top_logits_ref.shape, 1)

    def best_and_any() -> tuple[Array, Array, Array]:
        best = jnp.max(logits_ref[...], axis=1, keepdims=True)
        least = jnp.max(jnp.where(lanes == top_n - 1, top_logits_ref[...], 2 * MISSING), axis=1, keepdims=True)
        enters = best > least
        return best, enters, jnp.max(jnp.where(enters, 1.0, 0.0)) > 0.0

    def insert(go: Array) -> Array:
        best, enters, _ = best_and_any()
        logits, top_logits, top_ids = logits_ref[...], top_logits_ref[...], top_ids_ref[...]
        best_id = jnp.min(jnp.where(logits == best, columns, _NO_ID), axis=1, keepdims=True)
        place = jnp.sum(jnp.where(top_logits >= best, 1, 0), axis=1, keepdims=True)
        pushed_logits, pushed_ids = (pltpu.roll(values, 1, axis=1) for values in (top_logits, top_ids))
        new_logits = jnp.where(lanes < place, top_logits, jnp.where(lanes == place, best, pushed_logits))
        new_ids = jnp.where(lanes < place, top_ids, jnp.where(lanes == place, best_id, pushed_ids))
        top_logits_ref[...] = jnp.where(enters, new_logits, top_logits)
        top_ids_ref[...] = jnp.where(enters, new_ids, top_ids)
        logits_ref[...] = jnp.where(columns == best_id, MISSING, logits)
        return best_and_any()[2]

    jax.lax.while_loop(lambda go: go, insert, best_and_any()[2])


def _forward_kernel(
    hidden_ref, kernel_ref, targets_ref, greatest_out, total_out, weighted_out, target_out, *rest,
    D: int, V: int, depth: int, temperature: float, top_n: int,
) -> None:  # fmt: skip
    if top_n:
        top_logits_out, top_ids_out, logits_ref, *sums, top_logits_ref, top_ids_ref = rest
    else:
        logits_ref, *sums = rest
    greatest_ref, total_ref, weighted_ref, target_ref = sums
    tile = pl.program_id(1)

    @pl.when((tile == 0) & (pl.program_id(2) == 0))
    def _start() -> None:
        greatest_ref[...] = jnp.full_like(greatest_ref, MISSING)
        for ref in (total_ref, weighted_ref, target_ref):
            ref[...] = jnp.zeros_like(ref)
        if top_n:
            top_logits_ref[...] = jnp.full_like(top_logits_ref, MISSING)
            top_ids_ref[...] = jnp.full_like(top_ids_ref, _NO_ID)

    _add_product(hidden_ref, kernel_ref, logits_ref, D=D, depth=depth, temperature=temperature)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _reduce() -> None:
        columns = tile * logits_ref.shape[1] + jax.lax.broadcasted_iota(jnp.int32, logits_ref.shape, 1)
        logits = jnp.where(columns < V, logits_ref[...], MISSING)
        target_ref[...] += jnp.sum(jnp.where(columns == targets_ref[...], logits, 0.0), axis=1, keepdims=True)
        higher = jnp.maximum(greatest_ref[...], jnp.max(logits, axis=1, keepdims=True))
        below = greatest_ref[...] - higher
        scale = jnp.exp(below)
        shifted = logits - higher
        exp = jnp.exp(shifted)
        weighted_ref[...] = scale * (weighted_ref[...] + total_ref[...] * below) + jnp.sum(
            exp * shifted, axis=1, keepdims=True
        )
        total_ref[...] = scale * total_ref[...] + jnp.sum(exp, axis=1, keepdims=True)
        greatest_ref[...] = higher
        if top_n:
            logits_ref[...] = logits
            _keep_top(logits_ref, top_logits_ref, top_ids_ref, columns, top_n)

        @pl.when(tile == pl.num_programs(1) - 1)
        def _write() -> None:
            for out, ref in zip((greatest_out, total_out, weighted_out, target_out), sums):
                out[...] = ref[...]
            if top_n:
                top_logits_out[...] = top_logits_ref[:, :top_n]
                top_ids_out[...] = top_ids_ref[:, :top_n]


def forward(
    hidden_MD: Float[Array, "M D"], kernel_DV: Float[Array, "D V"], targets_M: Int[Array, " M"],
    *, temperature: float, top_n: int,
) -> Partials:  # fmt: skip
    (M, D), V = hidden_MD.shape, kernel_DV.shape[1]
    rows, columns, depth = _blocks(M, D, V, hidden_MD.dtype, top_n)
    varying = jax.typeof(varying_as(targets_M, hidden_MD, kernel_DV)).mat

    def out(width: int, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((M, width), dtype, manual_axis_type=varying)

    def of_rows(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((rows, width), lambda i, j, k: (i, 0))

    outs, widths, scratch = [out(1, jnp.float32)] * 4, [1] * 4, [pltpu.VMEM((rows, 1), jnp.float32)] * 4
    if top_n:
        outs += [out(top_n, jnp.float32), out(top_n, jnp.int32)]
        widths += [top_n] * 2
        scratch += [pltpu.VMEM((rows, LANES), jnp.float32), pltpu.VMEM((rows, LANES), jnp.int32)]
    outputs = pl.pallas_call(
        functools.partial(_forward_kernel, D=D, V=V, depth=depth, temperature=temperature, top_n=top_n),
        out_shape=outs,
        grid=(pl.cdiv(M, rows), pl.cdiv(V, columns), pl.cdiv(D, depth)),
        in_specs=[
            pl.BlockSpec((rows, depth), lambda i, j, k: (i, k)),
            pl.BlockSpec((depth, columns), lambda i, j, k: (k, j)),
            of_rows(1),
        ],
        out_specs=[of_rows(width) for width in widths],
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32), *scratch],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary")),
        name="token_logprob",
    )(hidden_MD, kernel_DV, targets_M[:, None])
    top = outputs[4:] if top_n else (jnp.zeros((M, 0), jnp.float32), jnp.zeros((M, 0), jnp.int32))
    return Partials._make((*(values[:, 0] for values in outputs[:4]), *top))


def _logit_gradients_kernel(
    start_ref, hidden_ref, kernel_ref, targets_ref, lse_ref, target_ref, constant_ref, slope_ref, out_ref, logits_ref,
    *, D: int, depth: int, temperature: float,
) -> None:  # fmt: skip
    _add_product(hidden_ref, kernel_ref, logits_ref, D=D, depth=depth, temperature=temperature)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _turn() -> None:
        first = start_ref[0] + pl.program_id(1) * logits_ref.shape[1]
        columns = first + jax.lax.broadcasted_iota(jnp.int32, logits_ref.shape, 1)
        log_probs = logits_ref[...] - lse_ref[...]
        gradients = jnp.exp(log_probs) * (constant_ref[...] + slope_ref[...] * log_probs)
        gradients += jnp.where(columns == targets_ref[...], target_ref[...], 0.0)
        out_ref[...] = gradients.astype(out_ref.dtype)


def logit_gradients(
    hidden_MD: Float[Array, "M D"], kernel_DV: Float[Array, "D V"], start: Int[Array, " 1"], width: int,
    rows: slabs.RowCotangents, *, temperature: float,
) -> Float[Array, "M W"]:  # fmt: skip
    """The slab of dz that begins at id `start`, which is a whole number of tiles, `width` ids wide."""
    (M, D), V = hidden_MD.shape, kernel_DV.shape[1]
    block, columns, depth = _blocks(M, D, V, hidden_MD.dtype)
    per_row = pl.BlockSpec((block, 1), lambda i, j, k, start: (i, 0))
    return pl.pallas_call(
        functools.partial(_logit_gradients_kernel, D=D, depth=depth, temperature=temperature),
        out_shape=jax.ShapeDtypeStruct(
            (M, width), hidden_MD.dtype, manual_axis_type=jax.typeof(varying_as(start, hidden_MD, kernel_DV, rows.lse_M)).mat
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(M, block), pl.cdiv(width, columns), pl.cdiv(D, depth)),
            in_specs=[
                pl.BlockSpec((block, depth), lambda i, j, k, start: (i, k)),
                pl.BlockSpec((depth, columns), lambda i, j, k, start: (k, start[0] // columns + j)),
                *[per_row] * len(rows),
            ],
            out_specs=pl.BlockSpec((block, columns), lambda i, j, k, start: (i, j)),
            scratch_shapes=[pltpu.VMEM((block, columns), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="token_logprob_logit_gradients",
    )(start, hidden_MD, kernel_DV, *(values[:, None] for values in rows))


backward = functools.partial(slabs.backward, logit_gradients)
