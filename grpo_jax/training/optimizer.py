"""AdamW, its learning-rate schedule and gradient clipping, from optax."""

import dataclasses
from typing import Any, Literal

import jax
import optax

from grpo_jax.training.validation import require as _require


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with a warm-up, a schedule and clipping of the global gradient norm.

    Attributes:
        learning_rate: The peak learning rate, reached at the end of the warm-up.
        schedule: What follows the warm-up: `constant`, or `linear` or `cosine` decay to `end_fraction` of the peak.
        warmup_steps: Updates over which the learning rate rises linearly from 0.
        end_fraction: The share of the peak that is left at the last update; 1 with `constant`.
        b1: Decay of the gradient's running mean.
        b2: Decay of the running mean of the squared gradient.
        eps: Added to the root of the squared gradient's mean.
        weight_decay: Decoupled weight decay; norm scales are exempt.
        clip_norm: The global gradient norm above which gradients are scaled down; null never clips.
    """

    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    end_fraction: float = 1.0
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        _require(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        _require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        _require(0.0 <= self.end_fraction <= 1.0, "end_fraction", self.end_fraction, "in [0, 1]")
        _require(
            self.schedule != "constant" or self.end_fraction == 1.0,
            "end_fraction",
            self.end_fraction,
            "1 when schedule is constant: nothing decays",
        )
        _require(0.0 <= self.b1 < 1.0, "b1", self.b1, "in [0, 1)")
        _require(0.0 <= self.b2 < 1.0, "b2", self.b2, "in [0, 1)")
        _require(self.eps > 0, "eps", self.eps, "above 0")
        _require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        _require(self.clip_norm is None or self.clip_norm > 0, "clip_norm", self.clip_norm, "above 0, or null")


def make_schedule(config: OptimizerConfig, total_updates: int) -> optax.Schedule:
    """Learning rate by update, counted from 0: a linear warm-up to the peak, then the schedule's decay."""
    peak, decay = config.learning_rate, max(total_updates - config.warmup_steps, 1)
    after_warmup = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, peak * config.end_fraction, decay),
        "cosine": lambda: optax.cosine_decay_schedule(peak, decay, alpha=config.end_fraction),
    }[config.schedule]()
    if config.warmup_steps == 0:
        return after_warmup
    # The first update already moves: it takes 1/(warmup + 1) of the peak rather than a learning rate of 0.
    warmup = optax.linear_schedule(peak / (config.warmup_steps + 1), peak, config.warmup_steps)
    return optax.join_schedules([warmup, after_warmup], [config.warmup_steps])


def _is_decayed(params: Any) -> Any:
    """True for kernels and embeddings, False for the norms' scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "scale", params)


def make_optimizer(config: OptimizerConfig, total_updates: int) -> optax.GradientTransformation:
    """Clipping by global norm, then AdamW (Loshchilov & Hutter, arXiv 1711.05101) on the schedule."""
    adamw = optax.adamw(
        make_schedule(config, total_updates),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=_is_decayed,
    )
    if config.clip_norm is None:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)
