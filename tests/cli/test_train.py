"""`python train.py` prints what it would run, refuses what it cannot with one line, and starts no device for either."""

import errno
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import grpo_jax.training.loop
from grpo_jax.checkpoint import CheckpointError
from grpo_jax.cli import train as cli
from grpo_jax.training import configfile
from grpo_jax.training.config import RunConfig
from grpo_jax.training.loop import Interrupted
from grpo_jax.training.run_directory import open_run

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "configs" / "smoke.yaml"


def printed(capsys: pytest.CaptureFixture[str], tmp_path: Path, *argv: str, default: Path = SMOKE) -> RunConfig:
    """The configuration that --print_config prints, loaded again."""
    assert cli.main([*argv, "--print_config"], default_config=default) == cli.FINISHED
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    return configfile.load(path)


def test_printed_configuration_is_the_resolved_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = configfile.load(SMOKE, [("grpo.kl_coef", "0.5"), ("mesh", "8x8")])
    assert printed(capsys, tmp_path, "--grpo.kl_coef", "0.5", "--mesh", "8x8") == expected


def test_named_configuration_takes_the_place_of_the_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    named = ROOT / "configs" / "arithmetic.yaml"
    assert printed(capsys, tmp_path, "--config", str(named)) == configfile.load(named)


def test_run_is_resumed_by_its_directory_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    saved = configfile.load(SMOKE, [("run_dir", run), ("seed", "7")])
    with open_run(saved, resume=False):
        pass
    assert printed(capsys, tmp_path, "--resume", "--run_dir", run) == saved
    # The default configuration's own run_dir counts as well.
    default = tmp_path / "default.yaml"
    default.write_text(f"run_dir: {run}\n")
    assert printed(capsys, tmp_path, "--resume", default=default) == saved
    assert printed(capsys, tmp_path, "--resume", "--run_dir", run, "--grpo.steps", "9").grpo.steps == 9


def test_recipe_goes_over_the_file_and_under_the_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = printed(capsys, tmp_path, "--recipe", "dapo", "--grpo.minibatches", "2")
    assert config == configfile.load(SMOKE, [("grpo.minibatches", "2")], "dapo")
    assert config.grpo.policy.term == "dapo" and config.grpo.minibatches == 2


def test_unknown_recipe_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--recipe", "dapoo"], default_config=SMOKE) == cli.REFUSED
    assert "nearest is dapo" in capsys.readouterr().err


def test_recipe_named_again_to_resume_must_continue_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    begun = ["--recipe", "gspo", "--grpo.minibatches", "2", "--run_dir", run]
    saved = printed(capsys, tmp_path, *begun)
    with open_run(saved, resume=False):
        pass
    assert printed(capsys, tmp_path, "--resume", "--run_dir", run) == saved
    # The whole command line once more, with the file and without.
    assert printed(capsys, tmp_path, *begun, "--resume") == saved
    assert printed(capsys, tmp_path, *begun, "--resume", "--config", str(SMOKE)) == saved
    for other in (["--recipe", "dapo"], ["--recipe", "gspo"]):  # the second without the option that went over it
        assert cli.main([*other, "--resume", "--run_dir", run], default_config=SMOKE) == cli.REFUSED
        message = capsys.readouterr().err
        assert "--recipe" in message and "Leave --recipe out" in message and message.count("\n") == 1


def test_moved_run_is_resumed_where_it_lies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open_run(configfile.load(SMOKE, [("run_dir", str(tmp_path / "old"))]), resume=False):
        pass
    (tmp_path / "old").rename(tmp_path / "new")
    default = tmp_path / "default.yaml"
    default.write_text(f"run_dir: {tmp_path / 'new'}\n")
    assert printed(capsys, tmp_path, "--resume", default=default).run_dir == str(tmp_path / "new")


def test_refusal_is_one_line_on_standard_error_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--grpo.group_size", "1"], default_config=SMOKE) == cli.REFUSED
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: grpo.group_size is 1")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (CheckpointError("step 3 cannot be read"), cli.FAILED, "error: step 3 cannot be read"),
        (OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"), cli.FAILED, "disk is full: metrics.jsonl"),
        (Interrupted("stopped after step 3, which is saved"), cli.INTERRUPTED, "stopped after step 3"),
    ],
)
def test_failure_that_a_user_can_mend_is_told_without_a_traceback(
    error: Exception, status: int, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(config: RunConfig, *, resume: bool) -> Any:
        raise error

    monkeypatch.setattr(grpo_jax.training.loop, "train", fail)
    assert cli.main([], default_config=SMOKE) == status
    output = capsys.readouterr()
    assert word in output.out + output.err


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("a bug"), KeyError("x")])
def test_fault_of_the_program_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: RunConfig, *, resume: bool) -> Any:
        raise error

    monkeypatch.setattr(grpo_jax.training.loop, "train", fail)
    with pytest.raises(type(error)):
        cli.main([], default_config=SMOKE)


# Runs train.py as a program does, and then tells how many backends it has started: the number of virtual devices is
# fixed when a backend starts, so none must start before the mesh is known.
PROGRAM = """
import runpy, sys
import grpo_jax.training.loop
sys.argv = ["train.py", "--print_config"]
try:
    runpy.run_path(sys.path[0] + "/train.py", run_name="__main__")
except SystemExit as end:
    assert end.code == 0
from jax._src import xla_bridge
sys.exit(len(xla_bridge._backends))
"""


def test_train_py_takes_the_arithmetic_run_from_any_folder_and_starts_no_backend(tmp_path: Path) -> None:
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})" + PROGRAM]
    done = subprocess.run(program, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    (tmp_path / "printed.yaml").write_text(done.stdout)
    assert configfile.load(tmp_path / "printed.yaml") == configfile.load(ROOT / "configs" / "arithmetic.yaml")


def test_terminal_without_unicode_costs_characters_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert cli.main(["--help"]) == cli.FINISHED
    stdout.seek(0)
    assert "fsdp ? tensor" in stdout.read()
