"""How often the mathematics reward is right on GSM8K and on MATH-500, and how many answers it judges in a second.

    python benchmarks/math_reward.py --gsm8k train.jsonl test.jsonl --math500 math500.jsonl

The files hold lines of {"question", "answer"}: GSM8K's answers end in "#### final", those of MATH-500 in "The answer is: …"
after a solution with a box. Every gold answer must score 1 in each of the usual shapes, and values beside it 0.
"""

import argparse
import concurrent.futures
import json
import random
import re
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path

from grpo_jax.rewards import RewardInput
from grpo_jax.rewards.mathematics import math_reward, notation
from grpo_jax.rewards.mathematics.numbers import parse_number

Row = tuple[str, str]
"""(completion, reference)"""

PROCESSES = 2
SHAPES: dict[str, Callable[[str], str]] = {
    "#### 18": "So it is.\n#### {}".format,
    "$18.00": lambda value: f"Altogether that makes ${value}{'' if '.' in value else '.00'}",
    "\\$18.00": lambda value: f"<answer>\\${value}{'' if '.' in value else '.00'}</answer>",
    "\\boxed{18}": "Therefore $\\boxed{{{}}}$.".format,
    "\\boxed{\\$18}": "Therefore $\\boxed{{\\${}}}$.".format,
    "<answer>18</answer>": "<think>We add 3 and 4.</think><answer>{}</answer>".format,
    "<answer> $18$. </answer>": "<answer> ${}$. </answer>".format,
    "The answer is 18.": "We add. The answer is {}.".format,
    "The answer is: 18 dollars": "We add. The answer is: {} dollars".format,
    "<answer>18 dollars</answer>": "<answer>{} dollars</answer>".format,
    "Answer: **18**": "We add.\n\nAnswer: **{}**".format,
    "<answer>**18**</answer>": "<answer>**{}**</answer>".format,
    "... is 18 eggs.": "Counting them all, there are {} eggs.".format,
    "1,234": lambda value: f"#### {grouped(value, ',')}",
    "1{,}234": lambda value: f"\\boxed{{{grouped(value, '{,}')}}}",
}
MATH_VARIANTS: dict[str, Callable[[str], str]] = {
    "as it is": lambda answer: answer,
    "without blanks": lambda answer: re.sub(r"(?<![A-Za-z,!]) +| +(?![A-Za-z])", "", answer),
    "$…$ and a period": lambda answer: f"${answer}$.",
    r"\dfrac": lambda answer: answer.replace(r"\frac", r"\dfrac").replace(r"\ddfrac", r"\dfrac"),
    r"\left( \right)": lambda answer: re.sub(r"(?<!\\left)\(", r"\\left(", re.sub(r"(?<!\\right)\)", r"\\right)", answer)),
    r"\, before signs": lambda answer: re.sub(r" ?\+ ?", r"\\,+\\,", answer),
    "bold": "**{}**".format,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gsm8k", type=Path, nargs="*", default=[], help="files, or folders of .jsonl files")
    parser.add_argument("--math500", type=Path, help="a file")
    parser.add_argument("--seed", type=int, default=0, help="of the perturbed digits and the shuffled pairs")
    arguments = parser.parse_args()
    if arguments.gsm8k:
        gsm8k([file for path in arguments.gsm8k for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])])
    if arguments.math500:
        math500(arguments.math500, random.Random(arguments.seed))


def gsm8k(files: list[Path]) -> None:
    golds = [read["answer"].rpartition("####")[2].strip() for file in files for read in lines(file)]
    print(f"GSM8K: {len(golds)} answers of {', '.join(file.name for file in files)}")
    rows = [
        (read["answer"], gold) for read, gold in zip((read for file in files for read in lines(file)), golds, strict=True)
    ]
    report("gold solution against its gold answer", rows, 1.0)
    for name, shape in SHAPES.items():
        report(f"gold as {name}", [(shape(gold.replace(",", "")), gold) for gold in golds], 1.0)
    for name, shape in SHAPES.items():
        wrong = [(shape(value), gold) for gold in golds for value in perturbed(gold)]
        report(f"perturbed as {name}", wrong, 0.0)
    throughput([(SHAPES["<answer>18</answer>"](gold), gold) for gold in golds])


