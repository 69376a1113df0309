"""A run whose rewards are mathematics and programs: it trains, and however it is ended nothing of it stays."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from grpo_jax.rewards.code import CodeConfig, SandboxFault, check_sandbox

ROOT = Path(__file__).parents[2]
PR_SET_CHILD_SUBREAPER = 36

RUN = r"""
model: {vocab_size: 64, num_layers: 1, embed_dim: 16, mlp_dim: 16,
        mla: {num_heads: 2, kv_rank: 8, nope_dim: 4, rope_dim: 4, value_dim: 4}}
data:
  task: gsm8k
  path: PATH
  options: {solution_format: marked}
  tokenizer: {alphabet: "abcdefghijklmnopqrstuvwxyzTH0123456789 .,?=+-#\n"}
  max_prompt_tokens: 64
sft: {steps: 2, rows: 4}
grpo: {steps: STEPS, prompts: 4, group_size: 4, optimizer: {learning_rate: 1.0e-3}}
rollout: {max_completion_tokens: 32, chunks: 2}
rewards:
  accuracy: math
  format: hash_mark_once
  termination: eos
  gates: {format: accuracy}
  extras: {'reward_of_this_test:runs': 0.5}
  pool: {workers: 2, timeout: 30}
evaluation: {problems: 2, samples: 2, rows: 8}
checkpoint: {every: 2}
logging: {tensorboard: false, plots: false, samples_every: 0}
"""

# The program is the completion's length, and ENDLESS from the step on that a file says.
REWARD = """
import os
from pathlib import Path
from grpo_jax.rewards import CodeConfig, Limits, run_python

CONFIG = CodeConfig(limits=Limits(cpu_seconds=60, wall_seconds=60))

def runs(row):
    code = "while True: pass" if Path(__file__).with_name("endless").exists() else f"print({len(row.ids)} % 3)"
    return float(run_python(code, config=CONFIG).stdout)
"""


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> None:
    try:
        check_sandbox(CodeConfig())
    except SandboxFault as fault:
        if os.environ.get("CI"):
            pytest.fail(str(fault))
        pytest.skip(str(fault))


def write_run(folder: Path, steps: int) -> Path:
    lines = []
    for first in range(20, 60):
        question = f"Tom has {first} eggs and buys {first // 3}. How many has he?"
        total = first + first // 3
        working = f"{first}+{first // 3}=<<{first}+{first // 3}={total}>>{total}"
        lines.append({"question": question, "answer": f"{working}\n#### {total}"})
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "reward_of_this_test.py").write_text(REWARD)
    path = folder / "run.yaml"
    path.write_text(RUN.replace("PATH", str(folder / "problems.jsonl")).replace("STEPS", str(steps)))
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def start(folder: Path, config: Path, cache: Path) -> subprocess.Popen:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(folder),
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [sys.executable, "train.py", "--config", str(config), "--run_dir", str(folder / "run")],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = {int(child) for child in task.read_text().split()}
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children - found:
            found |= {child} | descendants(child)
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def adopted():
    """Orphans of what is started here become children of this process, where they can be found; yields the new ones."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    before = descendants(os.getpid())

    def new() -> set[int]:
        # What has ended and waits to be reaped has no command line any more.
        return {pid for pid in descendants(os.getpid()) - before if command_of(pid)}

    yield new
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def eventually(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_grpo_on_gsm8k_format_runs_end_to_end_and_leaves_nothing(tmp_path: Path, cache: Path, adopted) -> None:
    trainer = start(tmp_path, write_run(tmp_path, steps=3), cache)
    shown, _ = trainer.communicate(timeout=600)
    assert trainer.returncode == 0, shown
    assert eventually(lambda: not adopted(), 10), [command_of(pid) for pid in adopted()]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["phase"] == "grpo"]
    assert len(steps) == 3
    for record in steps:
        assert np.isfinite(record["loss"]) and record["accuracy_failed"] == 0 and record["format_gated"] >= 0
        assert record["reward_of_this_test:runs_failed"] == 0 and 0 <= record["reward_of_this_test:runs"] <= 2
    assert not (tmp_path / "run" / "reward_failures.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 75), (signal.SIGINT, 75)])
def test_a_run_that_is_ended_leaves_no_process(
    number: signal.Signals, status: int, tmp_path: Path, cache: Path, adopted
) -> None:
    trainer = start(tmp_path, write_run(tmp_path, steps=1000), cache)

    def ended() -> bool:
        return trainer.poll() is not None

    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        begun = eventually(lambda: ended() or (metrics.exists() and '"phase": "grpo"' in metrics.read_text()), 300)
        assert begun and not ended(), trainer.stdout.read()
        if number == signal.SIGKILL:
            (tmp_path / "endless").touch()  # so that sandboxes are at work when the trainer is ended
        assert eventually(lambda: any("bwrap" in command_of(pid) for pid in adopted()), 60)
        trainer.send_signal(number)
        assert trainer.wait(timeout=120) == status
        assert eventually(lambda: not adopted(), 15), [command_of(pid) for pid in adopted()]
    finally:
        trainer.kill()
        trainer.communicate()
