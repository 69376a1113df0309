"""A tiny run of GRPO with every prompt's rewards at hand, and the parts of one without the loop around it."""

from __future__ import annotations

from pathlib import Path

from grpo_jax.data import initial_state
from grpo_jax.training import configfile
from grpo_jax.training.compile_clock import CompileClock
from grpo_jax.training.config import RunConfig
from grpo_jax.training.controls import Controls
from grpo_jax.training.experiment import Experiment, build_experiment
from grpo_jax.training.grpo import GRPOOutcome, grpo_iteration
from grpo_jax.training.phase_clock import PhaseClock
from grpo_jax.training.rows import Rows
from grpo_jax.training.state import TrainState
from grpo_jax.types import Params

# Six steps in every run, so that the runs of a file share what is compiled.
TINY = """
model: {vocab_size: 26, num_layers: 1, embed_dim: 8, mlp_dim: 8,
        gqa: {num_heads: 2, num_kv_heads: 1, head_dim: 4}}
data: {max_prompt_tokens: 12}
grpo: {steps: 6, prompts: 4, group_size: 4, optimizer: {learning_rate: 3.0e-3}}
rollout: {max_completion_tokens: 6}
rewards: {accuracy: 'tiny_runs:parity', format: 'tiny_runs:short', termination: eos, pool: {workers: 0}}
evaluation: {problems: 1, samples: 2, rows: 10}
checkpoint: {every: 3, keep: 9}
logging: {samples_every: 0, tensorboard: false, plots: false}
"""


def parity(row) -> float:
    """Right about every other time, whatever the policy."""
    return float(sum(row.ids) % 2)


def short(row) -> float:
    return float(len(row.ids) < 6)


def half_hopeless(row) -> float:
    """A prompt whose characters add up to an even number is never answered, whatever is sampled."""
    return parity(row) if sum(map(ord, row.prompt)) % 2 else 0.0


def minus_parity(row) -> float:
    return -parity(row)


def hopeless(row) -> float:
    return 0.0


def load(folder: Path, *options: str) -> RunConfig:
    path = folder / "tiny.yaml"
    path.write_text(TINY)
    pairs = [tuple(option.split("=", 1)) for option in options]
    return configfile.load(path, [*pairs, ("run_dir", str(folder / "run"))])


class Steps:
    """Steps of GRPO without the loop: no test, no log and no checkpoint."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.experiment: Experiment = build_experiment(config)
        policy = self.experiment.policy
        self.state = TrainState.create(policy.initial_params(), policy.grpo_step_config)
        self.reference: Params | None = policy.initial_params() if policy.needs_reference else None
        self.replay: Rows | None = None
        if policy.has_replay:
            self.replay = policy.empty_replay(list(self.experiment.reward.weights))
        self.controls = Controls.start(config)
        self.curriculum = initial_state(self.experiment.task.stages)
        self.step = 0

    def next(self) -> GRPOOutcome:
        with CompileClock() as compiles:
            self.state, outcome = grpo_iteration(
                self.experiment,
                self.state,
                self.reference,
                self.curriculum,
                self.step,
                PhaseClock(compiles),
                self.controls,
                self.replay,
            )
        self.replay = outcome.replay
        self.controls = self.controls.after_step(self.config, outcome.metrics)
        self.step += 1
        return outcome
