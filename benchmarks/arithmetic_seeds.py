"""The main job over several seeds: what SFT leaves, what GRPO makes of it, and whether it keeps its promises.

    python benchmarks/arithmetic_seeds.py [--seeds 0 1 2] [--runs runs/seeds]

Trains configs/arithmetic.yaml once for each seed, each in a process of its own, and writes
benchmarks/results/arithmetic_seeds.md and .json: held-out accuracy sampled at temperature 1 (mean of 8 samples a problem)
and greedy, length and termination per stage, before and after GRPO, and the wall time. A run that is
already finished in --runs is not trained again.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def train(seed: int, run_dir: Path) -> dict[str, Any]:
    """The summary of a seed's run, with its wall time."""
    timing = run_dir / "wall_seconds.json"
    if not timing.exists():
        start = time.monotonic()
        command = [sys.executable, "train.py", "--seed", str(seed), "--run_dir", str(run_dir)]
        subprocess.run(command, cwd=ROOT, check=True)
        timing.write_text(json.dumps(time.monotonic() - start))
    return json.loads((run_dir / "summary.json").read_text()) | {"wall_seconds": json.loads(timing.read_text())}


def promises(summary: dict[str, Any]) -> dict[str, bool]:
    """What the main job must do, from one run's figures."""
    before, after = summary["after_sft"], summary["after_grpo"]
    stages = before["stages"]
    gain = after["mean"]["sampled_accuracy"] - before["mean"]["sampled_accuracy"]
    return {
        "after SFT 40-65 % of sampled answers are right": 0.40 <= before["mean"]["sampled_accuracy"] <= 0.65,
        "GRPO adds at least 20 points": gain >= 0.20,
        "after GRPO at least 85 % are right": after["mean"]["sampled_accuracy"] >= 0.85,
        "greedy accuracy does not fall": after["mean"]["greedy_accuracy"] >= before["mean"]["greedy_accuracy"],
        "at least 99 % end by themselves": after["mean"]["termination_rate"] >= 0.99,
        "no stage ends lower than SFT left it": all(
            after["stages"][stage]["sampled_accuracy"] >= stages[stage]["sampled_accuracy"] for stage in stages
        ),
        "training takes under 10 minutes": summary["wall_seconds"] < 600,
    }


def table(summaries: list[dict[str, Any]]) -> str:
    lines = [
        "# The main job over seeds\n",
        f"`python benchmarks/arithmetic_seeds.py`, {time.strftime('%Y-%m-%d')}, {platform.machine()}, "
        f"jax {summaries[0]['versions']['jax']}, {summaries[0]['parameters']:,} parameters, CPU. "
        "Held-out problems; before → after GRPO.\n",
        "| seed | stage | right, sampled | right, greedy | tokens | ended by itself |",
        "| --: | :-- | --: | --: | --: | --: |",
    ]
    for summary in summaries:
        before, after = summary["after_sft"], summary["after_grpo"]
        rows = [(stage, before["stages"][stage], after["stages"][stage]) for stage in before["stages"]]
        for stage, one, other in [*rows, ("**mean**", before["mean"], after["mean"])]:
            lines.append(
                f"| {summary['seed']} | {stage} "
                f"| {one['sampled_accuracy']:.1%} → {other['sampled_accuracy']:.1%} "
                f"| {one['greedy_accuracy']:.1%} → {other['greedy_accuracy']:.1%} "
                f"| {one['mean_length']:.1f} → {other['mean_length']:.1f} "
                f"| {one['termination_rate']:.2%} → {other['termination_rate']:.2%} |"
            )
    lines += ["", "| promise | " + " | ".join(f"seed {summary['seed']}" for summary in summaries) + " |"]
    lines.append("| :-- |" + " :-: |" * len(summaries))
    kept = [promises(summary) for summary in summaries]
    lines += [f"| {name} | " + " | ".join("yes" if one[name] else "**no**" for one in kept) + " |" for name in kept[0]]
    lines += ["", "| seconds | " + " | ".join(f"seed {summary['seed']}" for summary in summaries) + " |"]
    lines.append("| :-- |" + " --: |" * len(summaries))
    lines.append("| wall | " + " | ".join(f"{summary['wall_seconds']:.0f}" for summary in summaries) + " |")
    for kind in summaries[0]["seconds"]:
        lines.append(f"| {kind} | " + " | ".join(f"{summary['seconds'][kind]:.1f}" for summary in summaries) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "seeds")
    arguments = parser.parse_args()
    summaries = [train(seed, arguments.runs / f"seed_{seed}") for seed in arguments.seeds]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "arithmetic_seeds.json").write_text(json.dumps(summaries, indent=2) + "\n")
    text = table(summaries)
    (RESULTS / "arithmetic_seeds.md").write_text(text)
    print(text)
    return 0 if all(all(promises(summary).values()) for summary in summaries) else 1


if __name__ == "__main__":
    sys.exit(main())
