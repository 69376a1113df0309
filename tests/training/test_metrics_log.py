"""The log keeps every finished line, cuts exactly what a resumed run does again, and never writes what JSON lacks."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.training.metrics_log import MetricsLog, read_records


def write_run(path: Path, steps: int = 5) -> None:
    with MetricsLog(path) as log:
        for step in range(1, steps + 1):
            log.write("grpo", step, 10 + step, {"reward": step / 2})


def test_each_record_is_one_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("sft", 1, 1, {"loss": np.float32(0.5), "rows": 3, "entropy": jnp.asarray(2.0), "kl": None})
        # Read while the log is open: every line is out at once.
        lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"phase": "sft", "step": 1, "total_step": 1, "loss": 0.5, "rows": 3, "entropy": 2.0, "kl": None}
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), jnp.asarray(jnp.inf)])
def test_what_is_not_finite_is_null(tmp_path: Path, value: float) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        record = log.write("grpo", 1, 1, {"kl": value})
    assert record["kl"] is None
    assert read_records(tmp_path / "metrics.jsonl") == [record]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("value", [np.zeros(2), "0.5", [1.0]])
def test_metric_that_is_no_number_is_refused_by_name(tmp_path: Path, value: object) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log, pytest.raises(TypeError, match="'length'"):
        log.write("grpo", 1, 1, {"length": value})  # type: ignore[dict-item]


def test_resumed_log_holds_exactly_the_steps_up_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_run(path)
    with MetricsLog(path, keep_through=13) as log:
        assert [record["total_step"] for record in log.records()] == [11, 12, 13]
        log.write("grpo", 4, 14, {"reward": 9.0})
    assert [(record["step"], record["reward"]) for record in read_records(path)] == [(1, 0.5), (2, 1.0), (3, 1.5), (4, 9.0)]


def test_new_log_forgets_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_run(path)
    with MetricsLog(path) as log:
        assert log.records() == []
    assert path.read_text() == ""


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_line_cut_short_by_a_kill_is_left_out_and_does_not_spoil_the_next(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    write_run(path, steps=3)
    path.write_bytes(path.read_bytes()[:-cut])
    with MetricsLog(path, keep_through=99) as log:
        log.write("grpo", 3, 13, {"reward": 1.5})
    assert [record["step"] for record in read_records(path)] == [1, 2, 3]


def test_last_line_of_zeros_as_a_power_cut_leaves_it_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_run(path, steps=2)
    path.write_bytes(path.read_bytes() + b"\0" * 16 + b"\n")
    assert [record["step"] for record in read_records(path)] == [1, 2]


def test_damage_in_the_middle_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_run(path, steps=3)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"phase": "grpo"}', lines[2]]) + "\n")
    with pytest.raises(ValueError, match="line 2"):
        read_records(path)


def test_step_logged_twice_counts_once_and_the_last_wins(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("grpo", 1, 1, {"reward": 0.0})
        log.write("grpo", 2, 2, {"reward": 0.0})
        log.write("grpo", 1, 1, {"reward": 1.0})
    assert [(record["step"], record["reward"]) for record in read_records(path)] == [(2, 0.0), (1, 1.0)]


def test_killed_process_has_left_every_step_that_it_had_logged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import sys, pathlib\n"
        "from grpo_jax.training.metrics_log import MetricsLog\n"
        "log = MetricsLog(pathlib.Path(sys.argv[1]))\n"
        "for step in range(1, 4): log.write('grpo', step, step, {'reward': 0.5})\n"
        "print('logged', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"logged\n"
        os.kill(process.pid, signal.SIGKILL)
    assert [record["step"] for record in read_records(path)] == [1, 2, 3]


def test_records_of_one_phase(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write("sft", 1, 1, {})
        log.write("evaluation", 0, 1, {})
        log.write("grpo", 1, 2, {})
        assert [record["phase"] for record in log.records("evaluation")] == ["evaluation"]


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    with MetricsLog(tmp_path / "metrics.jsonl", tensorboard=folder) as log:
        log.write("grpo", 1, 11, {"reward": 0.5, "kl": None})
    (events,) = folder.iterdir()
    scalars = list(tensorboard_scalars(events))
    assert scalars == [("grpo/reward", 11, 0.5)]


def test_resumed_tensorboard_purges_the_steps_done_again(tmp_path: Path) -> None:
    path, folder = tmp_path / "metrics.jsonl", tmp_path / "tensorboard"
    with MetricsLog(path, tensorboard=folder) as log:
        for step in (1, 2, 3):
            log.write("grpo", step, step, {"reward": 0.0})
    first = set(folder.iterdir())
    with MetricsLog(path, tensorboard=folder, keep_through=2) as log:
        log.write("grpo", 3, 3, {"reward": 1.0})
    (resumed,) = set(folder.iterdir()) - first
    assert session_starts(resumed) == [3]


def read_events(path: Path) -> list:
    """The events of a file in TFRecord framing: length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, events = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return events


def tensorboard_scalars(path: Path) -> list[tuple[str, int, float]]:
    return [(value.tag, event.step, value.simple_value) for event in read_events(path) for value in event.summary.value]


def session_starts(path: Path) -> list[int]:
    return [event.step for event in read_events(path) if event.HasField("session_log") and event.session_log.status == 1]
