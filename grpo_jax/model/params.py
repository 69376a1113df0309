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
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from grpo_jax.model.config import ModelConfig
from grpo_jax.model.linear import Declared
from grpo_jax.model.transformer import Transformer, unstack
from grpo_jax.parallel import LOGICAL_TO_MESH, MeshShape
from grpo_jax.types import Array, AxesTree, Params, PRNGKey


def _declared(config: ModelConfig) -> dict:
    """The parameter tree with a Declared of abstract arrays at every leaf."""
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]


def _is_declared(node: Any) -> bool:
    return isinstance(node, Declared)


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: ModelConfig, key: PRNGKey) -> Params:
    """New parameters; the same config and key give the same numbers on any device and any mesh."""
    outside = _declared(config)
    # Inside the scan a layer's arrays have no leading L.
    stacked = outside.pop("layers")
    layer = jax.tree.map(_without_layers, stacked, is_leaf=_is_declared)
    outside_key, layers_key = jax.random.split(key)

    def next_layer(number: Array, _: None) -> tuple[Array, Params]:
        return number + 1, _draw(layer, jax.random.fold_in(layers_key, number))

    _, layers = jax.lax.scan(next_layer, jnp.uint32(0), length=config.num_layers)
    return {**_draw(outside, outside_key), "layers": layers}


def _without_layers(leaf: Declared) -> Declared:
    array = leaf.value
    return leaf.replace(value=jax.ShapeDtypeStruct(array.shape[1:], array.dtype))


def _draw(declared: Params, key: PRNGKey) -> Params:
    """One draw from the standard normal, cut into the arrays that are random, each scaled as declared."""
    leaves, tree = jax.tree.flatten(declared, is_leaf=_is_declared)
    sizes = [math.prod(leaf.value.shape) if leaf.std else 0 for leaf in leaves]
    normal = jax.random.normal(key, (sum(sizes),))
    arrays, start = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        array = jnp.float32(leaf.mean)
        if size:
            array += leaf.std * normal[start : start + size].reshape(leaf.value.shape)
        arrays.append(jnp.broadcast_to(array, leaf.value.shape).astype(leaf.value.dtype))
        start += size
    return jax.tree.unflatten(tree, arrays)


def abstract_params(config: ModelConfig) -> Params:
    """The tree of init_params with jax.ShapeDtypeStruct leaves; allocates nothing."""
    return nn.meta.unbox(_declared(config))


def param_axes(config: ModelConfig) -> AxesTree:
    """The tree of init_params with each array's logical axis names, one tuple per array."""
    return jax.tree.map(lambda leaf: tuple(leaf.names), _declared(config), is_leaf=_is_declared)


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
