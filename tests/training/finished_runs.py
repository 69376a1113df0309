"""What a run has left behind, for the tests that compare two."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

from grpo_jax.checkpoint import RunCheckpoints
from grpo_jax.training.config import RunConfig
from grpo_jax.training.policy import build_policy
from grpo_jax.training.position import Position


def final_arrays(config: RunConfig) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint, by its path."""
    with RunCheckpoints(Path(config.run_dir) / "checkpoints", read_only=True) as checkpoints:
        position = Position.from_json(checkpoints.read_host())
        restored = checkpoints.restore(build_policy(config).abstract_arrays(position))
    leaves = jax.tree_util.tree_leaves_with_path(restored.state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def records(run_dir: Path) -> list[dict]:
    """The lines of the log."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
