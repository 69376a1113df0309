"""One step of supervised fine-tuning: demonstrations of the curriculum's problems, one update."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from grpo_jax.data import CurriculumState, sample_problems, sft_rows
from grpo_jax.parallel import row_sharding
from grpo_jax.training.experiment import Experiment
from grpo_jax.training.steps import SFTBatch

# Keys of NumPy generators: no two kinds of draw share their noise.
_DEMONSTRATIONS = 11


def place_rows(array: np.ndarray, mesh: Mesh | None) -> Array:
    """An array of a batch on the device, or on the mesh with its rows split over the mesh's row axes."""
    return jax.device_put(array, None if mesh is None else row_sharding(mesh))


def sft_batch(experiment: Experiment, curriculum: CurriculumState, step: int) -> SFTBatch:
    """The demonstrations of a step (from 0), a pure function of its arguments."""
    config, template = experiment.config, experiment.template
    problems = sample_problems(
        experiment.task, config.data.curriculum, curriculum, sft_seed(config.seed), step, config.sft.rows
    )
    rng = np.random.default_rng([config.seed, _DEMONSTRATIONS, step])
    rows = sft_rows(
        [template.encode_prompt(problem) for problem in problems],
        [template.encode_completion(experiment.task.demonstration(problem, rng)) for problem in problems],
        config.max_tokens,
        experiment.policy.tokenizer.pad_id,
    )
    mesh = experiment.policy.mesh
    return SFTBatch(
        tokens=place_rows(rows.tokens, mesh),
        prompt_lengths=place_rows(rows.prompt_lengths, mesh),
        lengths=place_rows(rows.lengths, mesh),
    )


def sft_seed(seed: int) -> int:
    """The seed of SFT's problems; GRPO's are drawn with the next one."""
    return 2 * seed


def grpo_seed(seed: int) -> int:
    """The seed of GRPO's problems."""
    return 2 * seed + 1
