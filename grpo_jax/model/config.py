"""The shape of a model: frozen, hashable dataclasses that a jitted function takes as static arguments.

They check themselves, so that an impossible model is one message and not a shape error inside a matrix product.
Errors name keys as a run file spells them (`model.mla.rope_dim`).
"""

import dataclasses
import math
from typing import Any, Literal, get_args

Remat = Literal["none", "full", "dots"]
Dtype = Literal["float32", "bfloat16"]
Kernels = Literal["auto", "reference"]


def _require(holds: bool, key: str, value: Any, rule: str) -> None:
    if not holds:
        raise ValueError(f"{key}={value!r} {rule}.")


def _positive(prefix: str, config: Any, *fields: str) -> None:
    for field in fields:
        value = vars(config)[field]
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(whole and value > 0, f"{prefix}.{field}", value, "must be a whole number, at least 1")


def _even(key: str, value: int) -> None:
    _require(value % 2 == 0, key, value, "must be even: rotary embedding turns pairs of dimensions")


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    _require(value in known, key, value, f"is unknown; the known ones are {', '.join(known)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class YarnConfig:
    """YaRN context extension (Peng et al. 2023, arXiv 2309.00071): frequencies by parts, logits scaled.

    Attributes:
        factor: how many times longer the context becomes; the paper's s.
        original_max_length: tokens of context before the extension; the paper's L.
        beta_fast: dimensions that turn more often than this over the original context keep their frequency.
        beta_slow: dimensions that turn less often than this are interpolated by `factor` in full.
        attention_factor: multiplies queries and keys, so logits by its square; None is the paper's 0.1 ln(factor) + 1.
            DeepSeek's `mscale` m goes here as 0.1 m ln(factor) + 1.
    """

    factor: float
    original_max_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _require(self.factor >= 1, "rope.yarn.factor", self.factor, "must be at least 1")
        _positive("rope.yarn", self, "original_max_length")
        _require(self.beta_slow > 0, "rope.yarn.beta_slow", self.beta_slow, "must be positive")
        _require(
            self.beta_fast > self.beta_slow,
            "rope.yarn.beta_fast",
            self.beta_fast,
            f"must exceed rope.yarn.beta_slow={self.beta_slow}",
        )
        if self.attention_factor is not None:
            _require(self.attention_factor > 0, "rope.yarn.attention_factor", self.attention_factor, "must be positive")

    @property
    def logit_scale(self) -> float:
        """What YaRN multiplies attention logits by: the attention factor of the query times that of the key."""
        factor = self.attention_factor
        if factor is None:
            factor = 0.1 * math.log(self.factor) + 1.0
        return factor * factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, half-split convention (dimension i pairs with i + dim/2).

    Attributes:
        theta: base of the geometric series of wavelengths.
        yarn: context extension, or None for the plain series.
    """

    theta: float = 10000.0
    yarn: YarnConfig | None = None

    def __post_init__(self) -> None:
        _require(self.theta > 1, "rope.theta", self.theta, "must exceed 1")

    @property
    def logit_scale(self) -> float:
        """What the position embedding multiplies attention logits by."""
        return self.yarn.logit_scale if self.yarn else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLAConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Attributes:
        num_heads: query heads; every head has its own keys and values, rebuilt from one latent.
        kv_rank: width of the normed latent that stands for a token's keys and values in the cache.
        nope_dim: width of a head's query and key that carries no position.
        rope_dim: width of the rotary query and of the one rotary key that all heads share.
        value_dim: width of a head's value.
        q_rank: width of the query latent; None projects queries straight from the residual stream.
        rope: position embedding of the rotary part.
    """

    num_heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int | None = None
    rope: RopeConfig = RopeConfig()

    def __post_init__(self) -> None:
        _positive("model.mla", self, "num_heads", "kv_rank", "nope_dim", "rope_dim", "value_dim")
        if self.q_rank is not None:
            _positive("model.mla", self, "q_rank")
        _even("model.mla.rope_dim", self.rope_dim)

    @property
    def scale(self) -> float:
        """Multiplies attention logits: (nope_dim + rope_dim)^-1/2, times YaRN's factor squared."""
        return (self.nope_dim + self.rope_dim) ** -0.5 * self.rope.logit_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class GQAConfig:
    """Grouped-query attention (arXiv 2305.13245); num_kv_heads = num_heads is MHA, num_kv_heads = 1 is MQA.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key/value heads; consecutive groups of num_heads / num_kv_heads query heads share one.
        head_dim: width of a head.
        rope: position embedding of the whole head.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig = RopeConfig()

    def __post_init__(self) -> None:
        _positive("model.gqa", self, "num_heads", "num_kv_heads", "head_dim")
        _require(
            self.num_heads % self.num_kv_heads == 0,
            "model.gqa.num_heads",
            self.num_heads,
            f"must be a multiple of model.gqa.num_kv_heads={self.num_kv_heads}",
        )
        _even("model.gqa.head_dim", self.head_dim)

    @property
    def scale(self) -> float:
        """Multiplies attention logits: head_dim^-1/2, times YaRN's factor squared."""
        return self.head_dim**-0.5 * self.rope.logit_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One pre-norm decoder: exactly one of `mla` and `gqa` is set.

    Attributes:
        vocab_size: rows of the embedding.
        num_layers: decoder layers.
        embed_dim: width of the residual stream.
        mlp_dim: width of the gated feed-forward (SwiGLU).
        mla: multi-head latent attention.
        gqa: grouped-query attention.
        norm_eps: added to the mean square inside RMSNorm.
        tie_embeddings: whether the embedding also projects hidden states to logits.
        remat: what the backward pass recomputes: none, full (everything inside a layer), or dots (all but the
            products with weights).
        scan_unroll: layers per iteration of the scan; num_layers unrolls it, which on CPU runs faster.
        kernels: auto runs attention, decoding and the cache's writes by the kernels of the platform (docs/kernels.md),
            where there are some; reference keeps to plain jnp.
        param_dtype: dtype in which parameters are created.
        compute_dtype: dtype of activations and matrix products; softmax and norms are always float32.
        initializer_range: standard deviation of new weights; projections into the residual stream get it divided by
            the square root of 2 num_layers (GPT-2).
    """

    vocab_size: int
    num_layers: int
    embed_dim: int
    mlp_dim: int
    mla: MLAConfig | None = None
    gqa: GQAConfig | None = None
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    remat: Remat = "none"
    scan_unroll: int = 1
    kernels: Kernels = "auto"
    param_dtype: Dtype = "float32"
    compute_dtype: Dtype = "float32"
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        _positive("model", self, "vocab_size", "num_layers", "embed_dim", "mlp_dim", "scan_unroll")
        if (self.mla is None) == (self.gqa is None):
            given = "neither" if self.mla is None else "both"
            raise ValueError(f"model.mla and model.gqa: {given} given; a model has exactly one kind of attention.")
        _require(self.norm_eps > 0, "model.norm_eps", self.norm_eps, "must be positive")
        _require(self.initializer_range > 0, "model.initializer_range", self.initializer_range, "must be positive")
        _one_of("model.remat", self.remat, get_args(Remat))
        _one_of("model.kernels", self.kernels, get_args(Kernels))
        _one_of("model.param_dtype", self.param_dtype, get_args(Dtype))
        _one_of("model.compute_dtype", self.compute_dtype, get_args(Dtype))

    @property
    def implementation(self) -> str | None:
        """What the kernels' `impl` is given."""
        return None if self.kernels == "auto" else "reference"

    @property
    def rope(self) -> RopeConfig:
        """The position embedding of whichever attention the model has."""
        return self.mla.rope if self.mla else self.gqa.rope  # type: ignore[union-attr]

    @property
    def rotary_dim(self) -> int:
        """The width that the position embedding turns: R of MLA, H of GQA."""
        return self.mla.rope_dim if self.mla else self.gqa.head_dim  # type: ignore[union-attr]
