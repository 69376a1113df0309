"""What a person sees of a run: a progress bar per phase on a terminal, plain lines elsewhere, and the closing table."""

import collections
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn
from rich.progress import Progress as RichBar
from rich.table import Column, Table
from rich.text import Text

from grpo_jax.evaluation.scores import Scores, StageScore, overall

# Seconds between two plain lines: a log file stays short, and a slow step still gets a line of its own.
PLAIN_INTERVAL = 5.0

# Width of lines and tables where there is no terminal to ask; rich would take 80, which the closing table exceeds.
PLAIN_WIDTH = 110

# What is shown of a step's metrics, by name: the label and the format. A metric that a phase lacks is left out.
SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "loss": ("loss", "{:.3f}".format),
    "reward": ("reward", "{:.3f}".format),
    "accuracy": ("accuracy", "{:.1%}".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
}

# Steps for which a raised alarm stays on the progress line.
ALARM_STEPS = 10

# Shown until a phase's first step has ended, which can take a minute and more.
FIRST_STEP = "compiling the first step"

# In GRPO the loss says nothing that a person could watch: its value is about 0 on-policy.
HIDDEN = {"grpo": {"loss"}}


class TimeLeft:
    """Seconds until a phase ends, from the pace of its last steps."""

    def __init__(self, clock: Callable[[], float], window: int = 20) -> None:
        self._clock = clock
        self._ends: collections.deque[float] = collections.deque(maxlen=window + 1)

    def stepped(self) -> None:
        """Notes that a step has ended."""
        self._ends.append(self._clock())

    def seconds(self, steps_left: int) -> float | None:
        """None while the pace is unknown: the first step compiles, so it is measured from its end."""
        if len(self._ends) < 2:
            return None
        return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1) * steps_left


class Progress:
    """Shows the phases of a run, one at a time. Use as a context manager, or call `close`."""

    def __init__(self, file: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Shows on a stream.

        Args:
            file: where to; None is standard output. Decides between a bar and lines.
            clock: seconds, for the time left.
        """
        console = Console(file=file)
        self.console = console if console.is_terminal else Console(file=file, width=PLAIN_WIDTH, highlight=False)
        self._clock = clock
        self._bar: RichBar | None = None
        self._task: Any = None
        self._phase, self._total, self._time_left, self._last_line = "", 0, TimeLeft(clock), -PLAIN_INTERVAL
        self._alarms: dict[str, int] = {}

    def note(self, text: str) -> None:
        """Shows a line of text, above the bar where there is one."""
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def begin(self, phase: str, total: int, done: int = 0) -> None:
        """Begins a phase.

        Args:
            phase: its name.
            total: its steps.
            done: steps already done, where a run goes on.
        """
        self.end()
        self._phase, self._total = phase, total
        self._time_left, self._last_line = TimeLeft(self._clock), -PLAIN_INTERVAL
        if self.console.is_terminal:
            self._bar = RichBar(
                TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None, table_column=Column(ratio=1)),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[shown]}", table_column=Column(no_wrap=True)),
                _TimeLeftColumn(table_column=Column(no_wrap=True)),
                console=self.console,
                expand=True,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task(phase, total=total, completed=done, shown=FIRST_STEP, left=None)
            self._bar.start()
        else:
            self.note(f"{phase} {done}/{total}  {FIRST_STEP}")

    def step(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Shows that a step of the phase has ended.

        Args:
            step: its number, from 1.
            metrics: its metrics; `SHOWN` says which are shown.
        """
        self._time_left.stepped()
        left = self._time_left.seconds(self._total - step)
        shown = shown_metrics(self._phase, metrics) + [f"! {name}" for name in self._alarms]
        self._alarms = {name: steps - 1 for name, steps in self._alarms.items() if steps > 1}
        if self._bar is not None:
            self._bar.update(self._task, completed=step, shown="  ".join(shown), left=left)
            return
        now = self._clock()
        if step == self._total or now - self._last_line >= PLAIN_INTERVAL:
            self._last_line = now
            until = [] if left is None or step == self._total else [f"{duration(left)} left"]
            self.note("  ".join([f"{self._phase} {step}/{self._total}", *shown, *until]))

    def alarm(self, name: str, text: str, action: str | None) -> None:
        """Shows an alarm in a line of its own, and its name on the progress line for some steps."""
        self._alarms[name] = ALARM_STEPS
        self.note(f"alarm {name}: {text}" + (f" Done now: {action}." if action else ""))

    def tested(self, title: str, scores: Scores) -> None:
        """Shows the outcome of a test in one line, beside whatever phase goes on."""
        mean = overall(scores)
        weakest = min(scores, key=lambda stage: scores[stage].sampled_accuracy)
        self.note(
            f"{title}: {mean.sampled_accuracy:.1%} right sampled, {mean.greedy_accuracy:.1%} greedy, "
            f"{mean.termination_rate:.1%} ended by itself; weakest {weakest}, {scores[weakest].sampled_accuracy:.1%}"
        )

    def end(self) -> None:
        """Ends the phase; its bar stays as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def results(self, before: Scores | None, after: Scores | None) -> None:
        """Shows the closing table; None is a test that was not made."""
        self.end()
        if before or after:
            self.console.print(results_table(before, after))

    def close(self) -> None:
        """Ends the phase that is shown."""
        self.end()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        self.close()


class _TimeLeftColumn(ProgressColumn):
    def render(self, task: Any) -> Text:
        left = task.fields["left"]
        return Text("" if left is None or task.finished else f"{duration(left)} left", style="cyan")


def shown_metrics(phase: str, metrics: Mapping[str, float | None]) -> list[str]:
    """What is shown of a step's metrics: `reward 0.613`."""
    values = {name: metrics.get(name) for name in SHOWN if name not in HIDDEN.get(phase, ())}
    return [f"{SHOWN[name][0]} {SHOWN[name][1](value)}" for name, value in values.items() if value is not None]


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 1:05:09, or 5:09 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def results_table(before: Scores | None, after: Scores | None) -> Table:
    """Per stage what held-out problems say before GRPO and after it, and the mean over stages.

    Args:
        before: the test after SFT; None leaves the left sides open.
        after: the test after GRPO; None leaves the right sides open.
    """
    table = Table(title="Held-out problems, before → after GRPO", title_justify="left")
    table.add_column("stage", no_wrap=True)
    for title in ("right, sampled", "right, greedy", "tokens", "ended by itself"):
        table.add_column(title, justify="right", no_wrap=True)
    stages = list(dict.fromkeys([*(before or {}), *(after or {})]))
    for stage in stages:
        table.add_row(stage, *_cells((before or {}).get(stage), (after or {}).get(stage)))
    if len(stages) > 1:
        table.add_section()
        table.add_row("mean", *_cells(overall(before) if before else None, overall(after) if after else None))
    return table


def _cells(before: StageScore | None, after: StageScore | None) -> list[str]:
    def cell(name: str, form: Callable[[float], str]) -> str:
        return " → ".join("–" if score is None else form(vars(score)[name]) for score in (before, after))

    share, length = "{:.1%}".format, "{:.1f}".format
    return [
        cell("sampled_accuracy", share),
        cell("greedy_accuracy", share),
        cell("mean_length", length),
        cell("termination_rate", share),
    ]
