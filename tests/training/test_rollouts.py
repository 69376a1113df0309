"""Dynamic sampling draws other problems until enough groups have a signal, looks at accuracy alone, and repeats itself."""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest
import tiny_runs

from grpo_jax.data.arithmetic import ALPHABET
from grpo_jax.training.grpo import GRPOOutcome
from grpo_jax.training.rollouts import informative
from grpo_jax.training.rules import check

REFILL = ("grpo.groups.dead=refill", "rewards.accuracy=tiny_runs:half_hopeless")


def test_a_group_is_informative_where_its_accuracies_differ() -> None:
    nan = np.nan
    groups = [[0, 0, 0], [1, 1, 1], [0, 1, 0], [nan, 1, 1], [nan, 1, 0], [nan, nan, nan], [nan, nan, 1], [0.5, 0.5, 0.6]]
    expected = [False, False, True, False, True, False, False, True]
    assert informative(np.array(groups, np.float32).reshape(-1), 3).tolist() == expected


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[tiny_runs.Steps, list[GRPOOutcome]]:
    run = tiny_runs.Steps(tiny_runs.load(tmp_path_factory.mktemp("refill"), *REFILL))
    return run, [run.next() for _ in range(3)]


def live_groups(outcome: GRPOOutcome) -> np.ndarray:
    return np.asarray(outcome.advantages.live_B).reshape(-1, 4).any(axis=1)


def test_refills_go_on_until_there_are_enough_groups(steps) -> None:
    _, outcomes = steps
    assert any(outcome.metrics["refills"] > 0 for outcome in outcomes), "nothing was refilled: the test has no object"
    for outcome in outcomes:
        metrics, sampled = outcome.metrics, outcome.sampled
        rollouts = metrics["refills"] + 1
        assert len(sampled.problems) == 4 * rollouts and sampled.rows.version.size == 16 * rollouts
        found = informative(sampled.rows.components["accuracy"], 4)
        assert metrics["groups_filtered"] == (~found).sum()
        assert metrics["groups_missing"] == max(4 - found.sum(), 0)
        # The last refill was needed: without it there were too few.
        if metrics["refills"]:
            assert found[:-4].sum() < 4
        assert found.sum() >= 4 or metrics["refills"] == 3


def test_what_is_trained_on_has_a_signal_in_the_order_it_was_sampled(steps) -> None:
    _, outcomes = steps
    for outcome in outcomes:
        trained = informative(outcome.trained.rows.components["accuracy"], 4)
        assert trained.sum() == 4 - outcome.metrics["groups_missing"]
        np.testing.assert_array_equal(live_groups(outcome), trained)
        found = [
            p.key
            for p, good in zip(outcome.sampled.problems, informative(outcome.sampled.rows.components["accuracy"], 4))
            if good
        ]
        kept = [p.key for p, good in zip(outcome.trained.problems, trained) if good]
        assert kept == found[:4]
        tokens = outcome.trained.rows.completion_lengths[np.repeat(trained, 4)].sum()
        assert outcome.metrics["tokens"] == tokens


def test_metrics_cover_every_row_that_was_sampled(steps) -> None:
    _, outcomes = steps
    for outcome in outcomes:
        rows = outcome.sampled.rows
        assert outcome.metrics["accuracy"] == pytest.approx(rows.components["accuracy"].mean())
        assert outcome.metrics["completion_tokens"] == rows.completion_lengths.sum()
    refilled = next(outcome for outcome in outcomes if outcome.metrics["refills"])
    assert refilled.metrics["accuracy"] < refilled.trained.rows.components["accuracy"].mean()
    problems, accuracy = refilled.observed(4)
    assert len(problems) == len(accuracy) == len(refilled.sampled.problems)
    np.testing.assert_allclose(accuracy, refilled.sampled.rows.components["accuracy"].reshape(-1, 4).mean(axis=1))


def test_refills_draw_other_problems_and_other_completions(steps) -> None:
    _, outcomes = steps
    refilled = next(outcome for outcome in outcomes if outcome.metrics["refills"])
    prompts = [problem.prompt for problem in refilled.sampled.problems]
    assert prompts[:4] != prompts[4:8]
    completions = refilled.sampled.rows.tokens * refilled.sampled.rows.completion_mask
    assert not np.array_equal(completions[:16], completions[16:32])


def test_the_same_seed_repeats_to_the_bit(steps) -> None:
    run, outcomes = steps
    again = tiny_runs.Steps(run.config)
    for outcome in outcomes:
        other = again.next()
        assert other.metrics == outcome.metrics
        jax.tree.map(np.testing.assert_array_equal, other.trained.rows, outcome.trained.rows)
    jax.tree.map(np.testing.assert_array_equal, again.state.params, run.state.params)


