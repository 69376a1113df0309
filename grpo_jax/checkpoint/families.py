"""How other projects name and lay out a model in a GGUF file, one table of names per architecture.

A family maps every tensor of a file to a leaf of our parameter tree (grpo_jax/model/params.py) and the file's metadata
to a `ModelConfig`. A new family is a new entry of `FAMILIES`; the loader itself knows no names.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grpo_jax.checkpoint.errors import UnsupportedModelError
from grpo_jax.model import GQAConfig, ModelConfig, RopeConfig

# From a tensor as the file has it (NumPy order: [out, in] for a matrix) to one layer of our leaf.
Transform = Callable[[np.ndarray, ModelConfig], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """A GGUF file's metadata, whose keys are mostly prefixed by its architecture.

    Attributes:
      architecture: value of `general.architecture`.
      values: the file's key-value pairs.
    """

    architecture: str
    values: Mapping[str, Any]

    def required(self, key: str) -> Any:
        """Returns the value of `<architecture>.<key>`.

        Raises:
          UnsupportedModelError: the file has no such key.
        """
        full = f"{self.architecture}.{key}"
        if full not in self.values:
            raise UnsupportedModelError(
                f"the GGUF file has no metadata {full}, which a {self.architecture} model needs: convert it again"
            )
        return self.values[full]

    def optional(self, key: str, default: Any) -> Any:
        """Returns the value of `<architecture>.<key>`, or `default` if the file has no such key."""
        return self.values.get(f"{self.architecture}.{key}", default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorRule:
    """Where one tensor goes.

    Attributes:
      name: the tensor's name; `{layer}` in it stands for the layer's number, and the leaf then has a leading L.
      path: dotted path of the leaf in the parameter tree.
      transform: from the file's layout to ours.
    """

    name: str
    path: str
    transform: Transform

    @property
    def per_layer(self) -> bool:
        """Whether each layer has a tensor of its own."""
        return "{layer}" in self.name

    def tensor(self, layer: int) -> str:
        """Returns the name of the tensor that holds `layer`."""
        return self.name.format(layer=layer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture.

    Attributes:
      config: from metadata and the shapes of the tensors (NumPy order) to a model config with default precision.
      tensors: one rule for each leaf that the config's parameter tree can have.
    """

    config: Callable[[Metadata, Mapping[str, tuple[int, ...]]], ModelConfig]
    tensors: tuple[TensorRule, ...]


def as_it_is(tensor: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Vectors and the embedding [V, D]: the same layout on both sides."""
    return tensor


def transposed(tensor: np.ndarray, config: ModelConfig) -> np.ndarray:
    """[out, in] to [in, out]: files apply a matrix as `W @ x`, we as `x @ W`."""
    return tensor.T


def heads_out(tensor: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Rows grouped by head, [heads H, D], to [D, heads, H]."""
    gqa = _gqa(config)
    return tensor.reshape(-1, gqa.head_dim, config.embed_dim).transpose(2, 0, 1)


def rotary_heads_out(tensor: np.ndarray, config: ModelConfig) -> np.ndarray:
    """As `heads_out`, from rows whose rotary pairs are neighbours (2i, 2i+1) to our pairs (i, i + H/2).

    llama.cpp's converter interleaves the two halves of each head of the published weights, since its `llama` kernels
    rotate neighbours. Row 2i + j of a head there is row i + j H/2 of the published one, j in {0, 1}.
    """
    gqa = _gqa(config)
    pairs = tensor.reshape(-1, gqa.head_dim // 2, 2, config.embed_dim)
    return heads_out(pairs.swapaxes(1, 2).reshape(tensor.shape), config)


def heads_in(tensor: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Columns grouped by head, [D, N H], to [N, H, D]."""
    gqa = _gqa(config)
    return tensor.reshape(config.embed_dim, gqa.num_heads, gqa.head_dim).transpose(1, 2, 0)


def _gqa(config: ModelConfig) -> GQAConfig:
    if config.gqa is None:
        raise ValueError("model.gqa must be set: this transform lays out grouped-query attention")
    return config.gqa


def llama_config(metadata: Metadata, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """The Llama architecture (arXiv 2302.13971) with grouped-query attention.

    Raises:
      UnsupportedModelError: a key or the embedding is missing, or a key asks for rotary scaling or for rotating only a
        part of each head.
    """
    embed_dim, num_heads = metadata.required("embedding_length"), metadata.required("attention.head_count")
    head_dim = metadata.optional("attention.key_length", embed_dim // num_heads)
    rotary_dim = metadata.optional("rope.dimension_count", head_dim)
    scaling = metadata.optional("rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError(f"rope.scaling.type {scaling!r} is not supported for llama files, only 'none'")
    if rotary_dim != head_dim:
        raise UnsupportedModelError(
            f"rope.dimension_count {rotary_dim} must equal the head width {head_dim}: partial rotation is not supported"
        )
    if "token_embd.weight" not in shapes:
        raise UnsupportedModelError("the GGUF file has no tensor token_embd.weight, which a llama model needs")
    return ModelConfig(
        vocab_size=shapes["token_embd.weight"][0],
        num_layers=metadata.required("block_count"),
        embed_dim=embed_dim,
        mlp_dim=metadata.required("feed_forward_length"),
        gqa=GQAConfig(
            num_heads=num_heads,
            num_kv_heads=metadata.optional("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rope=RopeConfig(theta=metadata.optional("rope.freq_base", 10000.0)),
        ),
        norm_eps=metadata.required("attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in shapes,
    )


LLAMA = Family(
    config=llama_config,
    tensors=(
        TensorRule(name="token_embd.weight", path="embed.embedding", transform=as_it_is),
        TensorRule(name="blk.{layer}.attn_norm.weight", path="layers.attention_norm.scale", transform=as_it_is),
        TensorRule(name="blk.{layer}.attn_q.weight", path="layers.attention.query", transform=rotary_heads_out),
        TensorRule(name="blk.{layer}.attn_k.weight", path="layers.attention.key", transform=rotary_heads_out),
        TensorRule(name="blk.{layer}.attn_v.weight", path="layers.attention.value", transform=heads_out),
        TensorRule(name="blk.{layer}.attn_output.weight", path="layers.attention.out", transform=heads_in),
        TensorRule(name="blk.{layer}.ffn_norm.weight", path="layers.mlp_norm.scale", transform=as_it_is),
        TensorRule(name="blk.{layer}.ffn_gate.weight", path="layers.mlp.gate", transform=transposed),
        TensorRule(name="blk.{layer}.ffn_up.weight", path="layers.mlp.up", transform=transposed),
        TensorRule(name="blk.{layer}.ffn_down.weight", path="layers.mlp.down", transform=transposed),
        TensorRule(name="output_norm.weight", path="final_norm.scale", transform=as_it_is),
        TensorRule(name="output.weight", path="unembed.kernel", transform=transposed),
    ),
)

FAMILIES: dict[str, Family] = {"llama": LLAMA}
