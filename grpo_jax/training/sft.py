"""One step of supervised fine-tuning: demonstrations of the curriculum's problems, one update."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import CurriculumState, sample_problems, sft_rows
from grpo_jax.parallel import row_sharding
from grpo_jax.training.experiment import Experiment
from grpo_jax.training.steps import SFTBatch

# Keys of NumPy generators: no two kinds of draw share their noise.
_DEMONSTRATIONS = 11


def place_rows[T](rows: T, mesh: Mesh | None) -> T:
    """Host arrays of a batch, rows split over the mesh's row axes; as they are on one device."""
    return rows if mesh is None else jax.device_put(rows, row_sharding(mesh))


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
        experiment.tokenizer.pad_id,
    )
    batch = SFTBatch(tokens=rows.tokens, prompt_lengths=rows.prompt_lengths, lengths=rows.lengths)
    return place_rows(batch, experiment.mesh)


def sft_seed(seed: int) -> int:
    """The seed of SFT's problems; GRPO's are drawn with the next one."""
    return 2 * seed


def grpo_seed(seed: int) -> int:
    """The seed of GRPO's problems."""
    return 2 * seed + 1
