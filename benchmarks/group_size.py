"""Few large groups or many small ones: G = 2, 4, 8, 16 at equal sampled tokens.

    python benchmarks/group_size.py [--runs runs/studies] [--seeds 0 1]

Every rollout has 128 rows of the arithmetic curriculum, as 64 prompts × 2, 32 × 4, 16 × 8 or 8 × 16 completions. Two things
are measured. The noise of the gradient, at the policy after SFT and at the one after GRPO, from independent rollouts of one
policy: the trace of the gradients' covariance over the squared norm of their mean. And what a run of GRPO reaches. Writes
benchmarks/results/group_size.md and docs/images/group_size.png.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from studies import (
    COMMON,
    CONFIG,
    IMAGES,
    RESULTS,
    Run,
    arguments,
    base_policy,
    curves,
    draw,
    heading,
    run_grpo,
    spread,
    table,
)

from grpo_jax.checkpoint import load_exported
from grpo_jax.cli.export import export
from grpo_jax.data import initial_state
from grpo_jax.generation import SamplerConfig
from grpo_jax.model import hidden_states, unembedding
from grpo_jax.objectives import completion_mask, group_advantages, grpo_denominator, grpo_loss, token_logprobs
from grpo_jax.training import configfile
from grpo_jax.training.compile_clock import CompileClock
from grpo_jax.training.experiment import Experiment, build_experiment
from grpo_jax.training.phase_clock import PhaseClock
from grpo_jax.training.plots import COLOURS
from grpo_jax.training.rollouts import sample
from grpo_jax.training.rows import Rows
from grpo_jax.training.state import StepConfig
from grpo_jax.types import Params

SIZES = (2, 4, 8, 16)
ROWS = 128
STEPS = "25"
ROLLOUTS = 24


def options(size: int) -> dict[str, str]:
    return {"grpo.group_size": str(size), "grpo.prompts": str(ROWS // size), "grpo.steps": STEPS}


@functools.partial(jax.jit, static_argnums=0)
def gradient(config: StepConfig, params: Params, rows: Rows, advantages: jax.Array) -> Params:
    """The gradient of the policy term, as `grpo_step` takes it from one whole batch; no KL."""
    mask = completion_mask(rows.prompt_lengths, rows.lengths, rows.tokens.shape[1])
    weight = jnp.ones(rows.tokens.shape[0])

    def loss(params: Params) -> jax.Array:
        hidden = hidden_states(config.model, params, rows.tokens)
        stats = token_logprobs(hidden, unembedding(config.model, params), rows.tokens, chunk=config.logit_chunk)
        total, _ = grpo_loss(
            config.objective, stats.logprobs_BT, None, None, None, advantages, weight, mask, stats.entropy_BT
        )
        return total / grpo_denominator(config.objective, mask, weight)

    return jax.grad(loss)(params)


def noise(experiment: Experiment, params: Params) -> dict[str, float]:
    """How the gradients of independent rollouts scatter: trace of their covariance over the squared norm of their mean.

    The squared norm of the mean is taken without its bias, which is the trace over the number of rollouts.
    """
    config, size = experiment.config, experiment.config.grpo.group_size
    step_config = experiment.policy.grpo_step_config
    total, squares, dead = None, 0.0, []
    for step in range(ROLLOUTS):
        with CompileClock() as compiles:
            judged = sample(
                experiment,
                params,
                initial_state(experiment.task.stages),
                step,
                sampler=SamplerConfig(),
                weights={},
                updates=0,
                clock=PhaseClock(compiles),
            )
        advantages = group_advantages(judged.rows.reward, size, config.grpo.advantage)
        found = gradient(step_config, params, judged.rows._replace(components={}), np.asarray(advantages.advantages_B))
        flat = np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(found)])
        total = flat if total is None else total + flat
        squares += float(flat @ flat)
        dead.append(float(advantages.stats.frac_zero_std))
    assert total is not None
    mean = total / ROLLOUTS
    trace = (squares - ROLLOUTS * float(mean @ mean)) / (ROLLOUTS - 1)
    signal = float(mean @ mean) - trace / ROLLOUTS
    return {"noise": trace / signal if signal > 0 else float("inf"), "dead": float(np.mean(dead)), "trace": trace}


def measured_noise(policy: Path, size: int) -> dict[str, float]:
    given: dict[str, Any] = COMMON | options(size) | {"pretrained.path": str(policy), "grpo.kl_coef": "0"}
    experiment = build_experiment(configfile.load(CONFIG, list(given.items())))
    return noise(experiment, load_exported(policy)[1])


def line(size: int, runs: list[Run], before: dict[str, float], after: dict[str, float]) -> list[str]:
    tokens = [sum(record["completion_tokens"] for record in run.records) / 1000 for run in runs]
    return [
        str(size),
        f"{before['noise']:.1f}",
        f"{before['dead']:.1%}",
        f"{after['noise']:.1f}",
        f"{after['dead']:.1%}",
        spread([float(run.series("frac_zero_std").mean()) for run in runs], "{:.1%}".format),
        spread([run.accuracy[1] for run in runs], "{:.1%}".format),
        spread(tokens, "{:.1f}k".format),
    ]


def main() -> None:
    given = arguments(__doc__)
    base = base_policy(given.runs)
    groups = {
        size: [run_grpo(given.runs, base, f"groups_of_{size}", options(size), seed) for seed in given.seeds]
        for size in SIZES
    }
    trained = given.runs / "groups_of_8_exported"
    if not trained.exists():
        export(given.runs / f"groups_of_8_seed{given.seeds[0]}", trained)
    before = {size: measured_noise(base, size) for size in SIZES}
    after = {size: measured_noise(trained, size) for size in SIZES}

    start = [run.accuracy[0] for run in groups[SIZES[0]]]
    text = heading("Group size", "python benchmarks/group_size.py", given.seeds)
    text += (
        f"\nRollouts of {ROWS} rows. Noise of the gradient: trace of the covariance over the squared norm of the mean, from "
        f"{ROLLOUTS} rollouts of one policy, after SFT and after the GRPO run with G = 8. Dead: groups whose rewards all "
        f"agree. Runs: {STEPS} rollouts from {spread(start, '{:.1%}'.format)} held-out accuracy; mean over seeds (least to "
        "greatest).\n\n"
    )
    columns = [
        "G",
        "noise after SFT",
        "dead after SFT",
        "noise after GRPO",
        "dead after GRPO",
        "dead in training",
        "held-out accuracy",
        "tokens sampled",
    ]
    text += table(columns, [line(size, groups[size], before[size], after[size]) for size in SIZES])
    (RESULTS / "group_size.md").write_text(text)
    print(text)

    labelled = {f"G = {size}": groups[size] for size in SIZES}

    def bars(axes: Axes) -> None:
        place = np.arange(len(SIZES))
        axes.bar(place - 0.2, [before[size]["noise"] for size in SIZES], 0.38, color=COLOURS[0], label="after SFT")
        axes.bar(place + 0.2, [after[size]["noise"] for size in SIZES], 0.38, color=COLOURS[1], label="after GRPO")
        axes.set_xticks(place, [str(size) for size in SIZES])
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
        axes.legend(ncols=2)

    draw(
        IMAGES / "group_size.png",
        [
            ("Noise of the gradient", "G", "variance / squared mean", bars),
            ("Groups without a signal", "rollout", "share", lambda axes: curves(axes, labelled, "frac_zero_std", True)),
            ("Accuracy in training", "rollout", "share right", lambda axes: curves(axes, labelled, "accuracy")),
        ],
    )


if __name__ == "__main__":
    main()
