"""Parameters as plain nested dicts: made, described, sharded, and taken apart.

    {"embed": {"embedding": [V,D]},
     "layers": {"attention_norm": {"scale": [L,D]}, "attention": {...}, "mlp_norm": {"scale": [L,D]},
                "mlp": {"gate": [L,D,F], "up": [L,D,F], "down": [L,F,D]}},
     "final_norm": {"scale": [D]},
     "unembed": {"kernel": [D,V]}}                                       untied only

    attention, GQA: {"query": [L,D,N,H], "key": [L,D,K,H], "value": [L,D,K,H], "out": [L,N,H,D]}
    attention, MLA: {"kv_down": [L,D,C+R], "kv_norm": {"scale": [L,C]}, "key_up": [L,C,N,H], "value_up": [L,C,N,Hv],
                     "out": [L,N,Hv,D]} and either {"query": [L,D,N,H+R]} or, with a query latent,
                    {"query_down": [L,D,Q], "query_norm": {"scale": [L,Q]}, "query_up": [L,Q,N,H+R]}

Checkpoint loaders are written against this tree. A kernel is applied as `x @ kernel`.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from grpo_jax.model.config import ModelConfig
from grpo_jax.model.transformer import Transformer, unstack
from grpo_jax.parallel import LOGICAL_TO_MESH, MeshShape
from grpo_jax.types import Array, AxesTree, Params, PRNGKey


def _boxed_init(config: ModelConfig, key: PRNGKey) -> Params:
    return Transformer(config).init(key, jnp.zeros((1, 1), jnp.int32))["params"]


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: ModelConfig, key: PRNGKey) -> Params:
    """New parameters; the same config and key give the same numbers on any device and any mesh."""
    return nn.meta.unbox(_boxed_init(config, key))


def abstract_params(config: ModelConfig) -> Params:
    """The tree of init_params with jax.ShapeDtypeStruct leaves; allocates nothing."""
    return jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))


def param_axes(config: ModelConfig) -> AxesTree:
    """The tree of init_params with each array's logical axis names, one tuple per array."""
    boxed = jax.eval_shape(lambda key: _boxed_init(config, key), jax.random.key(0))
    return jax.tree.map(lambda box: tuple(box.names), boxed, is_leaf=lambda node: isinstance(node, nn.Partitioned))


def unembedding(config: ModelConfig, params: Params) -> Float[Array, "D V"]:
    """The projection from hidden states to logits; where embeddings are tied, the transposed embedding."""
    return params["embed"]["embedding"].T if config.tie_embeddings else params["unembed"]["kernel"]


def unstack_layers(params: Params) -> tuple[Params, ...]:
    """One parameter tree per layer, for decode_step. Do it once, outside the decode loop: it copies."""
    return unstack(params["layers"], params["layers"]["attention_norm"]["scale"].shape[0])


def check_divisible(config: ModelConfig, mesh: MeshShape) -> None:
    """Refuses a mesh that cannot split this model's arrays evenly.

    Raises:
        ValueError: names the first size that its mesh axis does not divide.
    """
    sizes = [("model.vocab_size", config.vocab_size, "vocab")]
    sizes += [("model.embed_dim", config.embed_dim, "embed"), ("model.mlp_dim", config.mlp_dim, "mlp")]
    if config.mla is not None:
        sizes += [("model.mla.num_heads", config.mla.num_heads, "heads")]
    if config.gqa is not None:
        sizes += [("model.gqa.num_heads", config.gqa.num_heads, "heads")]
        sizes += [("model.gqa.num_kv_heads", config.gqa.num_kv_heads, "kv_heads")]
    for name, size, logical in sizes:
        axis = LOGICAL_TO_MESH[logical]
        assert isinstance(axis, str)
        if size % mesh[axis] != 0:
            raise ValueError(
                f"{name}={size} is not divisible by the mesh's {axis} axis of {mesh[axis]} ({mesh}): choose a "
                f"{axis} size that divides it, or change {name}."
            )
