"""What outlives a process: the checkpoints of a run, exported parameters, and model files that others made."""

from grpo_jax.checkpoint.atomic import atomic_write
from grpo_jax.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointUnreadableError,
    CheckpointWriteError,
    UnsupportedModelError,
)
from grpo_jax.checkpoint.export import export_params, load_exported, read_model_json
from grpo_jax.checkpoint.exported import ExportedModel, open_pretrained
from grpo_jax.checkpoint.gguf import GGUFModel, find_distribution_file, load_gguf, resolve_gguf
from grpo_jax.checkpoint.run_state import Restored, RunCheckpoints

__all__ = [
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointUnreadableError",
    "CheckpointWriteError",
    "ExportedModel",
    "GGUFModel",
    "Restored",
    "RunCheckpoints",
    "UnsupportedModelError",
    "atomic_write",
    "export_params",
    "find_distribution_file",
    "load_exported",
    "load_gguf",
    "open_pretrained",
    "read_model_json",
    "resolve_gguf",
]
