"""The decoder: embedding, a scan over pre-norm layers, a final norm, and the projection to logits."""

import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float, Int

from grpo_jax.model.cache import Cache, LayerCache
from grpo_jax.model.config import ModelConfig
from grpo_jax.model.gqa import GroupedQueryAttention
from grpo_jax.model.linear import weight
from grpo_jax.model.mla import MultiHeadLatentAttention
from grpo_jax.model.mlp import SwiGLU
from grpo_jax.model.norm import RMSNorm
from grpo_jax.model.rope import Rotary, rotary
from grpo_jax.model.segments import segment_positions
from grpo_jax.parallel import constrain
from grpo_jax.types import Array, Params

# What a layer keeps for its backward pass, by the name of the remat policy; "none" keeps everything and is no remat.
REMAT_POLICIES: dict[str, Callable[..., Any]] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        self.attention_norm = RMSNorm(config)
        attention_module: Any = MultiHeadLatentAttention if config.mla else GroupedQueryAttention
        self.attention = attention_module(config, self.mesh)
        self.mlp_norm = RMSNorm(config)
        self.mlp = SwiGLU(config, self.mesh)

    def __call__(self, x_BTD: Array, turn: Rotary, segments_BT: Array | None) -> tuple[Array, None]:
        """A span attending to itself. The second result is what a scan stacks: nothing."""
        return self.prefill(x_BTD, turn, segments_BT)[0], None

    def prefill(self, x_BTD: Array, turn: Rotary, segments_BT: Array | None) -> tuple[Array, LayerCache]:
        """The same, with what the span leaves in the cache."""
        read, new = self.attention(self.attention_norm(x_BTD), turn, segments_BT)
        return self._feed_forward(x_BTD + read), new

    def extend(self, x_BTD: Array, turn: Rotary, positions_BT: Array, cache: LayerCache) -> tuple[Array, LayerCache]:
        """New tokens attending to the cache, which they join."""
        read, cache = self.attention.extend(self.attention_norm(x_BTD), turn, positions_BT, cache)
        return self._feed_forward(x_BTD + read), cache

    def _feed_forward(self, x_BTD: Array) -> Array:
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class Embedding(nn.Module):
    """The table of token vectors."""

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        self.embedding = weight(self, config, "embedding", (config.vocab_size, config.embed_dim), ("vocab", "embed"))

    def __call__(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        # Gathered over the axis that splits its width, which the rows use: the look-up then needs no other exchange.
        return jnp.take(constrain(self.embedding, self.mesh, ("vocab", None)), tokens_BT, axis=0)

    def as_kernel(self) -> Float[Array, "D V"]:
        """The projection to logits of a model with tied embeddings."""
        return self.embedding.T


class Unembedding(nn.Module):
    """The projection to logits of a model with untied embeddings."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> Float[Array, "D V"]:
        config = self.config
        return weight(self, config, "kernel", (config.embed_dim, config.vocab_size), ("embed", "vocab"))


class Transformer(nn.Module):
    """The whole decoder. `grpo_jax.model.forward` has the pure functions that most callers want.

    Attributes:
        config: the model's shape.
        mesh: pins the shardings of activations; None leaves them to the compiler.
    """

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        self.embed = Embedding(config, self.mesh)
        self.layers = _scanned_layers(config)(config, self.mesh)
        self.final_norm = RMSNorm(config)
        if not config.tie_embeddings:
            self.unembed = Unembedding(config)

    def __call__(
        self,
        tokens_BT: Int[Array, "B T"],
        positions_BT: Int[Array, "B T"] | None = None,
        cache: Cache | None = None,
    ) -> tuple[Float[Array, "B T V"], Cache | None]:
        """Logits of every position, in the compute dtype's matrix product but returned in float32.

        Without a cache the tokens attend causally to each other. With one they join it at their positions (consecutive
        ones; default 0..T-1) and attend to every slot up to their own; the returned cache holds them.
        """
        x_BTD = self.embed_tokens(tokens_BT)
        if cache is None:
            turn = self._turn(jnp.arange(tokens_BT.shape[1]) if positions_BT is None else positions_BT)
            hidden_BTD, _ = self.layers(x_BTD, turn, None)
        else:
            if positions_BT is None:
                positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
            layers = unstack(self.variables["params"]["layers"], self.config.num_layers)
            hidden_BTD, cache = extend_layers(self.config, layers, x_BTD, positions_BT, cache, self.mesh)
        kernel_DV = self.embed.as_kernel() if self.config.tie_embeddings else self.unembed()
        logits = jnp.einsum("BTD,DV->BTV", self.final_norm(hidden_BTD), kernel_DV, preferred_element_type=jnp.float32)
        return logits, cache

    def embed_tokens(self, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """The residual stream that enters the first layer."""
        return constrain(self.embed(tokens_BT), self.mesh, ("rows", None, None))

    def hidden(self, tokens_BT: Int[Array, "B T"], segments_BT: Int[Array, "B T"] | None = None) -> Float[Array, "B T D"]:
        """What the unembedding reads: the last layer's output after the final norm."""
        positions = jnp.arange(tokens_BT.shape[1]) if segments_BT is None else segment_positions(segments_BT)
        x_BTD, _ = self.layers(self.embed_tokens(tokens_BT), self._turn(positions), segments_BT)
        return self.final_norm(x_BTD)

    def prefill(self, tokens_BT: Int[Array, "B T"]) -> tuple[Float[Array, "B T D"], LayerCache]:
        """Hidden states before the final norm, and every layer's cache entries stacked along a leading L."""
        return self.layers.prefill(self.embed_tokens(tokens_BT), self._turn(jnp.arange(tokens_BT.shape[1])), None)

    def normalize(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """The final norm."""
        return self.final_norm(x)

    def _turn(self, positions: Array) -> Rotary:
        return rotary(self.config.rope, self.config.rotary_dim, positions)


def _scanned_layers(config: ModelConfig) -> Any:
    layer: Any = Layer
    if config.remat != "none":
        layer = nn.remat(
            Layer,
            policy=REMAT_POLICIES[config.remat],
            # A loop keeps the compiler from merging recomputation with the forward pass; unrolled, barriers must.
            prevent_cse=config.scan_unroll >= config.num_layers,
            methods=["__call__"],
        )
    scan = {
        "variable_axes": {"params": 0},
        "split_rngs": {"params": True},
        "in_axes": nn.broadcast,
        "length": config.num_layers,
        "unroll": config.scan_unroll,
        "metadata_params": {nn.PARTITION_NAME: "layers"},
    }
    return nn.scan(layer, methods={"__call__": scan, "prefill": scan})


def run(module: nn.Module, params: Params, method: str, *arguments: Any) -> Any:
    """Calls one method of a linen module as a pure function of its parameters."""
    return module.apply({"params": params}, *arguments, method=method)


def unstack(stacked: Any, num_layers: int) -> tuple[Any, ...]:
    """The tree of each layer, from the tree whose arrays have a leading L."""
    return tuple(jax.tree.map(operator.itemgetter(layer), stacked) for layer in range(num_layers))


def extend_layers(
    config: ModelConfig,
    layers: tuple[Params, ...],
    x_BTD: Float[Array, "B T D"],
    positions_BT: Int[Array, "B T"],
    cache: Cache,
    mesh: Mesh | None,
) -> tuple[Float[Array, "B T D"], Cache]:
    """Runs new tokens through every layer against the cache; layers are unrolled, each with its own cache entry."""
    turn = rotary(config.rope, config.rotary_dim, positions_BT)
    layer = Layer(config, mesh, parent=None)  # type: ignore[call-arg]  # linen adds `parent`
    written = []
    for params, entry in zip(layers, cache, strict=True):
        x_BTD, entry = run(layer, params, "extend", x_BTD, turn, positions_BT, entry)
        written.append(entry)
    return x_BTD, tuple(written)
