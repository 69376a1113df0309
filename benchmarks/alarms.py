"""Every alarm of the monitor, raised by a run that was made to fail in its way, and none raised by a healthy run.

    python benchmarks/alarms.py [--runs runs/studies] [--seeds 0]

Runs of GRPO on the arithmetic curriculum from one policy. Each failing run changes a few options so that it goes wrong in
one way; the healthy one changes none. Writes benchmarks/results/alarms.md, the metrics of every run that the monitor reads
as benchmarks/results/alarms.json, on which tests/training/test_alarms_of_runs.py has the monitor judge again, and
docs/images/alarms.png.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
from matplotlib.axes import Axes
from studies import IMAGES, RESULTS, Run, arguments, base_policy, draw, heading, run_grpo, table

from grpo_jax.training.plots import COLOURS, smoothed

# The metrics that the monitor reads.
METRICS = (
    "reward",
    "accuracy",
    "frac_zero_std",
    "groups_without_signal",
    "completion_length_mean",
    "entropy",
    "repetition",
    "kl",
    "mismatch_kl",
    "ess",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A run made to fail.

    Attributes:
        how: what is wrong with it, in words.
        options: what makes it so.
        shown: the metric that shows it, and its label.
        base: SFT steps of the policy that it starts from; None is the config's own number.
    """

    how: str
    options: dict[str, str]
    shown: tuple[str, str]
    base: int | None = None


STEPS = {"grpo.steps": "35", "evaluation.problems": "8"}
UNSHAPED = {"rewards.format_weight": "0", "rewards.termination_weight": "0"}

CASES = {
    "entropy_collapse": Case(
        how="learning rate 5e-3, four passes over each rollout, no KL",
        options={
            "grpo.kl_coef": "0",
            "grpo.optimizer.learning_rate": "5e-3",
            "grpo.updates_per_rollout": "4",
            "grpo.groups.dead": "keep",
        },
        shown=("entropy", "nats per token"),
    ),
    "length_gaming": Case(
        how="the right number anywhere in the text is enough, ending is not rewarded",
        options={
            "rewards.accuracy": "study_rewards:number_anywhere",
            "grpo.kl_coef": "0",
            "grpo.optimizer.learning_rate": "5e-4",
            **UNSHAPED,
        },
        shown=("completion_length_mean", "tokens"),
        base=400,
    ),
    "reward_hacking": Case(
        how="brevity is paid three times as much as a right answer",
        options={"rewards.extras.study_rewards:brevity": "3", "grpo.kl_coef": "0", "grpo.optimizer.learning_rate": "5e-4"},
        shown=("reward", "reward"),
    ),
    "dead_groups": Case(
        how="a reward that no completion ever gets",
        options={"rewards.accuracy": "study_rewards:never", **UNSHAPED},
        shown=("frac_zero_std", "share of groups"),
    ),
    "kl_runaway": Case(
        how="learning rate 2e-3, KL coefficient 1e-4",
        options={"grpo.kl_coef": "1e-4", "grpo.optimizer.learning_rate": "2e-3"},
        shown=("kl", "nats per token"),
    ),
    "sampler_mismatch": Case(
        how="sampled with top_p 0.7, scored without",
        options={"rollout.sampler.top_p": "0.7"},
        shown=("mismatch_kl", "nats per token"),
        base=900,
    ),
}


def first(run: Run, name: str) -> str:
    steps = [alarm["step"] for alarm in run.alarms if alarm["name"] == name]
    return ", ".join(map(str, steps)) or "never"


def others(run: Run, name: str) -> str:
    return ", ".join(f"{alarm['name']} ({alarm['step']})" for alarm in run.alarms if alarm["name"] != name) or "none"


def main() -> None:
    given = arguments(__doc__)
    seed = given.seeds[0]
    healthy = run_grpo(given.runs, base_policy(given.runs), "healthy", STEPS, seed)
    failing = {}
    for name, case in CASES.items():
        base = base_policy(given.runs) if case.base is None else base_policy(given.runs, f"base_{case.base}", case.base)
        failing[name] = run_grpo(given.runs, base, f"alarm_{name}", STEPS | case.options, seed)

    text = heading("Alarms on runs made to fail", "python benchmarks/alarms.py", [seed])
    text += f"\n{STEPS['grpo.steps']} rollouts of 128 rows each; the monitor at its defaults.\n\n"
    rows = [[name, case.how, first(failing[name], name), others(failing[name], name)] for name, case in CASES.items()]
    rows.append(["healthy", "nothing", "–", others(healthy, "")])
    text += table(["made to fail by", "what is wrong with it", "raised at step", "other alarms"], rows)
    for name, run in failing.items():
        said = next((alarm for alarm in run.alarms if alarm["name"] == name), None)
        if said is not None:
            text += f"\n**{name}**: {said['message']} *{said['advice']}*\n"
    (RESULTS / "alarms.md").write_text(text)
    print(text)
    runs = failing | {"healthy": healthy}
    records = {
        name: [{key: record.get(key) for key in ("step", *METRICS)} for record in run.records] for name, run in runs.items()
    }
    (RESULTS / "alarms.json").write_text(json.dumps(records) + "\n")

    def panel(name: str, case: Case):
        metric, y_label = case.shown

        def paint(axes: Axes) -> None:
            for label, run, colour in (("healthy", healthy, COLOURS[0]), ("made to fail", failing[name], COLOURS[1])):
                values = run.series(metric)
                axes.plot(np.arange(1, values.size + 1), smoothed(values), color=colour, label=label)
            for alarm in failing[name].alarms:
                if alarm["name"] == name:
                    axes.axvline(alarm["step"], color="#888888", linestyle=":", label="alarm")
            if metric == "mismatch_kl":
                axes.set_yscale("log")
            axes.legend()

        return f"{name}: {metric}", "rollout", y_label, paint

    draw(IMAGES / "alarms.png", [panel(name, case) for name, case in CASES.items()])


if __name__ == "__main__":
    main()
