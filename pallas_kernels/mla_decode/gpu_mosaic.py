"""MLA decoding as a Pallas Mosaic GPU kernel for Hopper: wgmma on blocks of keys that a warpgroup of its own fetches by TMA.

A program holds a tile of 64 queries, (token, head) pairs of one row, and goes through one split of the row's slots, 64 at a
time, with an online softmax. The float32 accumulator of 64 x 512 is as large as all registers of two warpgroups, so it is
cut along the latents' width, as in FlashMLA (github.com/deepseek-ai/FlashMLA):

    producer      queries, then blocks of latents and rotary keys, into a ring of two buffers in shared memory
    warpgroup 0   logits, softmax, weights into shared memory; out[:, :C/2] += weights . latents[:, :C/2]
    warpgroup 1                                                out[:, C/2:] += weights . latents[:, C/2:]

Warpgroup 1's product can run beside the next block's logits of warpgroup 0. wgmma, TMA and setmaxnreg as
used here exist on Hopper alone (compute capability 9.0).
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.merge import EMPTY, merge_lse

TILE = 64  # queries of a program: the rows of a wgmma
KEYS = 64  # slots of a block: three blocks of queries or keys and the weights fill shared memory
BUFFERS = 2
SWIZZLED = 64  # 16-bit numbers in the 128 bytes of a swizzle
# Columns of weights . latents that a warpgroup has in flight beside its half of the accumulator. More would spill.
COLUMNS = 128
# For a thread of each warpgroup, the producer's last: of 504 together, which the launch hands out evenly.
REGISTERS = 240, 224, 40
# Programs that run on an H200 at once: shared memory has room for one on each of 132 multiprocessors.
CONCURRENT_PROGRAMS = 132
# A split should have work enough to be worth the float32 partial result that it writes.
LEAST_SLOTS_OF_A_SPLIT = 256

Ref = Any  # a reference to an array or a barrier, for which jax has several types

MATRIX = plgpu.Layout.WGMMA
VECTOR = plgpu.Layout.WGMMA.reduce(1)


class _Shared(NamedTuple):
    """Shared memory and barriers of a program; on a barrier stands who arrives."""

    q_latent: Ref
    q_rope: Ref
    latent: Ref
    rope: Ref
    weights: Ref
    shrink: Ref  # by what warpgroup 1 multiplies its accumulator before it adds a block, and in the end
    queries_filled: Ref  # TMA, twice
    keys_filled: Ref  # TMA, twice, or the producer, twice
    keys_read: Ref  # both consumers
    last_filled: Ref  # TMA, twice
    weights_filled: Ref  # warpgroup 0
    weights_read: Ref  # warpgroup 1

    @staticmethod
    def types(C: int, R: int, dtype: jnp.dtype) -> "_Shared":
        layout = (plgpu.TilingTransform((8, SWIZZLED)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]

        def matrix(*shape: int) -> Any:
            return plgpu.SMEM(shape, dtype, transforms=layout)

        return _Shared(
            q_latent=matrix(TILE, C),
            q_rope=matrix(TILE, R),
            latent=matrix(BUFFERS, KEYS, C),
            rope=matrix(BUFFERS, KEYS, R),
            weights=matrix(TILE, KEYS),
            shrink=plgpu.SMEM((TILE,), jnp.float32),
            queries_filled=plgpu.Barrier(num_arrivals=2),
            keys_filled=plgpu.Barrier(num_arrivals=2, num_barriers=BUFFERS),
            keys_read=plgpu.Barrier(num_arrivals=2, num_barriers=BUFFERS),
            last_filled=plgpu.Barrier(num_arrivals=2),
            weights_filled=plgpu.Barrier(),
            weights_read=plgpu.Barrier(),
        )


class _Span(NamedTuple):
    """The blocks of one program: the row's are dealt evenly, whatever its length."""

    b: jax.Array
    split: jax.Array
    tile: jax.Array
    length: jax.Array
    first: jax.Array
    blocks: jax.Array

    @staticmethod
    def of(lengths_ref: Ref, splits: int) -> "_Span":
        b, split, tile = (lax.axis_index(name) for name in ("row", "split", "tile"))
        length = lengths_ref[b]
        blocks = lax.div(length + (KEYS - 1), KEYS)
        each = lax.div(blocks + (splits - 1), splits)
        first = split * each
        return _Span(b, split, tile, length, first, jnp.clip(blocks - first, 0, each))


