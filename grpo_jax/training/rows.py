"""The rows of rollouts on the host: judged rows as a table, their order within updates, and their place on the devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.parallel import place, row_sharding

# Key of a NumPy generator: no two kinds of draw share their noise.
_DEAL = 13


class Rows(NamedTuple):
    """Judged rows, the rows of a prompt next to each other; NumPy arrays, the same on every host.

    Attributes:
        tokens: [prompt, completion, unused] per row.
        prompt_lengths: tokens of the prompts.
        lengths: tokens of prompt and completion together.
        truncated: whether the limit on length cut the row off.
        sampler_logprobs: under the distribution that the tokens were drawn from.
        old_logprobs: under the policy that sampled them; 0 where it was not scored.
        version: optimizer updates behind the policy that sampled them; -1 for a row that is none.
        reward: the composite reward; NaN where it is missing.
        components: the parts of the reward by name; NaN where one does not apply.
    """

    tokens: Int[np.ndarray, "B S"]
    prompt_lengths: Int[np.ndarray, " B"]
    lengths: Int[np.ndarray, " B"]
    truncated: Bool[np.ndarray, " B"]
    sampler_logprobs: Float[np.ndarray, "B S"]
    old_logprobs: Float[np.ndarray, "B S"]
    version: Int[np.ndarray, " B"]
    reward: Float[np.ndarray, " B"]
    components: dict[str, Float[np.ndarray, " B"]]

    @property
    def completion_lengths(self) -> Int[np.ndarray, " B"]:
        return self.lengths - self.prompt_lengths

    @property
    def completion_mask(self) -> Bool[np.ndarray, "B S"]:
        """`grpo_jax.objectives.completion_mask`, on the host."""
        index = np.arange(self.tokens.shape[1])
        return (index >= np.maximum(self.prompt_lengths, 1)[:, None]) & (index < self.lengths[:, None])

    def take(self, rows: Int[np.ndarray, " N"]) -> Rows:
        """The rows of these numbers, in this order."""
        return jax.tree.map(lambda values: values[rows], self)


def join(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after the other."""
    return jax.tree.map(lambda *values: np.concatenate(values), *parts)


def rows_of_groups(groups: Int[np.ndarray, " P"], group_size: int) -> Int[np.ndarray, " B"]:
    """The numbers of the rows of these groups."""
    return (np.asarray(groups, int)[:, None] * group_size + np.arange(group_size)).reshape(-1)


def place_rows(array: np.ndarray, mesh: Mesh | None) -> Array:
    """An array of a batch on the device, or on the mesh with its rows split over the mesh's row axes."""
    return place(array, None if mesh is None else row_sharding(mesh))


def live_first(live: Bool[np.ndarray, " B"], microbatches: int) -> Int[np.ndarray, " B"]:
    """An order of rows that fills whole microbatches with live rows first: a microbatch without one is never computed.

    Row r of a batch belongs to microbatch r mod M (steps.py).
    """
    ranked = np.argsort(~live, kind="stable")
    return ranked.reshape(microbatches, -1).T.reshape(-1)


def dealt(live: Bool[np.ndarray, " B"], minibatches: int, seed: int, step: int, pass_: int) -> list[Int[np.ndarray, " N"]]:
    """The rows of each minibatch of one pass over a rollout: dealt at random, live rows as evenly as they go."""
    if minibatches == 1:
        return [np.arange(live.size)]
    shuffled = np.random.default_rng([seed, _DEAL, step, pass_]).permutation(live.size)
    ranked = shuffled[np.argsort(~live[shuffled], kind="stable")]
    return [np.sort(ranked[part::minibatches]) for part in range(minibatches)]