def test_refills_leave_the_first_rollouts_where_they_were(steps, tmp_path) -> None:
    """What a step draws first does not depend on how often the steps before were refilled."""
    _run, outcomes = steps
    plain = tiny_runs.Steps(tiny_runs.load(tmp_path, "grpo.groups.dead=drop", REFILL[1]))
    for outcome in outcomes:
        first = [problem.prompt for problem in outcome.sampled.problems[:4]]
        assert [problem.prompt for problem in plain.next().sampled.problems] == first


def test_the_limit_is_kept_and_what_is_missing_is_left_out(tmp_path) -> None:
    run = tiny_runs.Steps(
        tiny_runs.load(tmp_path, REFILL[0], "rewards.accuracy=tiny_runs:hopeless", "grpo.groups.max_refills=1")
    )
    before = jax.device_get(run.state.params)
    outcome = run.next()
    assert outcome.metrics["refills"] == 1 and outcome.metrics["groups_missing"] == 4
    assert outcome.metrics["groups_filtered"] == 8 and outcome.metrics["tokens"] == 0
    # The format differs within groups, so that the rewards do; groups are chosen by accuracy all the same.
    assert outcome.metrics["frac_zero_std"] < 1 and not live_groups(outcome).any()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(run.state.params), before)


def test_a_group_that_only_fills_the_shape_has_no_part_in_the_statistics_of_the_batch(tmp_path) -> None:
    """REINFORCE++ takes mean and deviation over the batch: over the groups that are trained on, not over the others."""
    options = (*REFILL, "grpo.groups.max_refills=1", "grpo.advantage.estimator=reinforce_pp", "grpo.kl_coef=0")
    run = tiny_runs.Steps(tiny_runs.load(tmp_path, *options))
    missing = 0
    for _ in range(12):
        outcome = run.next()
        missing += outcome.metrics["groups_missing"]
        kept = np.repeat(informative(outcome.trained.rows.components["accuracy"], 4), 4)
        rewards = outcome.trained.rows.reward.astype(np.float64)
        expected = np.where(kept, (rewards - rewards[kept].mean()) / (rewards[kept].std() + 1e-6), 0)
        np.testing.assert_allclose(outcome.advantages.advantages_B, expected, atol=1e-5)
    assert missing, "every step found enough groups: the test has no object"


def test_refills_take_problems_that_are_new_to_the_step_while_a_short_list_has_any(tmp_path) -> None:
    """Of 30 problems three rollouts of four are twelve different ones; drawn independently they would often repeat."""
    lines = [f'{{"question": "{number}+1", "answer": "{number + 1}"}}\n' for number in range(10, 43)]
    (tmp_path / "train.jsonl").write_text("".join(lines[:30]))
    (tmp_path / "heldout.jsonl").write_text("".join(lines[30:]))
    data = ("data.task=jsonl", f"data.path={tmp_path / 'train.jsonl'}", f"data.heldout_path={tmp_path / 'heldout.jsonl'}")
    alphabet = f"data.tokenizer.alphabet={ALPHABET}"
    options = (*data, alphabet, REFILL[0], "rewards.accuracy=tiny_runs:hopeless", "grpo.groups.max_refills=2")
    run = tiny_runs.Steps(tiny_runs.load(tmp_path, *options))
    for _ in range(5):
        keys = [problem.key for problem in run.next().sampled.problems]
        assert len(keys) == 12 and len(set(keys)) == 12


def test_chunks_change_neither_completions_nor_rewards(tmp_path) -> None:
    whole = tiny_runs.Steps(tiny_runs.load(tmp_path)).next().sampled
    for chunks in (2, 4):
        parts = tiny_runs.Steps(tiny_runs.load(tmp_path, f"rollout.chunks={chunks}")).next().sampled
        assert parts.problems == whole.problems and parts.inputs == whole.inputs
        for name, values in whole.rows._asdict().items():
            jax.tree.map(np.testing.assert_array_equal, getattr(parts.rows, name), values)


def test_chunks_are_judged_one_after_the_other(tmp_path) -> None:
    """The pool judges the rows of a chunk before those of the next, and the results come in the rows' order."""
    config = tiny_runs.load(tmp_path, "rollout.chunks=4", "rewards.accuracy=test_rollouts:when", "rewards.pool.workers=1")
    run = tiny_runs.Steps(config)
    with run.experiment.reward as reward:
        reward.check()
        run.next()
        judged = run.next().sampled.rows.components["accuracy"].reshape(4, 4)
    assert (judged[1:].min(axis=1) > judged[:-1].max(axis=1)).sum() >= 2, judged  # one may stand where 100 s are full


def when(row) -> float:
    """Seconds since the machine started."""
    return time.monotonic() % 100  # float32 tells microseconds apart


def test_chunks_that_do_not_divide_the_prompts_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"rollout\.chunks is 3, but it must divide grpo.prompts, 4"):
        check(tiny_runs.load(tmp_path, "rollout.chunks=3"))
