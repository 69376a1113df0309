"""Plots of a run as PNG files, drawn from the records of its log: one overview, and each plot by itself."""

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grpo_jax.evaluation import scores
from grpo_jax.training.metrics_log import Record

# Okabe and Ito's colours, which people with any kind of colour blindness tell apart; yellow is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#444444",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
    "savefig.dpi": 130,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot.

    Attributes:
        title: what it shows, and in which unit.
        has_data: whether the records have anything for it.
        draw: draws the records on axes.
    """

    title: str
    has_data: Callable[[Sequence[Record]], bool]
    draw: Callable[[Axes, Sequence[Record]], None]


def write_plots(folder: Path, records: Sequence[Record]) -> list[Path]:
    """Draws every plot that the records have data for; returns the files, the overview first.

    Args:
        folder: where to; made if missing.
        records: the records of a run's log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {name: plot for name, plot in PLOTS.items() if plot.has_data(records)}
    if not drawn:
        return []
    files = [_save(folder / "overview.png", list(drawn.values()), records, columns=min(3, len(drawn)))]
    for name, plot in drawn.items():
        files.append(_save(folder / f"{name}.png", [plot], records, columns=1))
    return files


def _save(path: Path, plots: Sequence[Plot], records: Sequence[Record], *, columns: int) -> Path:
    rows = math.ceil(len(plots) / columns)
    size = (7.0, 4.2) if len(plots) == 1 else (5.2 * columns, 3.7 * rows)
    with matplotlib.rc_context(STYLE):
        # A Figure of its own rather than pyplot's, which would change the backend of a notebook.
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, plot in zip(grid, plots, strict=False):
            plot.draw(axes, records)
            axes.set_title(plot.title)
        for axes in grid[len(plots) :]:
            axes.set_axis_off()
        temporary = path.with_name(f".{path.name}")
        figure.savefig(temporary, format="png")
    os.replace(temporary, path)
    return path


