"""One step of supervised fine-tuning: demonstrations of the curriculum's problems, one update."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array

from grpo_jax.data import CurriculumState, pack_demonstrations, sample_problems
from grpo_jax.training.experiment import Experiment
from grpo_jax.training.rows import live_first, place_rows
from grpo_jax.training.steps import SFTBatch

# Keys of NumPy generators: no two kinds of draw share their noise.
_DEMONSTRATIONS = 11


def sft_batch(experiment: Experiment, curriculum: CurriculumState, step: int) -> SFTBatch:
    """The demonstrations of a step (from 0), a pure function of its arguments."""
    config, template = experiment.config, experiment.template
    problems = sample_problems(
        experiment.task, config.data.curriculum, curriculum, sft_seed(config.seed), step, config.sft.rows
    )
    rng = np.random.default_rng([config.seed, _DEMONSTRATIONS, step])
    rows = pack_demonstrations(
        [template.encode_prompt(problem) for problem in problems],
        [template.encode_completion(experiment.task.demonstration(problem, rng)) for problem in problems],
        config.max_tokens,
        experiment.policy.tokenizer.pad_id,
    )
    order = live_first(rows.completion_mask.any(axis=1), config.sft.microbatches)

    def place(array: np.ndarray) -> Array:
        return place_rows(array[order], experiment.policy.mesh)

    return SFTBatch(tokens=place(rows.tokens), segments=place(rows.segments), completion_mask=place(rows.completion_mask))


def sft_seed(seed: int) -> int:
    """The seed of SFT's problems; GRPO's are drawn with the next one."""
    return 2 * seed


def grpo_seed(seed: int) -> int:
    """The seed of GRPO's problems."""
    return 2 * seed + 1
