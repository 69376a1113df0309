"""One run of two processes: it ends as a run of one does, stops when either is asked to, and is refused in one line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from finished_runs import final_arrays, records

from grpo_jax.parallel import (
    MeshShape,
    ensure_devices,
    from_first,
    gathered,
    is_first,
    place,
    start_hosts,
    to_host,
    together,
)
from grpo_jax.training import configfile
from grpo_jax.training.loop import train
from grpo_jax.training.run_directory import open_run

ROOT = Path(__file__).parents[2]

# Rows and parameters are split over all eight devices, four of which belong to each process. Short completions keep the
# exchanges between the processes few.
TINY = """
mesh: data=2,fsdp=4
model: {vocab_size: 32, num_layers: 1, embed_dim: 16, mlp_dim: 16,
        mla: {num_heads: 2, kv_rank: 8, nope_dim: 4, rope_dim: 4, value_dim: 4}}
data: {task: jsonl, path: PATH, options: {solution: solution}, max_prompt_tokens: 8,
       tokenizer: {alphabet: "0123456789+"}}
sft: {steps: 2, rows: 16}
grpo: {steps: 2, prompts: 4, group_size: 4, microbatches: 2, optimizer: {learning_rate: 1.0e-2}}
rollout: {max_completion_tokens: 8}
rewards: {accuracy: 'test_hosts:parity', pool: {workers: 0}}
evaluation: {problems: 4, samples: 2, rows: 8}
checkpoint: {every: 2, keep: 2}
logging: {samples_every: 2, samples_groups: 2, tensorboard: true, plots: false}
"""


def parity(row) -> float:
    """A reward that an untrained policy gets about every other time."""
    return float(sum(row.ids) % 2)


def config_file(folder: Path) -> Path:
    lines = [json.dumps({"question": f"{i}+{i}", "answer": 2 * i, "solution": f"{2 * i}"}) for i in range(10, 40)]
    (folder / "problems.jsonl").write_text("\n".join(lines))
    path = folder / "tiny.yaml"
    path.write_text(TINY.replace("PATH", str(folder / "problems.jsonl")))
    return path


def load(folder: Path, source: Path, *options: tuple[str, str]):
    return configfile.load(source, [("run_dir", str(folder / "run")), *options])


def environment(number: int, address: str, cache: Path) -> dict[str, str]:
    """Of one of two processes on this machine, which knows no cluster and no devices but those of its command."""
    own = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    return own | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(number),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}",
    }


@contextlib.contextmanager
def two_hosts(cache: Path, *options: str) -> Iterator[list[subprocess.Popen]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes: list[subprocess.Popen] = []
    try:
        for number in (0, 1):
            processes.append(
                subprocess.Popen(
                    [sys.executable, "train.py", *options],
                    cwd=ROOT,
                    env=environment(number, address, cache),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# What gloo, the transport between CPU processes, prints by itself. Its threads write at once and piece by piece, so that a
# line of one can stand in the middle of another's; the numbers are pieces too.
GLOO = re.compile(
    r"\[Gloo\] Rank |is connected to |peer ranks\. |Expected number of connected peer ranks is : "
    r"|(?<![\w/.,=])[0-9]+(?![\w/.,=])"
)


def without_gloo(output: str) -> str:
    """The lines that hold more than pieces of gloo's."""
    return "\n".join(line for line in output.splitlines() if GLOO.sub("", line).strip())


def ends(processes: list[subprocess.Popen], timeout: float = 1200) -> list[tuple[int, str]]:
    """Exit status of each, and what it printed besides gloo's lines."""
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    return [(process.returncode, without_gloo(text)) for process, text in zip(processes, outputs, strict=True)]