def math500(file: Path, generator: random.Random) -> None:
    solutions, golds = zip(*(solution_and_gold(read["answer"]) for read in lines(file)), strict=True)
    print(f"MATH: {len(golds)} answers of {file.name}")
    report("gold solution against its gold answer", list(zip(solutions, golds, strict=True)), 1.0)
    for name, variant in MATH_VARIANTS.items():
        rows = [(f"So \\boxed{{{variant(gold)}}}", gold) for gold in golds]
        report(f"gold answer, {name}", rows, 1.0)
    bare = [gold for gold in golds if re.fullmatch(r"[-0-9.,/!\\ ]+", gold)]
    report(r"gold number, with \text{ cm}", [(f"So \\boxed{{{gold} \\text{{ cm}}}}", gold) for gold in bare], 1.0)
    # Every answer against every other one; pairs of one text are no different answers.
    pairs = [(left, right) for left in range(len(golds)) for right in range(len(golds)) if left != right]
    generator.shuffle(pairs)
    texts = [re.sub(r"\s", "", notation.clean(gold) or gold) for gold in golds]
    shuffled = [(solutions[left], golds[right]) for left, right in pairs if texts[left] != texts[right]]
    print(f"  {len(pairs) - len(shuffled)} pairs of one text are left out")
    report("solution against another's gold answer", shuffled, 0.0)
    throughput(list(zip(solutions, golds, strict=True)))


def solution_and_gold(text: str) -> Row:
    solution, _, gold = text.rpartition("The answer is:")
    return solution, gold.strip()


def perturbed(gold: str) -> Iterable[str]:
    """Values beside `gold`: one more, one less, ten times as much, another digit, the other sign, a shifted point."""
    value = Fraction(gold.replace(",", ""))
    digits = str(value)
    changed = digits[:-1] + str((int(digits[-1]) + 5) % 10)
    values = {value + 1, value - 1, value * 10, Fraction(changed), -value, value / 10} - {value}
    return [decimal(candidate) for candidate in sorted(values)]


def decimal(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.10g}"


def grouped(value: str, comma: str) -> str:
    whole, point, rest = value.partition(".")
    return f"{int(whole):,}".replace(",", comma) + point + rest


def report(name: str, rows: list[Row], expected: float) -> None:
    """Prints the share of rows with the expected score, and the others."""
    reward = math_reward()
    wrong = [row for row in rows if reward(asked(row)) != expected]
    right = len(rows) - len(wrong)
    print(f"  {name:45s} scores {expected:g}: {right} of {len(rows)}, {100 * right / len(rows):.3f} %")
    for completion, reference in wrong[:20]:
        print(f"      {completion[-120:]!r} against {reference!r} ({parse_number(reference)})")


def throughput(rows: list[Row]) -> None:
    """Prints how many answers two processes judge in a second, each answer seen for the first time."""
    parts = [rows[index::PROCESSES] for index in range(PROCESSES)]
    with concurrent.futures.ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(judged, [[("\\boxed{x+x}", "2x")] for _ in parts]))  # the workers' start is not counted
        started = time.perf_counter()
        list(pool.map(judged, parts))
        print(f"  {len(rows) / (time.perf_counter() - started):.0f} answers a second on {PROCESSES} processes")


def judged(rows: list[Row]) -> list[float | None]:
    reward = math_reward()
    return [reward(asked(row)) for row in rows]


def asked(row: Row) -> RewardInput:
    return RewardInput(prompt="", completion=row[0], reference=row[1], ids=(), end="eos")


def lines(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    main()
