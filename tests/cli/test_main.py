"""`grpo` lists its commands, runs the one asked for, and says which was meant."""

from pathlib import Path

import pytest

from grpo_jax.cli.main import COMMANDS, main

SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"], ["-h"]):
        assert main(argv) == 0
        output = capsys.readouterr().out
        assert all(command in output for command in COMMANDS)


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "'trian'" in (error := capsys.readouterr().err) and "Did you mean train?" in error


def test_command_gets_its_arguments_and_gives_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", str(SMOKE), "--seed", "-1"]) == 2
    assert "seed is -1" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    assert "grpo train" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["export", "--help"])
    assert end.value.code == 0 and "RUN_DIR" in capsys.readouterr().out.upper()
