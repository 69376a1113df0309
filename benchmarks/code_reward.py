"""The reward of code on HumanEval: what passes, what fails, and how many problems are judged in a second.

    python benchmarks/code_reward.py --humaneval HumanEval.jsonl.gz [--repeats 3] [--workers 2] [--sandbox bubblewrap]

Judges the canonical solution of every problem in two shapes (the body that continues the prompt, and the whole function in
a fenced block) and a body that is only `pass`; the first shape is timed. Exits with 1 where a solution fails or
a `pass` passes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gzip
import json
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_jax.rewards.code import CodeConfig, code_reward
from grpo_jax.rewards.protocol import Reward, RewardInput


def load(path: Path) -> list[dict[str, Any]]:
    """The problems of a JSONL file, compressed or not."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def row(problem: dict[str, Any], completion: str) -> RewardInput:
    """A completion of a problem as the trainer would have it judged."""
    metadata = {"tests": problem["test"], "entry_point": problem["entry_point"], "preamble": problem["prompt"]}
    return RewardInput(prompt=problem["prompt"], completion=completion, reference="", ids=(), end="eos", metadata=metadata)


def judge(reward: Reward, rows: Sequence[RewardInput], workers: int) -> tuple[list[float], list[float], float]:
    """(rewards, seconds of each, seconds of all) with so many threads; the work is in the sandboxes' processes."""

    def one(item: RewardInput) -> tuple[float, float]:
        start = time.perf_counter()
        value = reward(item)
        assert value is not None
        return value, time.perf_counter() - start

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(one, rows))
    return [value for value, _ in results], [seconds for _, seconds in results], time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--humaneval", type=Path, required=True, help="problems in HumanEval's format, .jsonl or .jsonl.gz")
    parser.add_argument("--repeats", type=int, default=3, help="how often the canonical solutions are judged")
    parser.add_argument("--workers", type=int, default=2, help="threads that judge")
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "rlimits"])
    arguments = parser.parse_args()
    if arguments.sandbox == "rlimits":
        warnings.simplefilter("ignore")

    problems = load(arguments.humaneval)
    reward = code_reward(CodeConfig(sandbox=arguments.sandbox))
    bodies = [row(problem, problem["canonical_solution"]) for problem in problems]
    fenced = [
        row(problem, f"Here it is:\n\n```python\n{problem['prompt']}{problem['canonical_solution']}\n```\nIt works.")
        for problem in problems
    ]
    empty = [row(problem, "    pass\n") for problem in problems]

    failed = []
    rates, seconds = [], []
    for _ in range(arguments.repeats):
        values, each, total = judge(reward, bodies, arguments.workers)
        rates.append(len(problems) / total)
        seconds += each
        failed += [problem["task_id"] for problem, value in zip(problems, values) if value != 1.0]
    print(f"canonical solutions passed      {sum(value == 1.0 for value in values)}/{len(problems)}")
    values, _, _ = judge(reward, fenced, arguments.workers)
    failed += [problem["task_id"] for problem, value in zip(problems, values) if value != 1.0]
    print(f"the same as fenced functions    {sum(value == 1.0 for value in values)}/{len(problems)}")
    values, _, _ = judge(reward, empty, arguments.workers)
    passed = [problem["task_id"] for problem, value in zip(problems, values) if value != 0.0]
    print(f"`pass` bodies passed            {len(passed)}/{len(problems)}")
    seconds.sort()
    print(
        f"problems per second             median {statistics.median(rates):.1f}, min {min(rates):.1f}, max {max(rates):.1f} "
        f"({arguments.workers} workers, {arguments.repeats} repeats)\n"
        f"seconds per problem             median {statistics.median(seconds):.3f}, "
        f"p99 {seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]:.3f}, max {seconds[-1]:.3f}"
    )
    if failed or passed:
        print(f"solutions that failed: {sorted(set(failed))}\n`pass` bodies that passed: {passed}")
        sys.exit(1)


if __name__ == "__main__":
    main()
