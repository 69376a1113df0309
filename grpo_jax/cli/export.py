"""`grpo export RUN_DIR --output DIR`: the parameters of a run, alone, as a checkpoint that loads without training code."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_jax.checkpoint import CheckpointError, RunCheckpoints, export_params, read_model_json
from grpo_jax.cli.train import FAILED, FINISHED, REFUSED
from grpo_jax.data import Tokenizer
from grpo_jax.training import configfile
from grpo_jax.training.config import RunConfig
from grpo_jax.training.policy import build_policy
from grpo_jax.training.position import Position
from grpo_jax.training.run_directory import RunDirectory
from grpo_jax.training.schema import ConfigError
from grpo_jax.types import Params


def main(argv: Sequence[str] | None = None) -> int:
    """Exports; returns the exit status: 0 done, 1 failed, 2 not given what it needs."""
    arguments = _parser().parse_args(argv)
    try:
        folder, step = export(arguments.run_dir, arguments.output, step=arguments.step)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    except (CheckpointError, FileNotFoundError, FileExistsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    print(f"parameters of step {step} written to {folder}; grpo_jax.checkpoint.load_exported reads them")
    return FINISHED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grpo export", description=__doc__, allow_abbrev=False)
    parser.add_argument("run_dir", type=Path, help="the directory of the run")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write; one without an export in it")
    parser.add_argument("--step", type=int, help="the total step of the checkpoint; the latest by default")
    return parser


def export(run_dir: Path, output: Path, *, step: int | None = None) -> tuple[Path, int]:
    """Writes the parameters of a run's checkpoint to `output`; returns the folder and the step.

    Args:
        run_dir: the run's directory. A training may be writing to it meanwhile.
        output: the folder to write.
        step: the checkpoint's total step; None takes the latest.

    Raises:
        ConfigError: there is no run in `run_dir`, or what its configuration names is no longer there.
        FileNotFoundError: the run has no such checkpoint.
        FileExistsError: `output` holds an export.
        CheckpointError: the checkpoint cannot be read, or is not of the run's configuration.
    """
    directory = RunDirectory(path=run_dir)
    # On one device, and without the problems: their file may be elsewhere by now.
    config = dataclasses.replace(configfile.load(directory.config), mesh="1")
    try:
        policy = build_policy(config)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"the policy of {run_dir} cannot be built: {error}") from error
    with RunCheckpoints(directory.checkpoints, read_only=True) as checkpoints:
        try:
            position = Position.from_json(checkpoints.read_host(step))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        restored = checkpoints.restore(policy.abstract_arrays(position), step)
    params: Params = restored.state["train"].params
    document = _tokenizer_document(policy.config, policy.tokenizer)
    return export_params(params, policy.model, output, tokenizer=document), restored.step


def _tokenizer_document(config: RunConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    if config.pretrained is not None and Path(config.pretrained.path).is_dir():
        # Of an export that was trained on: its own description, which outlives its folder.
        return dict(read_model_json(config.pretrained.path)["tokenizer"])
    return {
        "name": tokenizer.name,
        "fingerprint": tokenizer.fingerprint(),
        "eos_ids": list(tokenizer.eos_ids),
        "pretrained": None if config.pretrained is None else config.pretrained.path,
        **dataclasses.asdict(config.data.tokenizer),
    }


if __name__ == "__main__":
    sys.exit(main())
