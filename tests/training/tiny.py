"""Tiny models, states and batches for the tests of training."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pack_demonstrations
from grpo_jax.model import GQAConfig, MLAConfig, ModelConfig, init_params
from grpo_jax.objectives import AdvantageConfig, GRPOConfig, group_advantages
from grpo_jax.training.optimizer import OptimizerConfig
from grpo_jax.training.state import StepConfig, TrainState
from grpo_jax.training.steps import GRPOBatch, SFTBatch, score

ROWS, LENGTH, VOCAB, GROUP = 16, 12, 32, 4

MODELS = {
    "mla": ModelConfig(
        vocab_size=VOCAB,
        num_layers=2,
        embed_dim=32,
        mlp_dim=48,
        mla=MLAConfig(num_heads=4, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8, q_rank=16),
    ),
    "gqa": ModelConfig(
        vocab_size=VOCAB,
        num_layers=2,
        embed_dim=32,
        mlp_dim=48,
        gqa=GQAConfig(num_heads=4, num_kv_heads=2, head_dim=8),
        tie_embeddings=False,
    ),
}


def step_config(
    model: str = "mla", *, microbatches: int = 1, mesh: Mesh | None = None, objective: GRPOConfig | None = None
) -> StepConfig:
    return StepConfig(
        model=MODELS[model],
        # With Adam's usual 1e-8 the update of a parameter with next to no gradient is the sign of its rounding.
        optimizer=OptimizerConfig(learning_rate=1e-3, eps=1e-5),
        total_updates=10,
        objective=objective or GRPOConfig(kl_coef=0.1),
        microbatches=microbatches,
        logit_chunk=5,
        mesh=mesh,
    )


def state(config: StepConfig, seed: int = 0) -> TrainState:
    return TrainState.create(init_params(config.model, jax.random.key(seed)), config)


def rewards(seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, 2, ROWS).astype(np.float32)
    values[:GROUP] = 1.0  # one group gives no signal
    values[GROUP : GROUP + 2] = (0.0, 1.0)
    return values


def grpo_batch(config: StepConfig, seed: int = 0, reference_seed: int = 7) -> GRPOBatch:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    prompt_lengths = rng.integers(1, 5, ROWS).astype(np.int32)
    lengths = (prompt_lengths + rng.integers(1, LENGTH - 5, ROWS)).astype(np.int32)
    advantages = group_advantages(rewards(seed), GROUP, AdvantageConfig())
    reference = init_params(config.model, jax.random.key(reference_seed))
    alone = step_config("mla" if config.model.mla else "gqa")
    return GRPOBatch(
        tokens=tokens,
        prompt_lengths=prompt_lengths,
        lengths=lengths,
        advantages=np.asarray(advantages.advantages_B),
        row_weights=np.ones(ROWS, np.float32),
        sampler_logprobs=np.full((ROWS, LENGTH), -2.0, np.float32),
        ref_logprobs=np.asarray(score(alone, reference, tokens)),
    )


def demonstrations(seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    """ROWS prompts and their completions, of which several fit a row."""
    rng = np.random.default_rng(seed)

    def draw(most: int) -> list[int]:
        return rng.integers(0, VOCAB, rng.integers(1, most)).tolist()

    return [draw(4) for _ in range(ROWS)], [draw(6) for _ in range(ROWS)]


def sft_batch(seed: int = 0) -> SFTBatch:
    return SFTBatch(**vars(pack_demonstrations(*demonstrations(seed), LENGTH, pad_id=0)))


def unpacked_sft_batch(seed: int = 0) -> SFTBatch:
    """The same demonstrations, one a row."""
    pairs = zip(*demonstrations(seed), strict=True)
    rows = [vars(pack_demonstrations([prompt], [completion], LENGTH, pad_id=0)) for prompt, completion in pairs]
    return SFTBatch(**{name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
