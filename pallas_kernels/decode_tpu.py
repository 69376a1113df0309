"""What the decode kernels for TPUs share: which block a step reads, and which of its slots a query sees."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

LANES = 128


def slots_of_block(S: int, slot_bytes: int, *, block_bytes: int = 1 << 20, most: int = 1024) -> int:
    """Slots that a step reads: a multiple of the lanes, of about a MiB, which hides a step's fixed cost."""
    fitting = max(LANES, block_bytes // slot_bytes // LANES * LANES)
    return S if S <= LANES else min(fitting, most, pl.cdiv(S, LANES) * LANES)


def block_index(page: int, pages: int, i: int, stored_pages: int | None) -> Callable[..., Any]:
    """For reference i of a step of `pages` blocks: (b, step, lengths_ref, table_ref) -> its place in the cache.

    Past a row's length that is always the row's last block: a block that is asked for again is not fetched again. In a
    paged cache, which has `stored_pages`, it is the page's number, otherwise the number of the block in the row.
    """

    def index(b: Any, step: Any, lengths_ref: Any, table_ref: Any) -> Any:
        last = jnp.maximum(pl.cdiv(lengths_ref[b], page) - 1, 0)
        block = jnp.minimum(step * pages + i, last)
        return block if stored_pages is None else jnp.clip(table_ref[b, block], 0, stored_pages - 1)

    return index


def allowed_rows(mask: Bool[Array, "*b P P"], group: int, padded: int) -> Float[Array, "b padded J"]:
    """The mask of each query row (row p * group + n), its columns padded to whole lanes; 0 and 1 in bfloat16."""
    rows = jnp.repeat(mask if mask.ndim == 3 else mask[None], group, axis=1)
    more = ((0, 0), (0, padded - rows.shape[1]), (0, -rows.shape[2] % LANES))
    return jnp.pad(rows, more).astype(jnp.bfloat16)


def visible(
    start: Int[Array, ""], slots: int, length: Int[Array, ""], P: int, row_p: Int[Array, "M 1"],
    allowed: Float[Array, "M J"] | None,
) -> tuple[Bool[Array, "M slots"], Bool[Array, "1 slots"], Bool[Array, "slots 1"]]:  # fmt: skip
    """Which of the slots from `start` on each query row sees, and which any does: along the lanes, and down the rows.

    Args:
        start: the block's first slot.
        slots: slots of the block.
        length: of the row.
        P: positions.
        row_p: the position of each query row.
        allowed: from `allowed_rows`; causal without.
    """
    slot = start + jax.lax.broadcasted_iota(jnp.int32, (1, slots), 1)
    slot_down = start + jax.lax.broadcasted_iota(jnp.int32, (slots, 1), 0)
    newest, newest_down = slot - (length - P), slot_down - (length - P)  # which of the P newest tokens a slot holds
    used, used_down = slot < length, slot_down < length
    if allowed is None:
        return (newest <= row_p) & used, used, used_down
    # Row m sees newest token j where allowed[m, j]: a product with one-hot columns puts that at j's slot.
    J = allowed.shape[1]
    one_hot = (jax.lax.broadcasted_iota(jnp.int32, (J, slots), 0) == newest) & used
    found = jnp.dot(allowed, jnp.where(one_hot, 1.0, 0.0).astype(allowed.dtype), preferred_element_type=jnp.float32)
    used &= (newest < 0) | (jnp.max(found, axis=0, keepdims=True) > 0.5)
    any_row = jnp.max(allowed.astype(jnp.float32), axis=0, keepdims=True)
    one_hot_down = jax.lax.broadcasted_iota(jnp.int32, (slots, J), 1) == newest_down
    found_down = jnp.max(jnp.where(one_hot_down, any_row, 0.0), axis=1, keepdims=True)
    used_down &= (newest_down < 0) | (found_down > 0.5)
    return ((found > 0.5) | (newest < 0)) & used, used, used_down
