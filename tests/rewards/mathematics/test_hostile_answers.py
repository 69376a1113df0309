"""hostile_answers.jsonl: completions that try to score, to hang or to break out. None of them does."""

import json
import os
import time
from pathlib import Path

import pytest

from grpo_jax.rewards import EXTRACTORS, RewardInput
from grpo_jax.rewards.mathematics import accuracy_reward, guard, math_reward

CASES = [json.loads(line) for line in Path(__file__).with_name("hostile_answers.jsonl").read_text().splitlines()]
REWARD = math_reward()


def score(completion, reference, reward=REWARD):
    return reward(RewardInput(prompt="", completion=completion, reference=reference, ids=(), end="eos"))


def completion(case):
    """The case's text, its marks replaced by what they stand for, so that a megabyte is one short line."""
    text = case["completion"]
    for mark, (repeated, times) in case.get("repeat", {}).items():
        text = text.replace(mark, repeated * times)
    return text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_hostile_answer_scores_nothing_and_takes_no_time(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert score(r"\boxed{y+y}", "2y") == 1, "the answer before, which starts the worker on its own time"
    text = completion(case)
    started, by_the_clock = time.process_time(), time.monotonic()
    assert score(text, case["reference"]) == 0
    assert time.process_time() - started < 1, "the verifier's own process is not to wait or compute"
    assert time.monotonic() - by_the_clock < 30 * guard.TIME_LIMIT + 60
    assert list(tmp_path.iterdir()) == []


def test_the_next_honest_answer_scores_after_every_hostile_one():
    assert score(r"So it is \boxed{x+x+y}.", "2x+y") == 1
    assert score("<answer>42</answer>", "42") == 1


@pytest.mark.skipif(not os.path.exists(f"/proc/self/task/{os.getpid()}/children"), reason="looks for processes in /proc")
def test_one_worker_and_no_other_process_is_left():
    score(r"\boxed{y+y}", "2y")
    tasks = Path("/proc/self/task").iterdir()
    children = {pid for task in tasks for pid in (task / "children").read_text().split()}
    workers = [pid for pid in children if b"guard_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert workers == [str(guard.shared().pid)]


def test_there_are_hostile_answers_of_every_kind():
    assert len(CASES) >= 60
    assert len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] == "slow pattern"], ids=lambda case: case["name"])
@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_no_text_slows_an_extractor_down(case, extractor):
    text, reward = completion(case), accuracy_reward(EXTRACTORS[extractor])
    started = time.process_time()
    score(text, "987654321", reward)
    assert time.process_time() - started < 1
