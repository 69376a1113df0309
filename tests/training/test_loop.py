"""Whole runs of a tiny model: what they write, that nothing recompiles, and that stopping and resuming changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from finished_runs import final_arrays, records

from grpo_jax.checkpoint import RunCheckpoints
from grpo_jax.training import configfile
from grpo_jax.training.loop import train
from grpo_jax.training.schema import ConfigError

ROOT = Path(__file__).parents[2]

TINY = """
model: {vocab_size: 26, num_layers: 1, embed_dim: 16, mlp_dim: 16,
        mla: {num_heads: 2, kv_rank: 8, nope_dim: 4, rope_dim: 4, value_dim: 4}}
data: {max_prompt_tokens: 12}
sft: {steps: 8, rows: 8}
grpo: {steps: 6, prompts: 5, group_size: 4, microbatches: 2, groups: {dead: drop}, optimizer: {learning_rate: 1.0e-3}}
rollout: {max_completion_tokens: 46}
evaluation: {problems: 2, samples: 2, rows: 8, every: 3}
checkpoint: {every: 3, keep: 2}
logging: {samples_every: 2, samples_groups: 2, tensorboard: false, plots: false}
"""


def config_file(folder: Path, extra: str = "") -> Path:
    path = folder / "tiny.yaml"
    path.write_text(TINY + extra)
    return path


def load(folder: Path, *options: str, extra: str = ""):
    pairs = [tuple(option.split("=", 1)) for option in options]
    return configfile.load(config_file(folder, extra), [*pairs, ("run_dir", str(folder / "run"))])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs that the processes of this file share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, cache: Path):
    """The configuration of a run that was never stopped, in a process of its own, and its summary."""
    folder = tmp_path_factory.mktemp("finished")
    options = ("--logging.plots", "true", "--logging.tensorboard", "true", "--run_dir", str(folder / "run"))
    process = run_process(cache, "--config", str(config_file(folder)), *options)
    output = process.communicate(timeout=1200)[0].decode()
    assert process.returncode == 0, output
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return load(folder, "logging.plots=true", "logging.tensorboard=true"), summary


def test_a_run_writes_everything_it_promises(finished) -> None:
    config, summary = finished
    run_dir = Path(config.run_dir)
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "plots/overview.png", "samples/step_000002.md"):
        assert (run_dir / name).stat().st_size > 0, name
    assert list((run_dir / "tensorboard").iterdir())
    assert summary["status"] == "finished" and summary["after_sft"]
    assert set(summary["after_grpo"]["stages"]) == {"addition", "subtraction", "multiplication", "precedence", "parentheses"}
    assert configfile.load(run_dir / "config.yaml") == config
    sample = (run_dir / "samples" / "step_000002.md").read_text()
    assert "<user>" in sample and "advantage" in sample


def test_every_stage_is_tested_at_every_test(finished) -> None:
    config, _ = finished
    tests = [record for record in records(Path(config.run_dir)) if record["phase"] == "evaluation"]
    assert [record["step"] for record in tests] == [0, 3, 6]
    for record in tests:
        assert {key.split("/")[0] for key in record if key.endswith("/sampled_accuracy")} == set(build_stages(config))


def build_stages(config) -> tuple[str, ...]:
    from grpo_jax.data import make_task

    return make_task(config.data.task).stages


def test_time_of_a_grpo_step_is_split_into_its_phases(finished) -> None:
    config, summary = finished
    for record in records(Path(config.run_dir)):
        if record["phase"] == "grpo":
            assert all(record[f"seconds/{name}"] > 0 for name in ("rollout", "reward", "score", "update"))
    assert summary["seconds"]["rollout"] > 0 and summary["seconds"]["compile"] > 0


def test_nothing_recompiles_after_its_first_step(finished) -> None:
    """Seconds of compilation are counted by listening to XLA; a step that compiled would have some."""
    config, _ = finished
    for phase in ("sft", "grpo"):
        compiled = [record["seconds/compile"] for record in records(Path(config.run_dir)) if record["phase"] == phase]
        assert compiled[0] > 0 and not any(compiled[1:]), (phase, compiled)
    tests = [record["seconds/compile"] for record in records(Path(config.run_dir)) if record["phase"] == "evaluation"]
    assert tests[0] > 0 and not any(tests[1:])


def test_resuming_a_finished_run_changes_nothing(finished) -> None:
    config, summary = finished
    before = final_arrays(config)
    again = train(config, resume=True)
    after = final_arrays(config)
    assert again.document()["after_grpo"] == summary["after_grpo"]
    assert all(np.array_equal(before[path], after[path]) for path in before)


def run_process(cache: Path, *options: str) -> subprocess.Popen:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "train.py", *options], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_for_records(process: subprocess.Popen, run_dir: Path, count: int) -> None:
    path = run_dir / "metrics.jsonl"
    deadline = time.monotonic() + 1200
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_and_resumed_ends_as_never_stopped(finished, cache: Path, tmp_path: Path) -> None:
    """SIGKILL in SFT, SIGTERM and SIGKILL in GRPO, then to the end: the same parameters, moments and reference, bit for
    bit, the same log and the same scores."""
    config, summary = finished
    run_dir = tmp_path / "run"
    begin = ("--config", str(config_file(tmp_path)), "--run_dir", str(run_dir))
    go_on = ("--resume", "--run_dir", str(run_dir))

    # Eight steps of SFT, a test, six steps of GRPO with a test after the third and the last.
    for count, stop in ((5, signal.SIGKILL), (10, signal.SIGTERM), (12, signal.SIGKILL)):
        process = run_process(cache, *(begin if count == 5 else go_on))
        wait_for_records(process, run_dir, count)
        process.send_signal(stop)
        output = process.communicate(timeout=1200)[0].decode()
        if stop == signal.SIGTERM:
            assert process.returncode == 75 and "--resume" in output, output
        else:
            assert process.returncode == -signal.SIGKILL, output

    process = run_process(cache, *go_on)
    output = process.communicate(timeout=1200)[0].decode()
    assert process.returncode == 0, output

    expected, found = final_arrays(config), final_arrays(load(tmp_path))
    assert expected.keys() == found.keys()
    different = [path for path in expected if not np.array_equal(expected[path], found[path])]
    assert not different

    def comparable(path: Path) -> list[dict]:
        timed = re.compile(r"seconds|tokens_per_second|peak_memory")
        return [{key: value for key, value in record.items() if not timed.search(key)} for record in records(path)]

    assert comparable(run_dir) == comparable(Path(config.run_dir))
    assert json.loads((run_dir / "summary.json").read_text())["after_grpo"] == summary["after_grpo"]


def length_parity(row) -> float:
    """A reward that an untrained policy does not get every time."""
    return float(len(row.ids) % 2)


@pytest.mark.slow
def test_several_updates_per_rollout_are_scored_first(tmp_path: Path) -> None:
    extra = "rewards: {accuracy: 'test_loop:length_parity', pool: {workers: 0}}\n"
    options = ("grpo.updates_per_rollout=2", "grpo.steps=3", "evaluation.every=0")
    config = load(tmp_path, *options, extra=extra)
    train(config)
    last = [record for record in records(Path(config.run_dir)) if record["phase"] == "grpo"][-1]
    assert last["ratio_max"] != 1.0


def test_without_a_kl_term_no_reference_is_held(tmp_path: Path) -> None:
    config = load(tmp_path, "grpo.kl_coef=0", "grpo.steps=1", "evaluation.every=0")
    train(config)
    assert not [path for path in final_arrays(config) if "reference" in path]
    assert "kl" not in records(Path(config.run_dir))[-2]


def always_right(row) -> float:
    return 1.0


def test_sequential_curriculum_moves_on_and_survives_resumption(tmp_path: Path) -> None:
    extra = "rewards: {accuracy: 'test_loop:always_right', pool: {workers: 0}}\n"
    options = (
        "data.curriculum.mode=sequential",
        "data.curriculum.advance_at=0.5",
        "evaluation.sft_every=4",
        "evaluation.every=3",
        "checkpoint.keep=9",
    )
    config = load(tmp_path, *options, extra=extra)
    train(config)
    with RunCheckpoints(Path(config.run_dir) / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.read_host(3)["curriculum"]["level"] == 0
        assert checkpoints.read_host(6)["curriculum"]["level"] == 1
        assert checkpoints.read_host()["curriculum"]["level"] == 1
    stages = [
        {key for key in record if key.startswith("accuracy/")} for record in records(Path(config.run_dir))
        if record["phase"] == "grpo"
    ]  # fmt: skip
    assert stages[:3] == [{"accuracy/addition"}] * 3
    assert set().union(*stages[3:]) == {"accuracy/addition", "accuracy/subtraction"}


def test_a_run_does_not_go_on_with_other_problems(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    lines = [json.dumps({"question": f"{i}+{i}", "answer": 2 * i}) for i in range(10, 40)]
    path.write_text("\n".join(lines))
    options = ("data.task=jsonl", f"data.path={path}", "data.tokenizer.alphabet=0123456789+", "sft.steps=0")
    config = load(tmp_path, *options, "evaluation.every=0")
    train(config)
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(ConfigError, match="list of problems is another one"):
        train(config, resume=True)
    path.write_text("\n".join(lines))
    assert train(config, resume=True).status == "finished"


def test_prompts_wider_than_the_row_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = load(tmp_path, "data.max_prompt_tokens=5")
    with pytest.raises(ConfigError, match=r"data\.max_prompt_tokens is 5.*Set it to"):
        train(config)
    assert not Path(config.run_dir).exists()