def _series(records: Sequence[Record], phase: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a metric; NaN where a record has null for it, nothing where it lacks it."""
    pairs = [(record["step"], record[name]) for record in records if record["phase"] == phase and name in record]
    steps, values = zip(*pairs, strict=True) if pairs else ((), ())
    return np.asarray(steps, dtype=float), np.asarray([math.nan if value is None else value for value in values], float)


def _has(phase: str, *names: str) -> Callable[[Sequence[Record]], bool]:
    """Whether one of the metrics has a value in one of the phase's records."""
    return lambda records: any(
        record["phase"] == phase and any(record.get(name) is not None for name in names) for record in records
    )


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean over a centred window of a twentieth of the values, NaN left out; short series stay as they are."""
    half = len(values) // 40
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    with warnings.catch_warnings():
        # A window of nothing but NaN has the mean NaN, which is a gap in the line and no cause for a warning.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.array([np.nanmean(window) for window in windows])


def _curve(axes: Axes, steps: np.ndarray, values: np.ndarray, colour: str, label: str | None = None) -> None:
    """The values, faint, and their smoothed course; few values get markers, so that a single one shows."""
    marker = "o" if len(values) <= 12 else ""
    course = smoothed(values)
    if not np.array_equal(course, values, equal_nan=True):
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1.0)
    axes.plot(steps, course, color=colour, label=label, marker=marker, markersize=4)


def _finish(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(ncols=1 + (len(handles) > 4))


def _from_zero(axes: Axes, *series: np.ndarray) -> None:
    """Begins the vertical axis at 0, for what is never below it."""
    highest = max((float(np.nanmax(values)) for values in series if np.isfinite(values).any()), default=0.0)
    axes.set_ylim(0.0, 1.08 * highest if highest > 0 else 1.0)


def _draw_line(phase: str, name: str, colour: str, y_label: str) -> Callable[[Axes, Sequence[Record]], None]:
    def draw(axes: Axes, records: Sequence[Record]) -> None:
        steps, values = _series(records, phase, name)
        _curve(axes, steps, values, colour)
        _from_zero(axes, values)
        _finish(axes, f"{phase.upper()} step", y_label)

    return draw


def _draw_reward(axes: Axes, records: Sequence[Record]) -> None:
    steps, reward = _series(records, "grpo", "reward")
    spread_steps, spread = _series(records, "grpo", "reward_std")
    if np.array_equal(steps, spread_steps):
        axes.fill_between(steps, reward - spread, reward + spread, color=COLOURS[0], alpha=0.12, linewidth=0)
    _curve(axes, steps, reward, COLOURS[0], "reward" + (" ± std over rows" if len(spread) else ""))
    accuracy_steps, accuracy = _series(records, "grpo", "accuracy")
    if len(accuracy):
        _curve(axes, accuracy_steps, accuracy, COLOURS[1], "accuracy part")
    _finish(axes, "GRPO step", "mean over rows")


def _draw_accuracy(axes: Axes, records: Sequence[Record]) -> None:
    for stage, line in _draw_tests(axes, records, "evaluation"):
        steps, rollout = _series(records, "grpo", f"accuracy/{stage}")
        axes.plot(steps, smoothed(rollout), alpha=0.3, linewidth=1.0, **line)
    _finish(axes, "GRPO step", "answers right (faint: in training)")


def _draw_sft_accuracy(axes: Axes, records: Sequence[Record]) -> None:
    _draw_tests(axes, records, "sft_evaluation")
    _finish(axes, "SFT step", "answers right")


def _draw_tests(axes: Axes, records: Sequence[Record], phase: str) -> list[tuple[str, dict[str, Any]]]:
    """A line for each stage; returns the stages and how their lines look."""
    tests = [(record["step"], scores.from_record(record)) for record in records if record["phase"] == phase]
    looks = []
    for index, stage in enumerate(dict.fromkeys(stage for _, test in tests for stage in test)):
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        look: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": dash}
        points = [(step, test[stage].sampled_accuracy) for step, test in tests if stage in test]
        axes.plot(*np.array(points, dtype=float).T, marker="o", markersize=4, label=stage, **look)
        looks.append((stage, look))
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return looks


def _draw_length(axes: Axes, records: Sequence[Record]) -> None:
    steps, mean = _series(records, "grpo", "completion_length_mean")
    low_steps, low = _series(records, "grpo", "completion_length_min")
    high_steps, high = _series(records, "grpo", "completion_length_max")
    if np.array_equal(steps, low_steps) and np.array_equal(steps, high_steps):
        axes.fill_between(steps, low, high, color=COLOURS[2], alpha=0.12, linewidth=0, label="shortest to longest")
    _curve(axes, steps, mean, COLOURS[2], "mean")
    _from_zero(axes, mean, high)
    _finish(axes, "GRPO step", "tokens")


def _has_tests(phase: str) -> Callable[[Sequence[Record]], bool]:
    return lambda records: any(record["phase"] == phase and scores.from_record(record) for record in records)


PLOTS: dict[str, Plot] = {
    "accuracy": Plot(title="Held-out accuracy per stage, sampled", has_data=_has_tests("evaluation"), draw=_draw_accuracy),
    "reward": Plot(title="Reward", has_data=_has("grpo", "reward"), draw=_draw_reward),
    "length": Plot(title="Completion length", has_data=_has("grpo", "completion_length_mean"), draw=_draw_length),
    "kl": Plot(
        title="KL to the reference policy",
        has_data=_has("grpo", "kl"),
        draw=_draw_line("grpo", "kl", COLOURS[3], "nats per token"),
    ),
    "entropy": Plot(
        title="Entropy of the policy",
        has_data=_has("grpo", "entropy"),
        draw=_draw_line("grpo", "entropy", COLOURS[4], "nats per token"),
    ),
    "loss": Plot(
        title="Loss in supervised fine-tuning",
        has_data=_has("sft", "loss"),
        draw=_draw_line("sft", "loss", COLOURS[5], "nats per token"),
    ),
    "sft_accuracy": Plot(
        title="Held-out accuracy during fine-tuning", has_data=_has_tests("sft_evaluation"), draw=_draw_sft_accuracy
    ),
}
