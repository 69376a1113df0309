"""Judged rows of nothing in particular, for the tests of what is done with them."""

from __future__ import annotations

import numpy as np

from grpo_jax.training.rows import Rows

GROUP, WIDTH = 4, 7
COMPONENTS = ("accuracy", "format", "termination")


def random_rows(seed: int, *, groups: int, version: int = 0) -> Rows:
    """Rows that differ in everything but their version."""
    rng = np.random.default_rng(seed)
    rows = groups * GROUP
    prompt_lengths = rng.integers(1, 4, rows).astype(np.int32)
    return Rows(
        tokens=rng.integers(0, 1000, (rows, WIDTH)).astype(np.int32),
        prompt_lengths=prompt_lengths,
        lengths=(prompt_lengths + rng.integers(1, 4, rows)).astype(np.int32),
        truncated=rng.random(rows) < 0.5,
        sampler_logprobs=-rng.random((rows, WIDTH)).astype(np.float32),
        old_logprobs=-rng.random((rows, WIDTH)).astype(np.float32),
        version=np.full(rows, version, np.int32),
        reward=rng.random(rows).astype(np.float32),
        components={name: rng.random(rows).astype(np.float32) for name in COMPONENTS},
    )
