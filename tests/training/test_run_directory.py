"""A run's directory is begun, refused and continued by its rules, and written to by one process at a time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_jax.training import configfile
from grpo_jax.training.config import RunConfig
from grpo_jax.training.run_directory import MAY_CHANGE, check_continues, open_run
from grpo_jax.training.schema import ConfigError

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"


def smoke(run_dir: Path, *options: tuple[str, str]) -> RunConfig:
    return configfile.load(SMOKE, [("run_dir", str(run_dir)), *options])


def begun(run_dir: Path, *, checkpoint: bool) -> RunConfig:
    """A run that has left files, and a checkpoint if asked for."""
    config = smoke(run_dir)
    with open_run(config, resume=False) as directory:
        directory.metrics.write_text('{"phase": "sft", "step": 1, "total_step": 1}\n')
        (directory.samples / "step_000001.md").write_text("old")
        if checkpoint:
            (directory.checkpoints / "2").mkdir(parents=True)
        else:
            (directory.checkpoints / "2.orbax-checkpoint-tmp").mkdir(parents=True)
    return config


def test_new_run_saves_a_configuration_that_loads_as_itself(tmp_path: Path) -> None:
    config = smoke(tmp_path / "deep" / "run", ("grpo.kl_coef", "0.5"))
    with open_run(config, resume=False) as directory:
        assert configfile.load(directory.config) == config


def test_run_with_checkpoints_is_not_overwritten(tmp_path: Path) -> None:
    config = begun(tmp_path / "run", checkpoint=True)
    with pytest.raises(ConfigError, match=r"--resume.*--run_dir"), open_run(config, resume=False):
        pass
    assert (tmp_path / "run" / "metrics.jsonl").read_text() != ""
    assert (tmp_path / "run" / "samples" / "step_000001.md").exists()


def test_run_without_a_whole_checkpoint_is_begun_afresh(tmp_path: Path) -> None:
    config = begun(tmp_path / "run", checkpoint=False)
    with open_run(config, resume=False) as directory:
        assert not directory.metrics.exists()
        assert list(directory.samples.iterdir()) == []
        assert not directory.checkpoints.exists()


def test_resumed_run_keeps_what_is_there(tmp_path: Path) -> None:
    config = begun(tmp_path / "run", checkpoint=True)
    with open_run(config, resume=True) as directory:
        assert directory.metrics.read_text() != ""
        assert directory.has_checkpoint


def test_directory_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"samples, thesis\.tex"), open_run(smoke(tmp_path), resume=False):
        pass
    assert (tmp_path / "thesis.tex").exists() and (tmp_path / "samples").exists()


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to resume"), open_run(smoke(tmp_path / "run"), resume=True):
        pass
    assert not (tmp_path / "run").exists()


def test_run_killed_while_it_began_can_be_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text("1\n")
    (run / ".config.yaml.abc.tmp").write_text("seed: ")
    with open_run(smoke(run), resume=True) as directory:
        assert directory.config.exists()


def test_resuming_checkpoints_without_a_configuration_is_refused(tmp_path: Path) -> None:
    config = begun(tmp_path / "run", checkpoint=True)
    (tmp_path / "run" / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"no config\.yaml"), open_run(config, resume=True):
        pass


def test_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="run_dir"), open_run(smoke(tmp_path / "run"), resume=False):
        pass


def test_error_of_the_run_itself_passes_through(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="a reward's"), open_run(smoke(tmp_path / "run"), resume=False):
        raise PermissionError("a reward's")


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", "1"), ("grpo.kl_coef", "0.5"), ("model.num_layers", "4"), ("sft.steps", "9"), ("evaluation.samples", "4")],
)
def test_resumed_run_may_not_become_another(tmp_path: Path, key: str, value: str) -> None:
    saved, changed = smoke(tmp_path), smoke(tmp_path, (key, value))
    with pytest.raises(ConfigError, match=rf"^{key} is .*resume"):
        check_continues(saved, changed)


@pytest.mark.parametrize(
    ("key", "value"),
    [("grpo.steps", "9"), ("mesh", "8"), ("logging.plots", "false"), ("checkpoint.every", "7"), ("model.remat", "full")],
)
def test_resumed_run_may_change_what_changes_no_result(tmp_path: Path, key: str, value: str) -> None:
    check_continues(smoke(tmp_path), smoke(tmp_path, (key, value)))


def test_run_on_a_schedule_is_not_prolonged(tmp_path: Path) -> None:
    options = [("grpo.optimizer.schedule", "cosine"), ("grpo.optimizer.end_fraction", "0.1")]
    with pytest.raises(ConfigError, match=r"grpo\.steps is 9.*cosine"):
        check_continues(smoke(tmp_path, *options), smoke(tmp_path, *options, ("grpo.steps", "9")))


def test_tests_that_a_curriculum_advances_on_stay_where_they_are(tmp_path: Path) -> None:
    options = [("data.curriculum.mode", "sequential"), ("evaluation.sft_every", "2"), ("evaluation.every", "2")]
    check_continues(smoke(tmp_path, ("evaluation.every", "2")), smoke(tmp_path, ("evaluation.every", "3")))
    with pytest.raises(ConfigError, match=r"evaluation\.every is 3, but the run to resume has 2.*curriculum"):
        check_continues(smoke(tmp_path, *options), smoke(tmp_path, *options, ("evaluation.every", "3")))


def test_every_key_that_may_change_exists() -> None:
    from grpo_jax.training import schema

    assert set(MAY_CHANGE) <= {key.path for key in schema.keys(RunConfig)}


HOLD = """
import sys
from pathlib import Path
from grpo_jax.training import configfile
from grpo_jax.training.run_directory import open_run
with open_run(configfile.load(Path(sys.argv[1]), [("run_dir", sys.argv[2])]), resume=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_never_write_to_one_directory_and_a_kill_frees_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(SMOKE), str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        for resume in (False, True):
            with pytest.raises(ConfigError, match=f"pid {process.pid}"), open_run(smoke(run), resume=resume):
                pass
        os.kill(process.pid, signal.SIGKILL)
    with open_run(smoke(run), resume=True):
        pass


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_run_whose_coefficients_follow_the_number_of_steps_is_not_prolonged(tmp_path: Path, kind: str) -> None:
    options = [("schedules.kl_coef.kind", kind)]
    with pytest.raises(ConfigError, match=r"grpo\.steps is 9, .*schedules\.kl_coef\.kind"):
        check_continues(smoke(tmp_path, *options), smoke(tmp_path, *options, ("grpo.steps", "9")))
    options.append(("schedules.kl_coef.steps", "2"))
    check_continues(smoke(tmp_path, *options), smoke(tmp_path, *options, ("grpo.steps", "9")))
