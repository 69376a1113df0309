"""The GRPO family through its steps and through the loop: reuse, KL in the reward, covariance terms, replay, alarms."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tiny_runs
from finished_runs import records

from grpo_jax.checkpoint import RunCheckpoints
from grpo_jax.objectives import AdvantageConfig, group_advantages
from grpo_jax.training.alarm_log import read_alarms
from grpo_jax.training.config import RunConfig
from grpo_jax.training.loop import Interrupted, train
from grpo_jax.training.policy import build_policy
from grpo_jax.training.position import Position
from grpo_jax.training.steps import grpo_step, score

ROOT = Path(__file__).parents[2]


def steps(folder: Path, *options: str) -> tiny_runs.Steps:
    return tiny_runs.Steps(tiny_runs.load(folder, *options))


# Reuse of a rollout


REUSED = (
    "grpo.updates_per_rollout=2",
    "grpo.minibatches=2",
    "grpo.groups.dead=drop",
    "grpo.groups.mask_truncated=true",
    "grpo.optimizer.schedule=linear",
    "grpo.optimizer.end_fraction=0.1",
    "grpo.optimizer.warmup_steps=2",
    "grpo.steps=2",
    "grpo.kl_coef=0",
    "grpo.entropy_coef=0.001",
    "rewards.accuracy=tiny_runs:half_hopeless",
)


@pytest.fixture(scope="module")
def reused(tmp_path_factory: pytest.TempPathFactory):
    """Two steps of two passes over two minibatches, and how many programs scored the old policy."""
    run = steps(tmp_path_factory.mktemp("reused"), *REUSED)
    scorers = score._cache_size()
    outcomes = [run.next() for _ in range(2)]
    return run, outcomes, score._cache_size() - scorers


def test_passes_times_minibatches_are_the_updates_of_a_step(reused) -> None:
    run, _, _ = reused
    assert int(run.state.step) == 2 * 2 * 2


def test_every_live_row_is_used_once_a_pass_and_truncated_ones_never(reused) -> None:
    _, outcomes, _ = reused
    for outcome in outcomes:
        rows = outcome.trained.rows
        live = np.asarray(outcome.advantages.live_B) & ~rows.truncated
        assert rows.truncated.any() and live.any()
        assert outcome.metrics["tokens"] == 2 * rows.completion_lengths[live].sum()


def test_learning_rate_spans_all_updates_of_all_steps(reused) -> None:
    """Eight updates: two of warm-up to the peak, then linearly to a tenth of it over the six that are left."""
    run, outcomes, _ = reused
    peak = run.config.grpo.optimizer.learning_rate
    expected = [peak * (1 - 0.9 * (update - 2) / 6) for update in (3, 7)]
    np.testing.assert_allclose([outcome.metrics["learning_rate"] for outcome in outcomes], expected, rtol=1e-5)


def test_old_policy_is_scored_where_the_policy_moves_under_its_rollout(reused) -> None:
    _, outcomes, scorers = reused
    assert scorers == 1
    for outcome in outcomes:
        assert outcome.metrics["ratio_min"] < 1 < outcome.metrics["ratio_max"]
        # Against log-probs that were not scored, all 0, the ratio would be the probability itself.
        assert outcome.metrics["ratio_min"] > 0.5 and outcome.metrics["ratio_max"] < 2
        assert outcome.metrics["staleness_max"] == outcome.metrics["staleness_mean"] == 0
        assert outcome.metrics["mismatch_kl"] < 1e-9


def test_one_update_without_a_kl_scores_nothing(tmp_path: Path) -> None:
    scorers = score._cache_size()
    run = steps(tmp_path, "grpo.kl_coef=0", "grpo.groups.mask_truncated=true")
    outcome = run.next()
    assert score._cache_size() == scorers
    assert outcome.metrics["ratio_min"] == outcome.metrics["ratio_max"] == 1.0 and "kl" not in outcome.metrics
    assert int(run.state.step) == 1 and run.reference is None
    rows = outcome.trained.rows
    # Cut-off rows count in their group's statistics all the same.
    expected = group_advantages(rows.reward, 4, AdvantageConfig()).advantages_B
    np.testing.assert_array_equal(outcome.advantages.advantages_B, expected)
    assert outcome.metrics["tokens"] == rows.completion_lengths[~rows.truncated].sum()


def test_rows_that_were_cut_off_do_not_weigh_in_the_denominator(tmp_path: Path) -> None:
    """With the mean over sequences each of n rows weighs 1/n: the loss is −Σ A/n over the rows that ended."""
    run = steps(tmp_path, "grpo.kl_coef=0", "grpo.groups.mask_truncated=true")
    for _ in range(3):
        outcome = run.next()
        kept = ~outcome.trained.rows.truncated
        expected = -np.asarray(outcome.advantages.advantages_B)[kept].mean() if kept.any() else 0.0
        assert outcome.metrics["policy_loss"] == pytest.approx(expected, abs=1e-6)
    assert abs(expected) > 1e-3, "the loss must be told from 0"


# The ratio's denominator


def test_sampler_log_probs_are_what_the_ratio_is_taken_to(tmp_path: Path) -> None:
    """top_k makes the sampler another distribution than the policy, so that the two can be told apart."""
    run = steps(tmp_path, "grpo.off_policy.old_logprobs=sampler", "rollout.sampler.top_k=5", "grpo.kl_coef=0")
    config = run.state.config
    params = jax.tree.map(lambda leaf: leaf.copy(), run.state.params)
    outcome = run.next()
    rows = outcome.trained.rows
    policy = np.asarray(score(config, params, rows.tokens))
    ratio = np.exp(policy - rows.sampler_logprobs)[rows.completion_mask]
    assert outcome.metrics["ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-4)
    assert outcome.metrics["ratio_max"] == pytest.approx(ratio.max(), rel=1e-4)
    assert ratio.mean() < 0.9 and outcome.metrics["mismatch_max"] == 0


# KL in the reward


def test_kl_in_the_reward_is_beta_times_the_summed_log_ratio(tmp_path: Path) -> None:
    options = ("grpo.kl.place=reward", "grpo.kl.estimator=k1", "grpo.kl_coef=0.5", "grpo.optimizer.learning_rate=0.05")
    run = steps(tmp_path, *options)
    assert run.next().metrics["kl_reward"] == 0.0
    config, params = run.state.config, jax.tree.map(lambda leaf: leaf.copy(), run.state.params)
    outcome = run.next()
    rows = outcome.trained.rows
    policy, reference = (np.asarray(score(config, each, rows.tokens), np.float64) for each in (params, run.reference))
    penalty = 0.5 * np.where(rows.completion_mask, policy - reference, 0).sum(axis=1)
    assert np.abs(penalty).max() > 1e-2, "the policy must have moved"
    expected = group_advantages((rows.reward - penalty).astype(np.float32), 4, AdvantageConfig())
    np.testing.assert_allclose(outcome.advantages.advantages_B, expected.advantages_B, atol=1e-4)
    without = group_advantages(rows.reward, 4, AdvantageConfig()).advantages_B
    assert np.abs(np.asarray(outcome.advantages.advantages_B) - without).max() > 1e-2
    assert outcome.metrics["kl_reward"] == pytest.approx(-penalty.mean(), abs=1e-5)
    # The reward that is logged is the one that was judged, and the loss has no KL of its own.
    assert outcome.metrics["reward"] == pytest.approx(rows.reward.mean(), rel=1e-5)
    assert "kl_loss" not in outcome.metrics and outcome.metrics["kl"] > 0


# Members of the family that look at more than a reward


@pytest.fixture(scope="module")
def decoupled(tmp_path_factory: pytest.TempPathFactory):
    run = steps(
        tmp_path_factory.mktemp("decoupled"),
        "grpo.advantage.estimator=gdpo",
        "grpo.policy.term=clip_cov",
        "grpo.policy.cov_ratio=0.2",
        "grpo.policy.cov_low=0.0001",
        "grpo.kl.place=reward",
        "rewards.overlong.buffer=3",
        "rewards.repetition.ngram=2",
    )
    run.next()
    return run, run.next()


@pytest.fixture(scope="module")
def length_weighted(tmp_path_factory: pytest.TempPathFactory):
    run = steps(
        tmp_path_factory.mktemp("length_weighted"),
        "grpo.advantage.estimator=opo",
        "grpo.policy.term=kl_cov",
        "grpo.policy.cov_ratio=0.1",
        "grpo.minibatches=2",
        "grpo.off_policy.correction=tis",
        "grpo.off_policy.opsm_threshold=0.5",
        "rewards.length.right_short=1.0",
    )
    return run, run.next()


def test_decoupled_advantages_and_the_clipped_covariance_run_together(decoupled) -> None:
    """gdpo normalises each component, a KL in the reward among them; clip_cov scores the old policy even on-policy."""
    run, outcome = decoupled
    assert run.config.grpo.on_policy and run.config.grpo.scores_old_policy
    rows, live = outcome.trained.rows, np.asarray(outcome.advantages.live_B)
    assert live.any() and set(rows.components) >= {"overlong", "repetition_penalty"}
    assert outcome.metrics["selected_tokens"] == pytest.approx(np.floor(0.2 * rows.completion_lengths.sum()))
    assert outcome.metrics["ratio_max"] == 1.0
    one_scale = group_advantages(rows.reward, 4, AdvantageConfig()).advantages_B
    assert np.abs(np.asarray(outcome.advantages.advantages_B) - one_scale).max() > 1e-2


def test_length_weighted_advantages_and_the_covariance_penalty_run_together(length_weighted) -> None:
    _, outcome = length_weighted
    rows = outcome.trained.rows
    groups, lengths = rows.reward.reshape(-1, 4), rows.completion_lengths.reshape(-1, 4)
    expected = groups - (lengths * groups).sum(axis=1, keepdims=True) / lengths.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outcome.advantages.advantages_B, expected.reshape(-1), atol=1e-5)
    # Tokens are selected once, over the whole rollout, whatever minibatch they fall into.
    assert outcome.metrics["selected_tokens"] == max(1, np.floor(0.1 * rows.completion_lengths.sum()))
    assert outcome.metrics["corrected_fraction"] == outcome.metrics["opsm_fraction"] == 0.0


# Replay


REPLAY = ("grpo.groups.dead=replay", "grpo.groups.replay_groups=3", "rewards.accuracy=tiny_runs:half_hopeless")


def test_dead_groups_are_replaced_by_earlier_ones(tmp_path: Path) -> None:
    """Every replayed group was trained on in an earlier step, none twice, none too old, and its ratio is to its sampler."""
    options = (*REPLAY, "rewards.format_weight=0", "rewards.termination_weight=0", "grpo.off_policy.max_staleness=2")
    run = steps(tmp_path, *options, "grpo.kl_coef=0")
    seen: dict[bytes, int] = {}
    replayed = 0
    for step in range(5):
        outcome = run.next()
        rows = outcome.trained.rows
        groups = rows.version.reshape(-1, 4)[:, 0]
        again = np.flatnonzero(groups < step)
        assert outcome.metrics["groups_replayed"] == again.size
        assert (step - groups[again] <= 2).all()
        live = np.asarray(outcome.advantages.live_B).reshape(-1, 4).any(axis=1)
        for group, version in enumerate(groups):
            key = rows.tokens.reshape(len(groups), 4, -1)[group].tobytes()
            if version < step:
                assert seen.pop(key) == version and live[group]
                assert outcome.trained.problems[group] is None
            elif live[group]:
                seen[key] = version
        replayed += again.size
        assert outcome.metrics["replay_groups"] <= 3
        weighted = np.repeat(live, 4)
        assert outcome.metrics["staleness_max"] == (step - rows.version[weighted]).max()
        assert outcome.metrics["staleness_mean"] == pytest.approx((step - rows.version[weighted]).mean())
        assert outcome.metrics["ratio_min"] > 0.5 and outcome.metrics["ratio_max"] < 2
        assert len(outcome.observed(4)[0]) == 4
        assert run.replay is not None and not set(run.replay.version[run.replay.version >= 0]) - set(range(step + 1))
    assert replayed, "no group was replayed: the test has no object"


def test_groups_that_the_estimator_gives_no_signal_are_not_remembered(tmp_path: Path) -> None:
    """max_rl has no value where a group's mean reward is below 0, however its rewards differ."""
    options = (
        "grpo.groups.dead=replay",
        "grpo.advantage.estimator=max_rl",
        "rewards.accuracy=tiny_runs:minus_parity",
        "rewards.format_weight=0",
        "rewards.termination_weight=0",
    )
    outcome = steps(tmp_path, *options, "grpo.kl_coef=0").next()
    assert outcome.metrics["frac_zero_std"] < 1 and outcome.metrics["groups_without_signal"] == 4
    assert outcome.metrics["replay_groups"] == 0


