"""grpo_jax: GRPO post-training for MLA and GQA reasoning models in JAX. docs/api.md has a line on each name.

Names are looked up when they are first used, so that a room without jax (data, rewards) imports without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_jax.checkpoint import load_exported, load_gguf
    from grpo_jax.generation import SamplerConfig, rollout
    from grpo_jax.model import GQAConfig, MLAConfig, ModelConfig, init_params
    from grpo_jax.objectives import GRPOConfig, group_advantages
    from grpo_jax.training.loop import train
    from grpo_jax.training.state import StepConfig, TrainState
    from grpo_jax.training.steps import GRPOBatch, SFTBatch, grpo_step, sft_step

_HOME = {
    "GQAConfig": "grpo_jax.model",
    "GRPOBatch": "grpo_jax.training.steps",
    "GRPOConfig": "grpo_jax.objectives",
    "MLAConfig": "grpo_jax.model",
    "ModelConfig": "grpo_jax.model",
    "SFTBatch": "grpo_jax.training.steps",
    "SamplerConfig": "grpo_jax.generation",
    "StepConfig": "grpo_jax.training.state",
    "TrainState": "grpo_jax.training.state",
    "group_advantages": "grpo_jax.objectives",
    "grpo_step": "grpo_jax.training.steps",
    "init_params": "grpo_jax.model",
    "load_exported": "grpo_jax.checkpoint",
    "load_gguf": "grpo_jax.checkpoint",
    "rollout": "grpo_jax.generation",
    "sft_step": "grpo_jax.training.steps",
    "train": "grpo_jax.training.loop",
}

__all__ = [
    "GQAConfig",
    "GRPOBatch",
    "GRPOConfig",
    "MLAConfig",
    "ModelConfig",
    "SFTBatch",
    "SamplerConfig",
    "StepConfig",
    "TrainState",
    "group_advantages",
    "grpo_step",
    "init_params",
    "load_exported",
    "load_gguf",
    "rollout",
    "sft_step",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'grpo_jax' has no attribute {name!r}; its names are {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
