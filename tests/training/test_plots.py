"""Plots are drawn from whatever a log has: few points, gaps, missing phases."""

import struct
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import numpy as np
import pytest

from grpo_jax.evaluation.scores import StageScore, to_metrics
from grpo_jax.training.plots import PLOTS, smoothed, write_plots

SCORE = StageScore(sampled_accuracy=0.5, greedy_accuracy=0.6, mean_length=20.0, termination_rate=1.0)


def grpo(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "phase": "grpo",
        "step": step,
        "total_step": step,
        "reward": 0.5,
        "reward_std": 0.1,
        "accuracy": 0.4,
        "accuracy/addition": 0.4,
        "completion_length_mean": 20.0,
        "completion_length_min": 10,
        "completion_length_max": 30,
        "kl": 0.01,
        "entropy": 0.5,
        **changes,
    }


def evaluation(step: int, phase: str = "evaluation", stages: int = 1) -> dict[str, Any]:
    names = ["addition", *(f"stage {number}" for number in range(1, stages))]
    return {"phase": phase, "step": step, "total_step": step, **to_metrics(dict.fromkeys(names, SCORE))}


def sft(step: int) -> dict[str, Any]:
    return {"phase": "sft", "step": step, "total_step": step, "loss": 1.0 / step}


def names(files: list[Path]) -> set[str]:
    return {file.stem for file in files}


def size(path: Path) -> tuple[int, int]:
    """Width and height from the header of a PNG, which also says that it is one."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_whole_run_has_every_plot_and_one_overview(tmp_path: Path) -> None:
    records = [sft(1), sft(2), evaluation(1, "sft_evaluation"), evaluation(0), grpo(1), grpo(2), evaluation(2)]
    files = write_plots(tmp_path, records)
    assert files[0].name == "overview.png"
    assert names(files) == {"overview", *PLOTS}
    assert all(min(size(file)) > 300 for file in files)
    assert {path.name for path in tmp_path.iterdir()} == {file.name for file in files}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], set()),
        ([sft(1)], {"overview", "loss"}),
        ([evaluation(0)], {"overview", "accuracy"}),
        ([grpo(1, kl=None, entropy=None)], {"overview", "reward", "length"}),
    ],
)
def test_plots_without_data_are_left_out(records: list[dict[str, Any]], expected: set[str], tmp_path: Path) -> None:
    assert names(write_plots(tmp_path, records)) == expected


def test_gaps_and_shrinking_metrics_do_not_stop_a_plot(tmp_path: Path) -> None:
    records = [grpo(step, kl=None if step % 2 else 0.1, reward_std=None) for step in range(1, 60)]
    del records[5]["completion_length_max"]
    records[7]["reward"] = None
    write_plots(tmp_path, records)


def test_many_stages_are_told_apart(tmp_path: Path) -> None:
    write_plots(tmp_path, [evaluation(0, stages=12), evaluation(5, stages=12)])


def test_drawing_leaves_the_notebook_its_backend_and_style(tmp_path: Path) -> None:
    before = matplotlib.get_backend(), dict(matplotlib.rcParams)
    write_plots(tmp_path, [sft(1)])
    assert (matplotlib.get_backend(), dict(matplotlib.rcParams)) == before
    assert matplotlib.pyplot.get_fignums() == []


def test_short_series_are_not_smoothed() -> None:
    values = np.array([1.0, 5.0, np.nan, 2.0])
    np.testing.assert_array_equal(smoothed(values), values)


def test_smoothing_is_a_centred_mean_that_leaves_gaps_out() -> None:
    values = np.arange(100.0)
    np.testing.assert_allclose(smoothed(values)[2:-2], values[2:-2])
    values[50] = np.nan
    assert smoothed(values)[50] == pytest.approx((48 + 49 + 51 + 52) / 4)
