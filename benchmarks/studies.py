"""What the studies of docs/studies.md share: one SFT policy to start from, runs of GRPO from it, tables and plots.

A study is a set of runs that differ in a few options. Every run starts from the same policy, that of configs/arithmetic.yaml
after its SFT, which is trained once and exported; it goes through `grpo_jax.training.loop.train` as `python train.py`
does. A run that is already finished in --runs is not trained again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_jax.cli.export import export
from grpo_jax.training import configfile
from grpo_jax.training.config import RunConfig
from grpo_jax.training.loop import Interrupted, train
from grpo_jax.training.metrics_log import Record, read_records
from grpo_jax.training.plots import COLOURS, STYLE, smoothed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
CONFIG = ROOT / "configs" / "arithmetic.yaml"

# What every study changes of configs/arithmetic.yaml: half its rollouts, shorter tests, no files for people.
COMMON = {
    "model": "null",
    "sft.steps": "0",
    "grpo.prompts": "16",
    "grpo.microbatches": "4",
    "evaluation.every": "0",
    "evaluation.problems": "32",
    "checkpoint.every": "0",
    "logging.samples_every": "0",
    "logging.tensorboard": "false",
    "logging.plots": "false",
}

Options = Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Attributes:
        name: its name within the study.
        seed: its seed.
        summary: summary.json.
        records: metrics.jsonl, the records of GRPO alone.
        alarms: alarms.jsonl.
        stopped: whether an alarm or a signal stopped it.
    """

    name: str
    seed: int
    summary: dict[str, Any]
    records: Sequence[Record]
    alarms: Sequence[dict[str, Any]]
    stopped: bool

    def series(self, metric: str) -> np.ndarray:
        """The values of a metric by step; NaN where it was not measured."""
        values = [record.get(metric) for record in self.records]
        return np.array([np.nan if value is None else value for value in values], float)

    def last(self, metric: str, steps: int = 5) -> float:
        """The mean of a metric over the last steps."""
        return float(np.nanmean(self.series(metric)[-steps:]))

    @property
    def accuracy(self) -> tuple[float, float]:
        """Held-out sampled accuracy before and after GRPO."""
        before, after = self.summary["after_sft"], self.summary["after_grpo"]
        return before["mean"]["sampled_accuracy"], after["mean"]["sampled_accuracy"] if after else float("nan")


def base_policy(runs: Path, name: str = "base", steps: int | None = None) -> Path:
    """The export of the policy after SFT, trained where it is missing.

    Args:
        runs: the folder of the runs.
        name: of this policy.
        steps: SFT steps; None takes the config's.
    """
    exported = runs / f"{name}_exported"
    if not exported.exists():
        options = [("run_dir", str(runs / name)), ("grpo.steps", "0"), ("evaluation.problems", "32")]
        options += [] if steps is None else [("sft.steps", str(steps))]
        resume = (runs / name / "config.yaml").exists()
        train(configfile.load(CONFIG, options), resume=resume)
        export(runs / name, exported)
    return exported


def run_grpo(runs: Path, base: Path, name: str, options: Options, seed: int = 0) -> Run:
    """A run of GRPO from the base policy; trained where it is not finished yet.

    Args:
        runs: the folder of the runs.
        base: the export that it starts from.
        name: of the run; with the seed it names its folder.
        options: options over those of `COMMON`.
        seed: the run's seed.
    """
    folder = runs / f"{name}_seed{seed}".replace(" ", "_")
    if not (folder / "summary.json").exists():
        given = {"pretrained.path": str(base), "run_dir": str(folder), "seed": str(seed)} | COMMON | dict(options)
        config: RunConfig = configfile.load(CONFIG, list(given.items()))
        start = time.monotonic()
        # A study of dozens of runs shows one line for each.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Interrupted):
            train(config, resume=(folder / "config.yaml").exists())
        print(f"{folder.name}: {time.monotonic() - start:.0f} s", flush=True)
    alarms = folder / "alarms.jsonl"
    summary = json.loads((folder / "summary.json").read_text())
    return Run(
        name=name,
        seed=seed,
        summary=summary,
        records=[record for record in read_records(folder / "metrics.jsonl") if record["phase"] == "grpo"],
        alarms=[json.loads(line) for line in alarms.read_text().splitlines()] if alarms.exists() else [],
        stopped=summary["status"] == "interrupted",
    )


def arguments(doc: str | None) -> argparse.Namespace:
    """The options of every study."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "studies", help="where runs lie and are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="seeds of every run")
    return parser.parse_args()


def heading(title: str, command: str, seeds: Sequence[int]) -> str:
    """The first lines of a results file: what it is, and how, when and on what it was made."""
    return (
        f"# {title}\n\n`{command}`, {time.strftime('%Y-%m-%d')}, {platform.machine()} CPU, jax {jax.__version__}, "
        f"seeds {', '.join(map(str, seeds))}.\n"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left."""
    lines = [columns, [":--", *["--:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def spread(values: Sequence[float], form: Callable[[float], str] = "{:.3f}".format) -> str:
    """The mean over seeds, and the least and the greatest where there are several."""
    mean = form(float(np.mean(values)))
    return mean if len(values) < 2 else f"{mean} ({form(min(values))} to {form(max(values))})"


def draw(path: Path, panels: Sequence[tuple[str, str, str, Callable[[Axes], None]]], columns: int = 3) -> None:
    """Saves a figure of several panels, each (title, label of x, label of y, what draws it)."""
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * columns, 3.9 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (title, x_label, y_label, paint) in zip(grid, panels, strict=False):
            paint(axes)
            axes.set_title(title)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            if x_label == "rollout":
                axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")


def curves(axes: Axes, groups: Mapping[str, Sequence[Run]], metric: str, legend: bool = False) -> None:
    """A line for each group of runs: the mean over seeds of a metric by step, the range of the seeds around it."""
    for index, (label, runs) in enumerate(groups.items()):
        shortest = min(len(run.records) for run in runs)
        values = np.stack([run.series(metric)[:shortest] for run in runs])
        steps, colour = np.arange(1, shortest + 1), COLOURS[index % len(COLOURS)]
        dash = ("-", "--")[index // len(COLOURS) % 2]
        if len(runs) > 1:
            axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.12, linewidth=0)
        axes.plot(steps, smoothed(values.mean(0)), color=colour, linestyle=dash, label=label)
    if legend:
        axes.legend()