def _product(shape: tuple[int, int], *factors: tuple[Ref, Ref]) -> jax.Array:
    """The sum of products of matrices in shared memory."""

    def run(total_ref: Ref) -> jax.Array:
        for a, b in factors:
            plgpu.wgmma(total_ref, a, b)
        return total_ref[...]

    return pl.run_scoped(run, plgpu.ACC(shape, jnp.float32))


def _over_columns(vector: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return lax.broadcast_in_dim(vector, shape, [0])


def _vector(value: float) -> jax.Array:
    return plgpu.layout_cast(jnp.full((TILE,), value, jnp.float32), VECTOR)


def _write(ref: Ref, value: jax.Array) -> None:
    """From registers to device memory: a warp writes whole sectors of 32 bytes."""
    if hasattr(plgpu, "store"):
        plgpu.store(ref, value, optimized=False)
    else:  # jax 0.11
        ref[...] = value


class _Half(NamedTuple):
    """The columns of the result that one warpgroup has, in parts that one product makes."""

    warpgroup: int
    C: int

    @property
    def parts(self) -> list[tuple[int, int]]:
        width = self.C // 2
        columns = min(COLUMNS, width)
        return [(self.warpgroup * width + i, columns) for i in range(0, width, columns)]

    def zeros(self) -> tuple[jax.Array, ...]:
        return tuple(plgpu.layout_cast(jnp.zeros((TILE, columns), jnp.float32), MATRIX) for _, columns in self.parts)

    def add(
        self, parts: tuple[jax.Array, ...], shrink: jax.Array, shared: _Shared, buffer: jax.Array
    ) -> tuple[jax.Array, ...]:
        """parts * shrink + weights . latents"""
        added = []
        for part, (start, columns) in zip(parts, self.parts, strict=True):
            latent = shared.latent.at[buffer, :, pl.ds(start, columns)]
            product = _product((TILE, columns), (shared.weights, latent))
            added.append(part * _over_columns(shrink, part.shape) + product)
        return tuple(added)

    def write(self, out_ref: Ref, span: _Span, parts: tuple[jax.Array, ...], scale: jax.Array) -> None:
        for part, (start, columns) in zip(parts, self.parts, strict=True):
            at = out_ref.at[span.split, span.b, span.tile, :, pl.ds(start, columns)]
            _write(at, (part * _over_columns(scale, part.shape)).astype(out_ref.dtype))


def _weigh(lengths_ref: Ref, ends_ref: Ref, out_ref: Ref, lse_ref: Ref, shared: _Shared, *, scale: float, C: int) -> None:
    """Warpgroup 0."""
    plgpu.set_max_registers(REGISTERS[0], action="increase")
    span = _Span.of(lengths_ref, out_ref.shape[0])
    half = _Half(0, C)
    ends = plgpu.load(ends_ref.at[span.b, span.tile], layout=VECTOR, optimized=False) - span.first * KEYS
    plgpu.barrier_wait(shared.queries_filled)

    def block(i: jax.Array, carry: tuple) -> tuple:
        parts, highest, total = carry
        buffer = lax.rem(i, BUFFERS)
        plgpu.barrier_wait(shared.keys_filled.at[buffer])
        logits = _product(
            (TILE, KEYS),
            (shared.q_latent, shared.latent.at[buffer].transpose((1, 0))),
            (shared.q_rope, shared.rope.at[buffer].transpose((1, 0))),
        )
        slots = plgpu.broadcasted_iota(jnp.int32, (TILE, KEYS), 1, layout=MATRIX)
        sees = slots < _over_columns(ends - i * KEYS, slots.shape)
        logits = jnp.where(sees, logits * (scale * math.log2(math.e)), EMPTY)
        higher = jnp.maximum(highest, logits.max(axis=1))
        weights = jnp.exp2(logits - _over_columns(higher, logits.shape))
        shrink = jnp.exp2(highest - higher)
        total = total * shrink + weights.sum(axis=1)

        @pl.when(i > 0)
        def _before_weights_are_overwritten() -> None:
            plgpu.barrier_wait(shared.weights_read)

        shared.weights[...] = weights.astype(shared.weights.dtype)
        shared.shrink[...] = shrink
        plgpu.commit_smem()
        plgpu.barrier_arrive(shared.weights_filled)
        parts = half.add(parts, shrink, shared, buffer)
        plgpu.barrier_arrive(shared.keys_read.at[buffer])
        return parts, higher, total

    # As long as a query has seen nothing, its highest logit is above EMPTY by so much that EMPTY has no weight.
    start = half.zeros(), _vector(EMPTY / 2), _vector(0.0)
    parts, highest, total = lax.fori_loop(0, span.blocks, block, start)

    @pl.when(span.blocks > 0)
    def _before_shrink_is_overwritten() -> None:
        plgpu.barrier_wait(shared.weights_read)

    some = total > 0
    total = jnp.where(some, total, 1.0)
    scale_out = jnp.where(some, 1 / total, 0.0)
    shared.shrink[...] = scale_out
    plgpu.commit_smem()
    plgpu.barrier_arrive(shared.weights_filled)
    _write(lse_ref.at[span.split, span.b, span.tile], jnp.where(some, highest * math.log(2) + jnp.log(total), EMPTY))
    half.write(out_ref, span, parts, scale_out)


def _follow(lengths_ref: Ref, out_ref: Ref, shared: _Shared, *, C: int) -> None:
    """Warpgroup 1."""
    plgpu.set_max_registers(REGISTERS[1], action="increase")
    span = _Span.of(lengths_ref, out_ref.shape[0])
    half = _Half(1, C)

    def block(i: jax.Array, parts: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        buffer = lax.rem(i, BUFFERS)
        plgpu.barrier_wait(shared.keys_filled.at[buffer])
        plgpu.barrier_wait(shared.weights_filled)
        parts = half.add(parts, plgpu.load(shared.shrink, layout=VECTOR), shared, buffer)
        plgpu.barrier_arrive(shared.weights_read)
        plgpu.barrier_arrive(shared.keys_read.at[buffer])
        return parts

    parts = lax.fori_loop(0, span.blocks, block, half.zeros())
    plgpu.barrier_wait(shared.weights_filled)
    half.write(out_ref, span, parts, plgpu.load(shared.shrink, layout=VECTOR))


def _feed(
    lengths_ref: Ref, q_latent_ref: Ref, q_rope_ref: Ref, latent_ref: Ref, rope_ref: Ref,
    shared: _Shared, *, splits: int,
) -> None:  # fmt: skip
    """The producer."""
    plgpu.set_max_registers(REGISTERS[2], action="decrease")
    span = _Span.of(lengths_ref, splits)
    queries = (span.b, pl.ds(span.tile * TILE, TILE))
    plgpu.copy_gmem_to_smem(q_latent_ref.at[queries], shared.q_latent, shared.queries_filled)
    plgpu.copy_gmem_to_smem(q_rope_ref.at[queries], shared.q_rope, shared.queries_filled)

    def block(i: jax.Array, carry: None) -> None:
        buffer = lax.rem(i, BUFFERS)

        @pl.when(i >= BUFFERS)
        def _before_the_buffer_is_overwritten() -> None:
            plgpu.barrier_wait(shared.keys_read.at[buffer])

        def copy(barrier: Ref) -> None:
            slots = (span.b, pl.ds((span.first + i) * KEYS, KEYS))
            plgpu.copy_gmem_to_smem(latent_ref.at[slots], shared.latent.at[buffer], barrier)
            plgpu.copy_gmem_to_smem(rope_ref.at[slots], shared.rope.at[buffer], barrier)

        in_row = span.length - (span.first + i) * KEYS

        @pl.when(in_row >= KEYS)
        def _whole() -> None:
            copy(shared.keys_filled.at[buffer])

        @pl.when(in_row < KEYS)
        def _partial() -> None:
            # What lies past the row's length may be NaN, which a weight of zero does not undo.
            copy(shared.last_filled)
            plgpu.barrier_wait(shared.last_filled)
            slots = plgpu.broadcasted_iota(jnp.int32, (KEYS, SWIZZLED), 0, layout=MATRIX)
            for start in range(0, latent_ref.shape[-1], SWIZZLED):
                columns = pl.ds(start, SWIZZLED)
                latent = plgpu.load(shared.latent.at[buffer, :, columns], layout=MATRIX)
                shared.latent[buffer, :, columns] = jnp.where(slots < in_row, latent, jnp.zeros_like(latent))
            plgpu.commit_smem()
            for _ in range(2):
                plgpu.barrier_arrive(shared.keys_filled.at[buffer])

    lax.fori_loop(0, span.blocks, block, None)
    for last in range(1, BUFFERS + 1):

        @pl.when(span.blocks >= last)
        def _until_all_is_read(last: int = last) -> None:
            plgpu.barrier_wait(shared.keys_read.at[lax.rem(span.blocks - last, BUFFERS)])


def _mla_decode(
    lengths_ref: Ref, ends_ref: Ref, q_latent_ref: Ref, q_rope_ref: Ref, latent_ref: Ref,
    rope_ref: Ref, out_ref: Ref, lse_ref: Ref, shared: _Shared, *, scale: float,
) -> None:  # fmt: skip
    C = latent_ref.shape[-1]
    warpgroup = lax.axis_index("warpgroup")
    pl.when(warpgroup == 0)(lambda: _weigh(lengths_ref, ends_ref, out_ref, lse_ref, shared, scale=scale, C=C))
    pl.when(warpgroup == 1)(lambda: _follow(lengths_ref, out_ref, shared, C=C))
    pl.when(warpgroup == 2)(
        lambda: _feed(lengths_ref, q_latent_ref, q_rope_ref, latent_ref, rope_ref, shared, splits=out_ref.shape[0])
    )


def choose_splits(programs: int, S: int) -> int:
    """How many splits fill an H200 once, given the programs that one split needs and the slots that a row may have."""
    return max(1, min(CONCURRENT_PROGRAMS // programs, pl.cdiv(S, LEAST_SLOTS_OF_A_SPLIT)))


def mla_decode(
    q_latent_BPNC: Float[Array, "B P N C"],
    q_rope_BPNR: Float[Array, "B P N R"],
    latent_BSC: Float[Array, "B S C"],
    rope_BSR: Float[Array, "B S R"],
    lengths_B: Int[Array, " B"],
    *,
    scale: float,
    mask: Bool[Array, "B P P"] | None = None,
    latent_scales: Float[Array, "B S Z"] | None = None,
    num_splits: int | None = None,
) -> tuple[Float[Array, "B P N C"], Float[Array, "B P N"]]:
    B, P, N, C = q_latent_BPNC.shape
    S, R, dtype = latent_BSC.shape[1], q_rope_BPNR.shape[-1], q_latent_BPNC.dtype
    rows, tiles = P * N, pl.cdiv(P * N, TILE)
    splits = num_splits or choose_splits(max(1, B * tiles), S)
    padding = tiles * TILE - rows

    def padded(queries: Array) -> Array:
        return jnp.pad(queries.reshape(B, rows, -1), ((0, 0), (0, padding), (0, 0)))

    # The slots that each query sees end here; the queries of the padding see none.
    ends_BP = lengths_B.astype(jnp.int32)[:, None] - P + 1 + jnp.arange(P, dtype=jnp.int32)
    ends = jnp.pad(jnp.repeat(ends_BP, N, axis=1), ((0, 0), (0, padding))).reshape(B, tiles, TILE)

    outs, lses = plgpu.kernel(
        functools.partial(_mla_decode, scale=scale),
        out_type=(
            jax.ShapeDtypeStruct((splits, B, tiles, TILE, C), dtype if splits == 1 else jnp.float32),
            jax.ShapeDtypeStruct((splits, B, tiles, TILE), jnp.float32),
        ),
        # The last axis goes fastest: tiles that read the same slots run together and share them in the L2 cache.
        grid=(B, splits, tiles),
        grid_names=("row", "split", "tile"),
        num_threads=3,
        thread_name="warpgroup",
        kernel_name="mla_decode",
        scratch_types=(_Shared.types(C, R, dtype),),
        # Maxima and sums over 64 columns stay within a warp and need no shared memory, of which little is left.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(lengths_B.astype(jnp.int32), ends, padded(q_latent_BPNC), padded(q_rope_BPNR), latent_BSC, rope_BSR)
    out, lse = merge_lse(outs, lses) if splits > 1 else (outs[0], lses[0])
    return (
        out.reshape(B, -1, C)[:, :rows].reshape(B, P, N, C).astype(dtype),
        lse.reshape(B, -1)[:, :rows].reshape(B, P, N),
    )
