"""How often a rollout may be trained on: μ = 1, 2, 4, 8 passes over each, and which clip range holds the policy then.

    python benchmarks/rollout_reuse.py [--runs runs/studies] [--seeds 0 1]

Twenty rollouts of 128 rows of the arithmetic curriculum, from the policy after SFT, for each μ with the usual clip range,
and for μ = 8 with narrower and wider ones. Writes benchmarks/results/rollout_reuse.md and docs/images/rollout_reuse.png.
"""

from __future__ import annotations

from studies import IMAGES, RESULTS, Run, arguments, base_policy, curves, draw, heading, run_grpo, spread, table

STEPS = "20"
REUSE = (1, 2, 4, 8)
CLIPS = {
    "0.05": ("0.05", "0.05"),
    "0.2": ("0.2", "0.2"),
    "0.4": ("0.4", "0.4"),
    "none": ("1.0", "1000"),
}


def options(reuse: int, clip: str = "0.2") -> dict[str, str]:
    chosen = {"grpo.steps": STEPS, "grpo.updates_per_rollout": str(reuse)}
    if reuse > 1:
        chosen |= dict(zip(("grpo.policy.clip_low", "grpo.policy.clip_high"), CLIPS[clip], strict=True))
    return chosen


def line(label: str, runs: list[Run]) -> list[str]:
    def of(metric: str) -> list[float]:
        return [float(run.series(metric).mean()) for run in runs]

    clipped = [low + high for low, high in zip(of("clip_fraction_low"), of("clip_fraction_high"), strict=True)]
    return [
        label,
        spread([run.accuracy[1] for run in runs], "{:.1%}".format),
        spread([run.last("accuracy") for run in runs], "{:.1%}".format),
        spread([run.last("kl") for run in runs], "{:.4f}".format),
        spread(clipped, "{:.2%}".format),
        spread([float(run.series("ratio_max").max()) for run in runs], "{:.3g}".format),
        spread([run.last("entropy") for run in runs]),
    ]


def main() -> None:
    given = arguments(__doc__)
    base = base_policy(given.runs)

    def runs(reuse: int, clip: str = "0.2") -> list[Run]:
        name = f"reuse_{reuse}_clip_{clip.replace(' / ', '_')}"
        return [run_grpo(given.runs, base, name, options(reuse, clip), seed) for seed in given.seeds]

    by_reuse = {f"μ = {reuse}": runs(reuse) for reuse in REUSE}
    by_clip = {f"clip {clip}": runs(8, clip) for clip in CLIPS}
    before = [run.accuracy[0] for run in by_reuse["μ = 1"]]
    columns = ["", "held-out accuracy", "accuracy in training", "KL", "clipped", "greatest ratio", "entropy"]
    text = heading("Reuse of rollouts", "python benchmarks/rollout_reuse.py", given.seeds)
    text += (
        f"\n{STEPS} rollouts of 16 prompts × 8 completions each, learning rate 2e-4, KL coefficient 0.02, from a policy "
        f"with {spread(before, '{:.1%}'.format)} held-out accuracy. Accuracy in training, KL to the reference and entropy "
        "(nats per token): mean of the last five rollouts. Clipped: share of tokens beyond a bound, over all updates. Mean "
        "over seeds (least to greatest).\n\n"
    )
    text += table(columns, [line(label, found) for label, found in by_reuse.items()])
    text += "\nThe same with μ = 8 and other clip ranges (low / high; one number is both):\n\n"
    text += table(columns, [line(label, found) for label, found in by_clip.items()])
    (RESULTS / "rollout_reuse.md").write_text(text)
    print(text)

    def panel(title: str, metric: str, y_label: str, groups: dict[str, list[Run]], legend: bool):
        return title, "rollout", y_label, lambda axes: curves(axes, groups, metric, legend)

    draw(
        IMAGES / "rollout_reuse.png",
        [
            panel("Accuracy in training, by μ", "accuracy", "share right", by_reuse, True),
            panel("KL to the reference, by μ", "kl", "nats per token", by_reuse, False),
            panel("Clipped from above, by μ", "clip_fraction_high", "share of tokens", by_reuse, False),
            panel("Accuracy in training, μ = 8", "accuracy", "share right", by_clip, True),
            panel("KL to the reference, μ = 8", "kl", "nats per token", by_clip, False),
            panel("Entropy, μ = 8", "entropy", "nats per token", by_clip, False),
        ],
    )


if __name__ == "__main__":
    main()
