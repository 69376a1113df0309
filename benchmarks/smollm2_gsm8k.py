"""Twenty GRPO steps of SmolLM2-135M-Instruct on GSM8K: reward, format, lengths, seconds of each phase, peak memory.

    python benchmarks/smollm2_gsm8k.py train.jsonl [--run_dir runs/smollm2_gsm8k]

Trains configs/smollm2_gsm8k.yaml in a process of its own and writes benchmarks/results/smollm2_gsm8k.md. A run that was
stopped goes on where it was saved; one that is finished is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "smollm2_gsm8k.md"
PHASES = ("rollout", "reward", "score", "update")


def train(data: Path, run_dir: Path) -> None:
    command = [sys.executable, "train.py", "--config", "configs/smollm2_gsm8k.yaml"]
    command += ["--data.path", str(data.resolve()), "--run_dir", str(run_dir)]
    if (run_dir / "config.yaml").exists():
        command.append("--resume")
    subprocess.run(command, cwd=ROOT, check=True)


def report(records: list[dict[str, Any]], summary: dict[str, Any], problems: int) -> str:
    steps = [record for record in records if record["phase"] == "grpo"]
    tests = [record for record in records if record["phase"] == "evaluation"]
    lines = [
        "# SmolLM2-135M-Instruct on GSM8K\n",
        f"`python benchmarks/smollm2_gsm8k.py train.jsonl` on the {problems:,} training problems of GSM8K, "
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} CPU cores, "
        f"jax {summary['versions']['jax']}, seed {summary['seed']}, {summary['parameters']:,} parameters.\n",
        f"Peak memory of the process: {summary['peak_memory_bytes']['host'] / 1e9:.2f} GB.\n",
        "| step | reward | accuracy | format | ended by itself | tokens, mean | dead groups | "
        + " | ".join(f"{phase} s" for phase in PHASES) + " | compile s |",
        "| --: |" + " --: |" * 11,
    ]  # fmt: skip
    for step in steps:
        lines.append(
            f"| {step['step']} | {step['reward']:.3f} | {step['accuracy']:.3f} | {step['format']:.3f} "
            f"| {1 - step['truncated_fraction']:.3f} | {step['completion_length_mean']:.1f} | {step['frac_zero_std']:.2f} | "
            + " | ".join(f"{step[f'seconds/{phase}']:.3g}" for phase in (*PHASES, "compile")) + " |"
        )  # fmt: skip
    lines.append(
        "\nSeconds in all: "
        + ", ".join(f"{kind} {summary['seconds'][kind]:.0f}" for kind in (*PHASES, "evaluation", "compile"))
        + f". Sampled {summary['tokens_per_second']['rollout']:.1f} tokens a second."
    )
    for test in tests:
        lines.append(
            f"\nHeld-out test after step {test['step']}: sampled {test['gsm8k/sampled_accuracy']:.3f}, greedy "
            f"{test['gsm8k/greedy_accuracy']:.3f}, mean length {test['gsm8k/mean_length']:.1f} tokens, ended by itself "
            f"{test['gsm8k/termination_rate']:.3f}."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="GSM8K's training problems as JSONL")
    parser.add_argument("--run_dir", type=Path, default=ROOT / "runs" / "smollm2_gsm8k")
    arguments = parser.parse_args()
    train(arguments.data, arguments.run_dir)
    records = [json.loads(line) for line in (arguments.run_dir / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((arguments.run_dir / "summary.json").read_text())
    problems = sum(bool(line.strip()) for line in arguments.data.read_text().splitlines())
    text = report(records, summary, problems)
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
