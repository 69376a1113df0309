"""What huge pages are worth to an SFT step of the main job's model: two processes in turn, with and without.

    python benchmarks/huge_pages.py [--pairs 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {"small pages": "glibc.malloc.hugetlb=0", "huge pages": "glibc.malloc.hugetlb=1"}


def step_seconds(repeats: int = 20) -> float:
    """Median seconds of an SFT step of configs/arithmetic.yaml in this process."""
    import jax

    from grpo_jax.data import initial_state
    from grpo_jax.training import configfile
    from grpo_jax.training.experiment import build_experiment
    from grpo_jax.training.sft import sft_batch
    from grpo_jax.training.state import TrainState
    from grpo_jax.training.steps import sft_step

    experiment = build_experiment(configfile.load(ROOT / "configs" / "arithmetic.yaml"))
    state = TrainState.create(experiment.policy.initial_params(), experiment.policy.sft_step_config)
    batch = sft_batch(experiment, initial_state(experiment.task.stages), 0)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        state, metrics = sft_step(state, batch)
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])  # the first one compiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="measure in this process and print the seconds")
    arguments = parser.parse_args()
    if arguments.here:
        print(step_seconds())
        return
    measured: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(arguments.pairs):
        for name, setting in SETTINGS.items():
            environment = os.environ | {"GLIBC_TUNABLES": setting, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
            command = [sys.executable, __file__, "--here"]
            output = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True).stdout
            measured[name].append(float(output))
    for name, seconds in measured.items():
        print(f"{name:12} {statistics.median(seconds) * 1e3:7.1f} ms a step   of {[round(s * 1e3) for s in seconds]}")
    small, huge = measured.values()
    ratios = [one / other for one, other in zip(small, huge, strict=True)]
    print(f"small / huge, pair by pair: {[round(ratio, 2) for ratio in ratios]}, median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
