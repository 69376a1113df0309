"""What the pool of reward processes gives: rows a second, and how much of a reward's time sampling hides.

    python benchmarks/reward_pool.py

Rows a second through the composite reward with two workers, for answers that are compared at once, for answers that sympy
compares, and for a reward at a dotted path; then the seconds of sampling and judging a GRPO step whose rewards take about as
long as its rollout, for several numbers of chunks. Medians of the repeats, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grpo_jax.rewards import CompositeReward, RewardConfig, RewardInput

MODEL = """
model: {vocab_size: 26, num_layers: 2, embed_dim: 128, mlp_dim: 256,
        gqa: {num_heads: 4, num_kv_heads: 2, head_dim: 32}}
data: {max_prompt_tokens: 12}
grpo: {steps: 64, prompts: 16, group_size: 8, microbatches: 4}
rollout: {max_completion_tokens: 96}
rewards: {accuracy: 'reward_pool:patient', pool: {workers: 2}}
evaluation: {problems: 1, samples: 2, rows: 10}
"""

PATIENCE = 0.01
"""Seconds that the patient reward waits, without using the processor: as one that asks a server does."""


def patient(row: RewardInput) -> float:
    """A reward that takes its time."""
    time.sleep(PATIENCE)
    return float(len(row.ids) % 2)


def plain(row: RewardInput) -> float:
    """A reward that costs nothing."""
    return float(len(row.ids))


def rows(completions: list[str], reference: str) -> list[RewardInput]:
    return [RewardInput(prompt="", completion=text, reference=reference, ids=(1, 2, 3), end="eos") for text in completions]


def rate(reward: CompositeReward, make: Callable[[int], list[RewardInput]], repeats: int) -> list[float]:
    """Rows a second of each repeat, after one that starts the processes."""
    reward.score(make(0))
    rates = []
    for repeat in range(1, repeats + 1):
        batch = make(repeat)
        started = time.perf_counter()
        reward.score(batch)
        rates.append(len(batch) / (time.perf_counter() - started))
    return rates


def shown(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):10.1f} {unit} ({min(values):.1f} to {max(values):.1f})"


def throughput(repeats: int) -> None:
    working = "He has 3 boxes of 6 apples, so 3 * 6 = 18 apples. " * 8

    def numbers(repeat: int) -> list[RewardInput]:
        return rows([f"{working}\\boxed{{{n + repeat}}}" for n in range(2000)], "18")

    def surds(repeat: int) -> list[RewardInput]:
        # No two repeats ask the same, for answers are remembered.
        return rows([rf"\boxed{{\frac{{{n}\sqrt{{{repeat + 2}}}}}{{7}}+\pi}}" for n in range(400)], r"\sqrt{2}+\pi")

    def any_text(repeat: int) -> list[RewardInput]:
        return rows([working] * 2000, "18")

    quick = {"format": "boxed_once", "termination": "eos"}
    for title, config, make in (
        ("numbers, compared at once", RewardConfig(accuracy="math", **quick), numbers),
        ("surds, compared by sympy", RewardConfig(accuracy="math", **quick), surds),
        ("a reward at a dotted path", RewardConfig(accuracy="reward_pool:plain", **quick), any_text),
    ):
        with CompositeReward(config) as reward:
            print(f"{title:32}{shown(rate(reward, make, repeats), 'rows/s')}")


def overlap(repeats: int) -> None:
    # Here, so that the reward processes, which import this file, import no jax.
    from grpo_jax.data import initial_state
    from grpo_jax.training import configfile
    from grpo_jax.training.compile_clock import CompileClock
    from grpo_jax.training.controls import Controls
    from grpo_jax.training.experiment import build_experiment
    from grpo_jax.training.phase_clock import PhaseClock
    from grpo_jax.training.rollouts import sample

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(MODEL)
        for chunks in (1, 2, 4, 8):
            config = configfile.load(path, [("rollout.chunks", str(chunks)), ("run_dir", folder)])
            experiment = build_experiment(config)
            params = experiment.policy.initial_params()
            curriculum = initial_state(experiment.task.stages)
            sampler = Controls.start(config).sampler(config)
            seconds, phases = [], {"rollout": [], "reward": []}
            with CompileClock() as compiles, experiment.reward as reward:
                reward.check()
                for step in range(repeats + 1):
                    clock, started = PhaseClock(compiles), time.perf_counter()
                    sample(experiment, params, curriculum, step, sampler=sampler, weights={}, updates=0, clock=clock)
                    if step:
                        seconds.append(time.perf_counter() - started)
                        for phase, values in phases.items():
                            values.append(clock.seconds[phase])
            print(
                f"{chunks} chunks:{shown(seconds, 's')}, in rollout {statistics.median(phases['rollout']):.2f}, "
                f"in reward {statistics.median(phases['reward']):.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    throughput(repeats)
    overlap(repeats)


if __name__ == "__main__":
    main()
