"""What packing is worth to SFT: the main job's demonstrations packed into rows, and one in each row, in turn.

    python benchmarks/packing.py [--steps 40]

Both train on the same demonstrations with the same microbatches; the seconds of a step and their ratio are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import jax
import numpy as np

from grpo_jax.data import initial_state
from grpo_jax.training import configfile
from grpo_jax.training.experiment import build_experiment
from grpo_jax.training.sft import sft_batch
from grpo_jax.training.state import TrainState
from grpo_jax.training.steps import SFTBatch, sft_step

ROOT = Path(__file__).resolve().parents[1]


def unpacked(batch: SFTBatch) -> SFTBatch:
    """The same demonstrations, one from the first column of each row on."""
    parts = {name: np.asarray(array) for name, array in vars(batch).items()}
    rows = {name: np.zeros_like(array) for name, array in parts.items()}
    found = [
        (row, number)
        for row, segments in enumerate(parts["segments"])
        for number in range(1, int(segments.max()) + 1)
    ]  # fmt: skip
    for target, (row, number) in enumerate(found):
        here = parts["segments"][row] == number
        for name, array in parts.items():
            rows[name][target, : here.sum()] = array[row, here]
    return SFTBatch(**{name: jax.device_put(array) for name, array in rows.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    experiment = build_experiment(configfile.load(ROOT / "configs" / "arithmetic.yaml"))
    state = TrainState.create(experiment.policy.initial_params(), experiment.policy.sft_step_config)
    seconds: dict[str, list[float]] = {"one a row": [], "packed": []}
    rows_used = []
    for step in range(arguments.steps + 1):
        packed = sft_batch(experiment, initial_state(experiment.task.stages), step)
        rows_used.append(int(np.asarray(packed.completion_mask).any(axis=1).sum()))
        for name, batch in (("one a row", unpacked(packed)), ("packed", packed)):
            start = time.perf_counter()
            state, metrics = sft_step(state, batch)
            jax.block_until_ready(metrics)
            seconds[name].append(time.perf_counter() - start)
    alone, packed_seconds = (values[1:] for values in seconds.values())  # the first one compiles
    rows, total = statistics.mean(rows_used), len(packed.tokens)
    for name, values in (("one a row", alone), ("packed", packed_seconds)):
        print(f"{name:10} {statistics.mean(values) * 1e3:6.1f} ms a step, median {statistics.median(values) * 1e3:6.1f}")
    ratios = sorted(one / other for one, other in zip(alone, packed_seconds, strict=True))
    middle, ends = statistics.median(ratios), (ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10])
    print(f"{total} demonstrations in {rows:.1f} rows: {middle:.2f} times as fast ({ends[0]:.2f} to {ends[1]:.2f})")


if __name__ == "__main__":
    main()
