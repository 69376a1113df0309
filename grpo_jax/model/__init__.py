"""The decoder and its two attentions, as pure functions over plain parameter dicts.

Token ids go in, hidden states come out; nothing here knows of text, rewards or losses.
"""

from grpo_jax.model.cache import Cache, GQACache, LayerCache, MLACache, init_cache
from grpo_jax.model.config import GQAConfig, MLAConfig, ModelConfig, Remat, RopeConfig, YarnConfig
from grpo_jax.model.forward import decode_step, hidden_states, prefill
from grpo_jax.model.params import (
    abstract_params,
    check_divisible,
    init_params,
    param_axes,
    unembedding,
    unstack_layers,
)
from grpo_jax.model.transformer import Transformer

__all__ = [
    "Cache",
    "GQACache",
    "GQAConfig",
    "LayerCache",
    "MLACache",
    "MLAConfig",
    "ModelConfig",
    "Remat",
    "RopeConfig",
    "Transformer",
    "YarnConfig",
    "abstract_params",
    "check_divisible",
    "decode_step",
    "hidden_states",
    "init_cache",
    "init_params",
    "param_axes",
    "prefill",
    "unembedding",
    "unstack_layers",
]