def test_pieces_of_gloo_are_left_out_and_nothing_else() -> None:
    tail = " peer ranks. Expected number of connected peer ranks is : 3"
    torn = f"[Gloo] Rank 1[Gloo] Rank  is connected to 01 is connected to 3{tail}\n3"
    assert without_gloo(f"[Gloo] Rank 1 is connected to 3{tail}\n{torn}") == ""
    assert without_gloo(f"{torn}\ngrpo 2/2\nwriting to /run/3") == "grpo 2/2\nwriting to /run/3"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory):
    """The configuration file, and the final arrays and records of a run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    source = config_file(folder)
    config = load(folder, source)
    train(config)
    return source, final_arrays(config), records(Path(config.run_dir))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def assert_same_arrays(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for path in expected:
        np.testing.assert_allclose(found[path], expected[path], atol=1e-5, rtol=0, err_msg=path)


@pytest.mark.slow
def test_two_hosts_end_as_one(alone, cache: Path, tmp_path: Path) -> None:
    source, arrays, log = alone
    run_dir = tmp_path / "run"
    with two_hosts(cache, "--config", str(source), "--hosts", "2", "--run_dir", str(run_dir)) as processes:
        (first, shown), (second, silent) = ends(processes)
    assert (first, second) == (0, 0), (shown, silent)
    assert "grpo 2/2" in shown and not silent
    assert_same_arrays(final_arrays(load(tmp_path, source)), arrays)

    def steps(of: list[dict]) -> list[tuple]:
        return [(record["phase"], record["step"], record["total_step"]) for record in of]

    found = records(run_dir)
    assert steps(found) == steps(log)
    timed = re.compile(r"seconds|tokens_per_second|peak_memory")
    for mine, other in zip(found, log, strict=True):
        for name in (name for name in other if not timed.search(name)):
            assert mine[name] == pytest.approx(other[name], abs=1e-4), (name, mine["phase"], mine["step"])
    assert any(record["phase"] == "grpo" and record["grad_norm"] > 1e-3 for record in log), "nothing was learnt"
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "finished"
    assert len(list((run_dir / "tensorboard").iterdir())) == 1
    assert sorted(path.name for path in (run_dir / "samples").iterdir()) == ["step_000001.md", "step_000002.md"]


@pytest.mark.slow
def test_a_signal_to_either_host_stops_both_and_one_host_goes_on(alone, cache: Path, tmp_path: Path) -> None:
    source, arrays, log = alone
    run_dir = tmp_path / "run"
    with two_hosts(cache, "--config", str(source), "--hosts", "2", "--run_dir", str(run_dir)) as processes:
        deadline = time.monotonic() + 1200
        path = run_dir / "metrics.jsonl"
        while not path.exists() or not path.read_text().strip():
            assert all(process.poll() is None for process in processes), ends(processes)
            assert time.monotonic() < deadline, "the run makes no progress"
            time.sleep(0.002)
        processes[1].send_signal(signal.SIGTERM)
        (first, shown), (second, silent) = ends(processes)
    assert (first, second) == (75, 75), (shown, silent)
    assert "stopped by SIGTERM" in shown and "--resume" in shown and not silent
    done = records(run_dir)[-1]["total_step"]
    assert (run_dir / "checkpoints" / str(done)).is_dir() and done < log[-1]["total_step"]
    config = load(tmp_path, source)
    train(config, resume=True)
    assert_same_arrays(final_arrays(config), arrays)
    assert [record["total_step"] for record in records(run_dir)] == [record["total_step"] for record in log]


@pytest.mark.slow
def test_what_one_host_refuses_ends_both(cache: Path, tmp_path: Path) -> None:
    source = config_file(tmp_path)
    config = load(tmp_path, source)
    options = ("--config", str(source), "--hosts", "2", "--run_dir", config.run_dir)
    with open_run(config, resume=False), two_hosts(cache, *options) as processes:
        outcome = ends(processes, timeout=600)
    for status, text in outcome:
        assert status == 2 and text.startswith("error: run_dir is") and "another process" in text, outcome
        assert text.count("\n") == 0, text


@pytest.mark.slow
def test_hosts_that_do_not_come_are_one_line(tmp_path: Path) -> None:
    program = "from grpo_jax.parallel import start_hosts\nstart_hosts(2, timeout=3)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(1, "127.0.0.1:1", tmp_path),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 2
    assert "error: hosts is 2, but not all of the 2 processes were there within 3 seconds" in done.stderr
    assert "JAX_COORDINATOR_ADDRESS=HOST:PORT" in done.stderr and "stack trace" not in done.stderr


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("JAX_NUM_PROCESSES", "3", r"hosts is 2, but JAX_NUM_PROCESSES is 3: the two must agree\. Start the same command"),
        ("JAX_NUM_PROCESSES", "two", r"JAX_NUM_PROCESSES is 'two', but it must be a whole number"),
        ("JAX_PROCESS_ID", "2", r"hosts is 2, but JAX_PROCESS_ID is 2: it must be from 0 to 1"),
    ],
)
def test_a_wrong_number_is_refused(monkeypatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message) as refused:
        start_hosts(2)
    assert "\n" not in str(refused.value)


def test_a_mesh_that_the_hosts_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mesh fsdp=8 covers 8 devices, but 3 hosts cannot take equally many"):
        ensure_devices(MeshShape.parse("8"), 3)


def test_more_hosts_than_processes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hosts is 2, but 1 processes found each other: set hosts to"):
        ensure_devices(MeshShape.parse("8"), 2)


def test_one_process_exchanges_nothing(monkeypatch) -> None:
    def never(*arguments, **options):
        raise AssertionError("one process has nobody to ask")

    monkeypatch.setattr("jax.experimental.multihost_utils.process_allgather", never)
    monkeypatch.setattr(jax.distributed, "initialize", never)
    start_hosts(1)
    assert is_first() and gathered({"a": 1}) == [{"a": 1}] and from_first("b") == "b"
    with pytest.raises(KeyError), together():
        raise KeyError("c")
    array = place(np.arange(4), None)
    assert isinstance(to_host([array])[0], np.ndarray) and to_host([array])[0].tolist() == [0, 1, 2, 3]
