"""GRPO on word problems in GSM8K's format, by the reward for mathematics: a small model, from nothing, on two CPU cores.

    python benchmarks/word_problems.py [--seed 0] [--runs runs/word_problems]

Writes problems of two steps ("Ann has 7 apples, gets 5 and sells 3 …") with GSM8K's own kind of answer, trains a small MLA
model on worked solutions, then by GRPO: accuracy is the reward `math`, structure pays only with a right answer, and one half
of a step's completions is judged while the other is sampled. Prints held-out accuracy before and after.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

NAMES = ("Ann", "Ben", "Cho", "Dan", "Eva")
THINGS = ("apples", "books", "coins", "eggs")

CONFIG = """
model:
  vocab_size: 64
  num_layers: 3
  embed_dim: 128
  mlp_dim: 352
  scan_unroll: 3
  mla: {num_heads: 4, kv_rank: 64, nope_dim: 16, rope_dim: 16, value_dim: 32}
data:
  task: gsm8k
  options: {solution_format: marked}
  tokenizer: {alphabet: "abcdefghiklmnoprstuvwxyABCDEH0123456789 .,?=+-*#\\n"}
  prompt: {user_format: "{problem}\\n"}
  max_prompt_tokens: 80
sft:
  steps: 900
  rows: 32
  microbatches: 4
  optimizer: {learning_rate: 2.0e-3, schedule: cosine, warmup_steps: 50, end_fraction: 0.05}
grpo:
  steps: 40
  prompts: 32
  group_size: 8
  microbatches: 8
  groups: {dead: drop}
  kl_coef: 0.05
  optimizer: {learning_rate: 1.0e-4}
rollout: {max_completion_tokens: 40, chunks: 2}
rewards:
  accuracy: math
  format: hash_mark_once
  termination: eos
  gates: {format: accuracy}
evaluation: {problems: 128, samples: 8, rows: 256, every: 20}
checkpoint: {every: 200}
logit_chunk: 128
"""


def problem(draw: random.Random) -> dict[str, str]:
    """A problem and its answer, as a line of GSM8K has them."""
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    start, more = draw.randint(2, 12), draw.randint(2, 12)
    total = start + more
    if draw.random() < 0.5:
        times = draw.randint(2, 3)
        question = f"{name} has {start} {thing} and gets {more}. Ben has {times} times as many. How many has Ben?"
        working, final = f"{start}+{more}=<<{start}+{more}={total}>>{total}\n{total}*{times}=", total * times
    else:
        less = draw.randint(1, total - 1)
        question = f"{name} has {start} {thing}, gets {more} and sells {less}. How many are left?"
        working, final = f"{start}+{more}=<<{start}+{more}={total}>>{total}\n{total}-{less}=", total - less
    return {
        "question": question,
        "answer": f"{working}<<{working.rpartition(chr(10))[2][:-1]}={final}>>{final}\n#### {final}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/word_problems"))
    arguments = parser.parse_args()
    folder = arguments.runs
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(arguments.seed)
    lines = {json.dumps(problem(draw)) for _ in range(6000)}
    (folder / "problems.jsonl").write_text("\n".join(sorted(lines)) + "\n")
    (folder / "word_problems.yaml").write_text(CONFIG)
    run_dir = folder / f"seed{arguments.seed}"
    command = [sys.executable, "train.py", "--config", str((folder / "word_problems.yaml").resolve())]
    command += ["--data.path", str((folder / "problems.jsonl").resolve()), "--seed", str(arguments.seed)]
    subprocess.run([*command, "--run_dir", str(run_dir.resolve())], cwd=ROOT, check=True)
    summary = json.loads((run_dir / "summary.json").read_text())
    before, after = summary["after_sft"]["mean"], summary["after_grpo"]["mean"]
    for key in ("sampled_accuracy", "greedy_accuracy", "termination_rate"):
        print(f"{key}: {before[key]:.3f} after SFT, {after[key]:.3f} after GRPO")


if __name__ == "__main__":
    main()