# Coefficients


def test_a_moving_coefficient_reaches_the_loss_without_compiling_again(tmp_path: Path) -> None:
    options = ("schedules.kl_coef.kind=linear", "schedules.kl_coef.end=2.0", "grpo.optimizer.learning_rate=0.02")
    run = steps(tmp_path, *options)
    compiled = grpo_step._cache_size()
    outcomes = [run.next() for _ in range(4)]
    assert grpo_step._cache_size() == compiled + 1
    coefs = [outcome.metrics["kl_coef"] for outcome in outcomes]
    np.testing.assert_allclose(coefs, [0.02 + 1.98 * step / 6 for step in range(4)])
    for outcome in outcomes[1:]:
        # The loss weighs rows alike and the metric tokens; lengths are nearly equal here.
        assert outcome.metrics["kl_loss"] == pytest.approx(outcome.metrics["kl_coef"] * outcome.metrics["kl"], rel=0.3)
        assert outcome.metrics["kl"] > 0


# Runs through the loop


class Killed(KeyboardInterrupt):
    """What ends a process without a chance to save."""


class Kill:
    """A reward that ends the process after so many rows, if it is told to."""

    rows_left: int | None = None


def killing_parity(row) -> float:
    if Kill.rows_left is not None:
        Kill.rows_left -= 1
        if Kill.rows_left < 0:
            raise Killed
    return tiny_runs.half_hopeless(row)


