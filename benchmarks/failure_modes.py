"""Two failures of GRPO, shown and cured: a reward that ignores termination, and an update that is too aggressive.

    python benchmarks/failure_modes.py [--runs runs/studies] [--seeds 0 1]

Length: the right number anywhere in the text is enough, and nothing is paid for ending. Cures: the termination reward; the
overlong penalty. Entropy: eight passes over each rollout without a clip range and without a KL. Cures: DAPO's clip range
(clip-higher), a KL, an entropy target. Writes benchmarks/results/failure_modes.md and docs/images/failure_length.png and
failure_entropy.png.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import rollout_reuse
from matplotlib.axes import Axes
from studies import IMAGES, RESULTS, Run, arguments, base_policy, curves, draw, heading, run_grpo, spread, table

# A policy that hardly knows arithmetic yet, so that being right is rare and length has something to win.
YOUNG = 400
ANYWHERE = {
    "grpo.steps": "35",
    "grpo.kl_coef": "0",
    "grpo.optimizer.learning_rate": "5e-4",
    "rewards.accuracy": "study_rewards:number_anywhere",
    "rewards.format_weight": "0",
    "rewards.termination_weight": "0",
    "evaluation.problems": "8",
}
LENGTH = {
    "ending not rewarded": ANYWHERE,
    "+ termination reward 0.5": ANYWHERE | {"rewards.termination_weight": "0.5"},
    "+ overlong penalty": ANYWHERE | {"rewards.overlong.buffer": "10"},
}

AGGRESSIVE = {"grpo.steps": "20", "grpo.updates_per_rollout": "8", "grpo.kl_coef": "0"}
UNCLIPPED = {"grpo.policy.clip_low": "1.0", "grpo.policy.clip_high": "1000"}
ENTROPY = {
    "eight passes, no clip, no KL": AGGRESSIVE | UNCLIPPED,
    "+ clip-higher 0.2 / 0.28": AGGRESSIVE | {"grpo.policy.term": "dapo", "grpo.policy.aggregation": "sequence_mean"},
    "+ KL 0.1": AGGRESSIVE | UNCLIPPED | {"grpo.kl_coef": "0.1"},
    "+ entropy target 0.06": AGGRESSIVE
    | UNCLIPPED
    | {
        "grpo.entropy_coef": "0.01",
        "schedules.entropy_coef.kind": "entropy_target",
        "schedules.entropy_coef.target": "0.06",
        "schedules.entropy_coef.step_size": "0.01",
        "schedules.entropy_coef.ceiling": "0.1",
    },
}


def alarms(runs: Sequence[Run]) -> str:
    return ", ".join(f"{alarm['name']} ({run.seed}: step {alarm['step']})" for run in runs for alarm in run.alarms) or "none"


def length_rows(groups: Mapping[str, Sequence[Run]]) -> list[list[str]]:
    return [
        [
            name,
            spread([float(run.series("completion_length_mean")[0]) for run in runs], "{:.1f}".format),
            spread([run.last("completion_length_mean") for run in runs], "{:.1f}".format),
            spread([run.last("truncated_fraction") for run in runs], "{:.1%}".format),
            spread([run.last("repetition") for run in runs], "{:.3f}".format),
            spread([run.last("accuracy") for run in runs], "{:.1%}".format),
            alarms(runs),
        ]
        for name, runs in groups.items()
    ]


def entropy_rows(groups: Mapping[str, Sequence[Run]]) -> list[list[str]]:
    return [
        [
            name,
            spread([float(run.series("entropy")[0]) for run in runs]),
            spread([float(run.series("entropy")[4:9].mean()) for run in runs]),
            spread([run.last("entropy") for run in runs]),
            spread([run.last("accuracy") for run in runs], "{:.1%}".format),
            spread([run.accuracy[1] for run in runs], "{:.1%}".format),
            alarms(runs),
        ]
        for name, runs in groups.items()
    ]


def main() -> None:
    given = arguments(__doc__)

    def runs(prefix: str, base: Path, study: Mapping[str, Mapping[str, str]]) -> dict[str, list[Run]]:
        return {
            name: [run_grpo(given.runs, base, f"{prefix}_{index}", options, seed) for seed in given.seeds]
            for index, (name, options) in enumerate(study.items())
        }

    length = runs("failure_length", base_policy(given.runs, f"base_{YOUNG}", YOUNG), LENGTH)
    entropy = runs("failure_entropy", base_policy(given.runs), ENTROPY)
    # A run of the study of reuse: eight passes as well, held in more tightly.
    entropy["+ clip 0.05, KL 0.02"] = [
        run_grpo(given.runs, base_policy(given.runs), "reuse_8_clip_0.05", rollout_reuse.options(8, "0.05"), seed)
        for seed in given.seeds
    ]

    text = heading("Two failures and their cures", "python benchmarks/failure_modes.py", given.seeds)
    text += (
        f"\n## A reward that ignores termination\n\n{ANYWHERE['grpo.steps']} rollouts of 128 rows from a policy of {YOUNG} "
        "SFT steps, at most 46 tokens a completion; rewarded is the right number anywhere in the text. Last: mean of the "
        "last five rollouts. Mean over seeds (least to greatest).\n\n"
    )
    columns = [
        "reward",
        "tokens, first rollout",
        "tokens, last",
        "cut off, last",
        "repetition, last",
        "right, last",
        "alarms",
    ]
    text += table(columns, length_rows(length))
    text += (
        f"\n## An update that is too aggressive\n\n{AGGRESSIVE['grpo.steps']} rollouts of 128 rows from the policy after "
        "SFT, each trained on eight times, learning rate 2e-4. Entropy in nats per token.\n\n"
    )
    columns = [
        "update",
        "entropy, first rollout",
        "entropy, rollouts 5 to 9",
        "entropy, last",
        "right in training, last",
        "held-out accuracy",
        "alarms",
    ]
    text += table(columns, entropy_rows(entropy))
    (RESULTS / "failure_modes.md").write_text(text)
    print(text)

    def panel(title: str, metric: str, y_label: str, groups: Mapping[str, Sequence[Run]], legend: bool = False):
        return title, "rollout", y_label, lambda axes: curves(axes, groups, metric, legend)

    def ratios(axes: Axes) -> None:
        curves(axes, entropy, "ratio_max")
        axes.set_yscale("log")

    draw(
        IMAGES / "failure_length.png",
        [
            panel("Completion length", "completion_length_mean", "tokens", length, legend=True),
            panel("Cut off by the limit on length", "truncated_fraction", "share of rows", length),
            panel("Repeated n-grams", "repetition", "share", length),
        ],
    )
    draw(
        IMAGES / "failure_entropy.png",
        [
            panel("Entropy of the policy", "entropy", "nats per token", entropy, legend=True),
            panel("Accuracy in training", "accuracy", "share right", entropy),
            ("Greatest ratio", "rollout", "π / π_old", ratios),
        ],
    )


if __name__ == "__main__":
    main()
