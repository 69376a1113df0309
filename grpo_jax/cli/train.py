"""`grpo train`, which is also `python train.py`: parse a configuration, make the devices, run."""

import errno
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_jax.checkpoint import CheckpointError
from grpo_jax.cli.options import Options, help_text, parse_options
from grpo_jax.parallel import is_first
from grpo_jax.training import configfile
from grpo_jax.training.config import RunConfig
from grpo_jax.training.run_directory import RunDirectory, check_continues
from grpo_jax.training.schema import ConfigError

FINISHED = 0
FAILED = 1
REFUSED = 2
# EX_TEMPFAIL of sysexits.h: not over, and worth another try, with --resume.
INTERRUPTED = 75


def main(argv: Sequence[str] | None = None, *, default_config: Path | None = None, program: str = "grpo train") -> int:
    """Runs a training; returns the exit status.

    A configuration that cannot be run, and a disk or checkpoint that fails, is one line on standard error. Anything
    else that goes wrong is a fault of the program and keeps its traceback.

    Args:
        argv: the options; None takes the process's own.
        default_config: the file to take where --config names none; None takes the defaults of the dataclasses.
        program: the name of the program in --help.

    Returns:
        0 finished, 1 failed, 2 refused the configuration, 75 stopped by a signal or an alarm after saving.
    """
    # A terminal that cannot show an arrow should cost the arrow, not the run.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        options = parse_options(sys.argv[1:] if argv is None else argv)
        if options.help:
            print(help_text(program))
            return FINISHED
        config = resolve(options, default_config)
        if options.print_config:
            print(configfile.dumped(config), end="")
            return FINISHED
        return _run(config, options.resume)
    except ConfigError as error:
        return _refused(REFUSED, str(error))
    except CheckpointError as error:
        return _refused(FAILED, str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _refused(
            FAILED,
            f"the disk is full: {error.filename or 'a file'} could not be written. What was saved is whole; free "
            "space and go on with --resume",
        )


def resolve(options: Options, default_config: Path | None) -> RunConfig:
    """The configuration that the options ask for.

    To resume, the configuration saved in the run's directory takes the place of the default one, so that a run is
    continued by its directory alone: `--resume --run_dir runs/x`. It holds what a recipe set; naming the recipe again
    is refused where it would make another run.

    Raises:
        ConfigError: it is not one that can be run.
    """
    if options.config is not None or not options.resume:
        return configfile.load(options.config or default_config, options.values, options.recipe)
    run_dir = configfile.read_run_dir(default_config, options.values)
    saved = RunDirectory(path=Path(run_dir)).config
    # The directory may have been moved since it was written; the run goes on where it lies now.
    values = [*options.values, ("run_dir", run_dir)]
    config = configfile.load(saved if saved.exists() else default_config, values, options.recipe)
    if options.recipe is not None and saved.exists():
        try:
            check_continues(configfile.load(saved), config)
        except ConfigError as error:
            raise ConfigError(
                f"{configfile.COMMAND_LINE}: --recipe {options.recipe} would make another run of the one to resume, whose "
                f"{saved} holds what it was begun with. Leave --recipe out: {error}"
            ) from error
    return config


def _run(config: RunConfig, resume: bool) -> int:
    # Imported here because neither --help nor --print_config has a use for all that a training needs.
    from grpo_jax.training.loop import Interrupted, train

    try:
        train(config, resume=resume)
    except Interrupted as stop:
        if is_first():
            print(stop)
        return INTERRUPTED
    return FINISHED


def _refused(status: int, message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
