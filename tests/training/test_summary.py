"""The summary says what the log says, in exactly the keys that docs/runs.md describes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grpo_jax.evaluation.scores import StageScore, to_metrics
from grpo_jax.training import configfile
from grpo_jax.training.summary import Summary, heldout_scores, summarize

ROOT = Path(__file__).parents[2]
STAGES = ("addition", "subtraction")


def scores(accuracy: float) -> dict[str, StageScore]:
    return {
        stage: StageScore(
            sampled_accuracy=accuracy + index / 10, greedy_accuracy=accuracy, mean_length=20.0, termination_rate=1.0
        )
        for index, stage in enumerate(STAGES)
    }


def evaluation_record(step: int, accuracy: float) -> dict[str, Any]:
    return {
        "phase": "evaluation",
        "step": step,
        "total_step": 2 + step,
        "seconds/evaluation": 3.0,
        **to_metrics(scores(accuracy)),
    }


SFT = [
    {"phase": "sft", "step": 1, "total_step": 1, "tokens": 100, "seconds/sft": 1.0, "seconds/compile": 4.0},
    {"phase": "sft", "step": 2, "total_step": 2, "tokens": 300, "seconds/sft": 1.0, "seconds/compile": 0.0},
]
GRPO = [
    {
        "phase": "grpo",
        "step": step,
        "total_step": 2 + step,
        "completion_tokens": 60,
        "seconds/rollout": 1.0,
        "seconds/reward": 0.5,
        "seconds/score": 0.5,
        "seconds/update": 2.0,
        "seconds/compile": 0.25,
    }
    for step in (1, 2)
]
RECORDS = [*SFT, evaluation_record(0, 0.4), GRPO[0], evaluation_record(1, 0.6), GRPO[1], evaluation_record(2, 0.8)]


def summary(records: list[dict[str, Any]] = RECORDS) -> Summary:
    config = configfile.load(ROOT / "configs" / "smoke.yaml")
    return summarize(config, records, status="finished", parameters=1234)


def leaves(document: Any, prefix: str = "") -> set[str]:
    if not isinstance(document, dict):
        return {prefix}
    return set().union(*(leaves(value, f"{prefix}.{key}" if prefix else key) for key, value in document.items()))


def test_written_keys_are_the_documented_ones(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    section = text.split("## summary.json")[1].split("\n## ")[0]
    documented = {
        key for line in section.splitlines() if (found := re.match(r"\| `(.+?)` \|", line)) for key in found.groups()
    }
    # The two tests are documented as wholes too, because they may be null.
    documented -= {"after_sft", "after_grpo"}
    summary().write(tmp_path / "summary.json")
    document = json.loads((tmp_path / "summary.json").read_text())
    written = {re.sub("|".join(STAGES), "STAGE", key) for key in leaves(document)}
    assert written == documented


def test_scores_are_those_before_and_after_grpo() -> None:
    document = summary().document()
    assert document["after_sft"]["stages"]["addition"]["sampled_accuracy"] == 0.4
    assert document["after_grpo"]["stages"]["subtraction"]["sampled_accuracy"] == pytest.approx(0.9)
    assert document["after_grpo"]["mean"]["sampled_accuracy"] == pytest.approx(0.85)
    assert document["after_grpo"]["mean"]["greedy_accuracy"] == pytest.approx(0.8)


def test_seconds_add_up_over_all_records() -> None:
    seconds = summary().seconds
    parts = {"sft": 2.0, "rollout": 2.0, "reward": 1.0, "score": 1.0, "update": 4.0, "evaluation": 9.0, "compile": 4.5}
    assert seconds == {**parts, "total": 23.5}


def test_tokens_per_second_weigh_steps_by_their_time() -> None:
    assert summary().tokens_per_second == {"sft": 200.0, "rollout": 60.0, "grpo": 15.0}


def test_interrupted_run_has_nulls_for_what_it_did_not_reach(tmp_path: Path) -> None:
    partial = summary(SFT)
    assert partial.after_sft is None and partial.after_grpo is None
    assert partial.steps == {"sft": 2, "grpo": 0}
    assert partial.tokens_per_second == {"sft": 200.0, "rollout": None, "grpo": None}
    partial.write(tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text())["after_grpo"] is None


def test_run_without_tests_before_grpo_has_none() -> None:
    assert heldout_scores([evaluation_record(2, 0.8)])[0] is None