def killed_in_step(config: RunConfig, step: int) -> None:
    """Runs until the rewards of a GRPO step are taken, and no further."""
    # A test before the first step judges each stage's problem twice sampled and once greedily.
    Kill.rows_left = 2 * 3 + 16 * (step - 1) + 3
    try:
        with pytest.raises(Killed):
            train(config)
    finally:
        Kill.rows_left = None


def arrays(config: RunConfig, step: int | None = None) -> dict[str, np.ndarray]:
    """Every array of a checkpoint by its path."""
    with RunCheckpoints(Path(config.run_dir) / "checkpoints", read_only=True) as checkpoints:
        position = Position.from_json(checkpoints.read_host(step))
        restored = checkpoints.restore(build_policy(config).abstract_arrays(position), step)
    leaves = jax.tree_util.tree_leaves_with_path(restored.state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def host(config: RunConfig, step: int | None = None) -> dict[str, Any]:
    with RunCheckpoints(Path(config.run_dir) / "checkpoints", read_only=True) as checkpoints:
        return checkpoints.read_host(step)


def grpo_steps(config: RunConfig) -> dict[int, dict]:
    """The records of GRPO by their step."""
    return {record["step"]: record for record in records(Path(config.run_dir)) if record["phase"] == "grpo"}


def comparable(config: RunConfig) -> list[dict]:
    timed = re.compile(r"seconds|tokens_per_second|peak_memory")
    return [{k: v for k, v in record.items() if not timed.search(k)} for record in records(Path(config.run_dir))]


EVERYTHING = (
    "data.task=jsonl",
    "data.tokenizer.alphabet=0123456789+",
    "data.options.stage=stage",
    "data.curriculum.mode=difficulty",
    "rewards.accuracy=test_grpo_family:killing_parity",
    "grpo.groups.dead=replay",
    "grpo.minibatches=2",
    "grpo.kl.refresh_every=4",
    "grpo.entropy_coef=0",
    "grpo.optimizer.learning_rate=0.02",
    "schedules.kl_coef.kind=adaptive_kl",
    "schedules.kl_coef.target=0.01",
    "schedules.kl_coef.horizon=100",
    "schedules.format_weight.kind=saturation",
    "schedules.format_weight.threshold=0.01",
    "schedules.format_weight.decay=0.5",
    "schedules.entropy_coef.kind=entropy_target",
    "schedules.entropy_coef.target=9.0",
    "schedules.entropy_coef.step_size=0.001",
    "monitor.window=5",
    "monitor.kl_limit=1.0e-9",
    "monitor.kl_floor=1.0e-10",
    "on_alarm=kl_runaway=raise_kl",
    "checkpoint.every=2",
    "logging.samples_every=1",
)


def everything(folder: Path) -> RunConfig:
    lines = [json.dumps({"question": f"{i}+{i}", "answer": 2 * i, "stage": ("easy", "hard")[i % 2]}) for i in range(10, 80)]
    path = folder / "problems.jsonl"
    path.write_text("\n".join(lines))
    return tiny_runs.load(folder, f"data.path={path}", *EVERYTHING)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run with everything on that was never stopped."""
    config = everything(tmp_path_factory.mktemp("unbroken"))
    train(config)
    return config


@pytest.mark.slow
def test_everything_that_should_move_moves(unbroken: RunConfig) -> None:
    steps = list(grpo_steps(unbroken).values())
    for name in ("kl_coef", "format_weight", "entropy_coef"):
        assert len({record[name] for record in steps}) > 3, name
    assert sum(record["groups_replayed"] for record in steps) > 0
    assert max(record["staleness_max"] for record in steps) >= 2
    observed = host(unbroken)["curriculum"]["difficulty"]
    assert observed["problems"] and set(observed["stages"]) == {"easy", "hard"}
    assert all(record["mismatch_kl"] < 1e-9 for record in steps)


@pytest.mark.slow
def test_killed_with_everything_on_it_ends_as_never_stopped(unbroken: RunConfig, tmp_path: Path) -> None:
    config = everything(tmp_path)
    killed_in_step(config, 6)
    # The alarm of step 5 was acted on and told, and is forgotten with the step.
    assert [alarm["step"] for alarm in read_alarms(Path(config.run_dir) / "alarms.jsonl")] == [5]
    assert host(config)["step"] == 4
    train(config, resume=True)
    expected, found = arrays(unbroken), arrays(config)
    assert expected.keys() == found.keys()
    assert {"train", "reference", "replay"} == {re.findall(r"\w+", path)[0] for path in expected}
    assert not [path for path in expected if not np.array_equal(expected[path], found[path], equal_nan=True)]
    ours, theirs = host(config), host(unbroken)
    # The list of problems lies in another file, and is the same.
    assert ours == theirs and ours["controls"] and ours["replay_components"]
    assert comparable(config) == comparable(unbroken)
    for name in ("alarms.jsonl", "samples/step_000005.md", "samples/step_000006.md"):
        assert (Path(config.run_dir) / name).read_text() == (Path(unbroken.run_dir) / name).read_text()


@pytest.mark.slow
def test_killed_before_its_first_checkpoint_a_run_repeats_no_alarm(unbroken: RunConfig, tmp_path: Path) -> None:
    options = ("checkpoint.every=0", "monitor.window=3")
    config = tiny_runs.load(tmp_path, *(option for option in EVERYTHING if not option.startswith("data.")), *options)
    # Five stages of arithmetic are tested twice sampled and once greedily.
    Kill.rows_left = 5 * 3 + 16 * 4
    try:
        with pytest.raises(Killed):
            train(config)
    finally:
        Kill.rows_left = None
    assert read_alarms(Path(config.run_dir) / "alarms.jsonl")
    train(config, resume=True)
    alarms = read_alarms(Path(config.run_dir) / "alarms.jsonl")
    assert len(alarms) == len({(alarm["name"], alarm["step"]) for alarm in alarms}) == 1


@pytest.mark.slow
def test_reference_becomes_the_policy_of_the_step_that_refreshes_it(unbroken: RunConfig) -> None:
    def part(step: int, name: str) -> dict[str, np.ndarray]:
        prefix = {"policy": "['train'].params", "reference": "['reference']"}[name]
        return {path.removeprefix(prefix): leaf for path, leaf in arrays(unbroken, step).items() if path.startswith(prefix)}

    def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
        assert one and one.keys() == other.keys()
        return all(np.array_equal(one[path], other[path]) for path in one)

    initial = jax.tree_util.tree_leaves_with_path(build_policy(unbroken).initial_params())
    assert same(part(2, "reference"), {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in initial})
    assert same(part(4, "reference"), part(4, "policy"))
    assert same(part(6, "reference"), part(4, "policy"))
    assert not same(part(2, "policy"), part(4, "policy")) and not same(part(4, "policy"), part(6, "policy"))


@pytest.mark.slow
def test_alarm_is_told_everywhere_and_raises_the_kl(unbroken: RunConfig) -> None:
    run_dir = Path(unbroken.run_dir)
    alarms = read_alarms(run_dir / "alarms.jsonl")
    assert [(alarm["name"], alarm["step"], alarm["action"]) for alarm in alarms] == [("kl_runaway", 5, "raise_kl")]
    assert alarms[0]["message"] and "grpo.kl_coef" in alarms[0]["advice"]
    steps = grpo_steps(unbroken)
    assert [step for step, record in steps.items() if "alarm/kl_runaway" in record] == [5]
    assert json.loads((run_dir / "summary.json").read_text())["alarms"]["kl_runaway"] == 1
    assert host(unbroken)["controls"]["schedules"]["kl_coef"]["multiplier"] == 2.0
    # One step of the controller moves β by at most 0.2 · 16/100 beside the doubling.
    assert steps[6]["kl_coef"] / steps[5]["kl_coef"] == pytest.approx(2.0, rel=0.04)
    assert steps[5]["kl_coef"] / steps[4]["kl_coef"] == pytest.approx(1.0, rel=0.04)


DEAD = (
    "rewards.accuracy=tiny_runs:hopeless",
    "rewards.format_weight=0",
    "rewards.termination_weight=0",
    "monitor.window=3",
)


@pytest.mark.slow
def test_alarm_stops_a_run_after_saving_it_and_resuming_goes_on(tmp_path: Path, capsys) -> None:
    config = tiny_runs.load(tmp_path, *DEAD, "on_alarm=dead_groups=stop", "checkpoint.every=0")
    with pytest.raises(Interrupted, match=r"stopped by the alarm dead_groups after step 3, which is saved\. .*--resume"):
        train(config)
    shown = capsys.readouterr().out
    assert "alarm dead_groups: 100 % of the groups had no signal over 3 steps" in shown and "Done now: stop." in shown
    run_dir = Path(config.run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["alarms"]["dead_groups"] == 1 and summary["steps"]["grpo"] == 3
    assert host(config)["step"] == 3
    # The failure goes on and is not told again, so that the run gets on.
    assert train(config, resume=True).status == "finished"
    assert [alarm["step"] for alarm in read_alarms(run_dir / "alarms.jsonl")] == [3]
    assert json.loads((run_dir / "summary.json").read_text())["alarms"]["dead_groups"] == 1
    assert list(grpo_steps(config)) == list(range(1, 7))


@pytest.mark.slow
def test_lower_temperature_holds_for_sampling_and_scoring_and_through_a_resumption(tmp_path: Path, capsys) -> None:
    (tmp_path / "plain").mkdir()
    plain, config = (
        tiny_runs.load(folder, *DEAD, f"on_alarm={action}", "checkpoint.every=4")
        for folder, action in ((tmp_path / "plain", ""), (tmp_path, "dead_groups=lower_temperature"))
    )
    train(plain)
    capsys.readouterr()
    train(config)
    assert "! dead_groups" in capsys.readouterr().out
    assert host(config, 4)["controls"]["temperature_factor"] == 0.9
    before, after = grpo_steps(plain), grpo_steps(config)
    for step in (1, 2, 3):
        assert before[step]["entropy"] == after[step]["entropy"]
    # Groups without a signal and a policy at its reference: nothing moves, and only the temperature differs.
    for step in (4, 5, 6):
        assert after[step]["entropy"] < before[step]["entropy"] - 3e-4
        assert after[step]["mismatch_kl"] < 1e-9 and after[step]["mismatch_max"] < 1e-4
    whole, log = arrays(config), comparable(config)
    # As if it had been killed after its fourth step.
    shutil.rmtree(Path(config.run_dir) / "checkpoints" / "6")
    train(config, resume=True)
    assert comparable(config) == log
    again = arrays(config)
    assert all(np.array_equal(whole[path], again[path]) for path in whole)


# What is written is documented


def documented(page: str, section: str) -> set[str]:
    """The names in the first columns of the tables of a section."""
    text = page.split(f"### {section}\n")[1].split("\n### ")[0].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.slow
def test_metrics_of_a_step_are_exactly_the_documented_ones(
    unbroken: RunConfig, reused, decoupled, length_weighted, tmp_path: Path
) -> None:
    """What these runs write between them is all that a run can write, placeholders apart."""
    refilled = steps(tmp_path, "grpo.groups.dead=refill").next()
    named = ("rewards.accuracy=answer_tag", "rewards.format=answer_only", "rewards.pool={workers: 1}")
    gated = steps(tmp_path, *named, "rewards.gates={accuracy: termination}", "rewards.language={}").next()
    written: set[str] = set()
    for outcome in (refilled, gated, *reused[1], decoupled[1], length_weighted[1]):
        written |= outcome.metrics.keys()
    for record in grpo_steps(unbroken).values():
        written |= record.keys() - {"phase", "step", "total_step"}
    components = "accuracy|gated_accuracy|format|termination|language|overlong|repetition_penalty|length"
    short = {
        r"accuracy/\w+": "accuracy/STAGE",
        r"alarm/\w+": "alarm/NAME",
        rf"(?:{components})_(std|missing|failed|timed_out|gated)": r"COMPONENT_\1",
    }
    for pattern, name in short.items():
        written = {re.sub(rf"^{pattern}$", name, other) for other in written}
    assert written == documented((ROOT / "docs" / "runs.md").read_text(encoding="utf-8"), "Metrics of `grpo`")
