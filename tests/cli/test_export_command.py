"""`grpo export` writes a checkpoint's parameters, from either phase, so that they load without the training's state."""

import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from grpo_jax.checkpoint import RunCheckpoints, load_exported, read_model_json
from grpo_jax.cli.export import main
from grpo_jax.model import abstract_params
from grpo_jax.training import configfile
from grpo_jax.training.experiment import build_experiment
from grpo_jax.training.position import Position
from grpo_jax.training.run_directory import open_run
from grpo_jax.training.state import TrainState
from grpo_jax.types import Params

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Params]]:
    """A run with a checkpoint in SFT (step 1) and one in GRPO (step 3), and the parameters of each."""
    path = tmp_path_factory.mktemp("runs") / "run"
    config = configfile.load(SMOKE, [("run_dir", str(path))])
    experiment = build_experiment(config)
    rng = np.random.default_rng(0)
    abstract = abstract_params(experiment.policy.model)
    params, later = (
        jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), abstract) for _ in range(2)
    )
    with open_run(config, resume=False) as directory, RunCheckpoints(directory.checkpoints) as checkpoints:
        tokenizer = experiment.policy.tokenizer.fingerprint()
        position = Position.start("sft", experiment.task.stages, tokenizer=tokenizer, data="")
        checkpoints.save(1, {"train": TrainState.create(params, experiment.policy.sft_step_config)}, position.to_json())
        state = TrainState.create(later, experiment.policy.grpo_step_config)
        position = dataclasses.replace(position, phase="grpo", step=1, has_reference=True)
        checkpoints.save(3, {"train": state, "reference": params}, position.to_json())
    return path, {1: jax.device_get(params), 3: jax.device_get(later)}


@pytest.mark.parametrize(("options", "step"), [([], 3), (["--step", "1"], 1), (["--step", "3"], 3)])
def test_exported_parameters_are_those_of_the_checkpoint(
    run: tuple[Path, dict[int, Params]], options: list[str], step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, saved = run
    assert main([str(path), "--output", str(tmp_path / "out"), *options]) == 0
    assert f"step {step}" in capsys.readouterr().out
    model, params = load_exported(tmp_path / "out")
    assert model == configfile.load(SMOKE).model
    jax.tree.map(np.testing.assert_array_equal, params, saved[step])


def test_export_says_how_to_rebuild_the_tokenizer(run: tuple[Path, dict[int, Params]], tmp_path: Path) -> None:
    main([str(run[0]), "--output", str(tmp_path / "out")])
    document = read_model_json(tmp_path / "out")["tokenizer"]
    tokenizer = build_experiment(configfile.load(SMOKE)).policy.tokenizer
    assert document["name"] == "characters"
    assert document["fingerprint"] == tokenizer.fingerprint()
    assert document["eos_ids"] == list(tokenizer.eos_ids)


def test_what_cannot_be_exported_is_one_line(
    run: tuple[Path, dict[int, Params]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = run
    output = tmp_path / "out"
    assert main([str(tmp_path / "none"), "--output", str(output)]) == 2
    assert "config.yaml" in capsys.readouterr().err
    assert main([str(path), "--output", str(output), "--step", "2"]) == 1
    assert "step 2" in capsys.readouterr().err
    assert main([str(path), "--output", str(output)]) == 0
    capsys.readouterr()
    assert main([str(path), "--output", str(output)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and "exist" in error


def test_a_tokenizer_file_that_is_gone_is_one_line(
    run: tuple[Path, dict[int, Params]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    shutil.copytree(run[0], path)
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["data"]["tokenizer"] = {"path": "gone/tokenizer.json", "eos": ["</s>"]}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    assert main([str(path), "--output", str(tmp_path / "out")]) == 2
    assert "gone/tokenizer.json" in capsys.readouterr().err
