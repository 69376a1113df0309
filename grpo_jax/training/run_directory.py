"""The directory of a run: what lies where, who may write to it, and whether a run may begin or go on in it."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from grpo_jax.checkpoint.atomic import atomic_write
from grpo_jax.parallel import is_first, together
from grpo_jax.training import configfile, schema
from grpo_jax.training.config import RunConfig
from grpo_jax.training.schema import ConfigError

# What may differ when a run goes on. None of it changes what is computed, rounding apart, except grpo.steps, which
# changes how much of it, and monitor and on_alarm, which say what is done when it goes wrong. Everything else would make
# the run another run.
MAY_CHANGE = (
    "checkpoint",
    "evaluation.every",
    "evaluation.rows",
    "grpo.microbatches",
    "grpo.steps",
    "hosts",
    "logging",
    "logit_chunk",
    "mesh",
    "model.remat",
    "model.scan_unroll",
    "monitor",
    "on_alarm",
    "rewards.pool",
    "rollout.chunks",
    "run_dir",
    "sft.microbatches",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """The paths of a run's files; docs/runs.md says what each holds.

    Attributes:
        path: the directory.
    """

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def alarms(self) -> Path:
        return self.path / "alarms.jsonl"

    @property
    def reward_failures(self) -> Path:
        return self.path / "reward_failures.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def has_checkpoint(self) -> bool:
        """Whether a whole checkpoint lies here; unfinished ones have more in their name than a step's number."""
        return self.checkpoints.is_dir() and any(entry.name.isdecimal() for entry in self.checkpoints.iterdir())


@contextlib.contextmanager
def open_run(config: RunConfig, *, resume: bool) -> Iterator[RunDirectory]:
    """Makes or reopens `config.run_dir`, holds its lock, and saves the configuration in it.

    A run that begins clears what an earlier one without a checkpoint has left. A run that goes on needs a saved
    configuration, not a checkpoint: one stopped before its first checkpoint begins again. Of several processes the first
    does all this, and the others see to it that they have the same directory and the same configuration.

    Args:
        config: the run.
        resume: whether to go on with the run that lies there.

    Raises:
        ConfigError: the directory holds a run with checkpoints and `resume` is False; it holds something else than a
            run; it holds none and `resume` is True; `config` does not continue it; another process writes to it; it
            cannot be written to; or another host does not see it.
    """
    directory = RunDirectory(path=Path(config.run_dir))
    with contextlib.ExitStack() as stack:
        with together():
            if is_first():
                stack.enter_context(_written(directory, config, resume))
        with together():
            if not is_first():
                _check_shared(directory, config)
        yield directory


def _check_shared(directory: RunDirectory, config: RunConfig) -> None:
    try:
        shared = directory.config.read_text(encoding="utf-8") == configfile.dumped(config)
    except OSError:
        shared = False
    if not shared:
        raise ConfigError(
            f"run_dir is {config.run_dir!r}, but a host finds another config.yaml there than the one of its own command. "
            "Start the same command on every host, with a --run_dir on a file system that all hosts share"
        )


@contextlib.contextmanager
def _written(directory: RunDirectory, config: RunConfig, resume: bool) -> Iterator[None]:
    """Holds the lock of the directory, whose config.yaml is written."""
    if resume and not directory.path.is_dir():
        raise ConfigError(
            f"run_dir is {config.run_dir!r}, but there is no run to resume. Leave --resume out to begin one, or name "
            "the directory of an existing run with --run_dir"
        )
    with contextlib.ExitStack() as stack:
        try:
            directory.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(directory))
            if resume and directory.config.exists():
                check_continues(configfile.load(directory.config), config)
            else:
                _begin(directory, config.run_dir, resume)
            for folder in (directory.samples, directory.plots):
                folder.mkdir(exist_ok=True)
            atomic_write(directory.config, configfile.dumped(config))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConfigError(
                f"run_dir is {config.run_dir!r}, but {error.filename} cannot be written to ({error.strerror}). Choose "
                "another with --run_dir"
            ) from error
        yield


def check_continues(saved: RunConfig, config: RunConfig) -> None:
    """Raises ConfigError where `config` is another run than `saved` and not its continuation."""
    before, now = _flat(schema.plain(saved)), _flat(schema.plain(config))
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    for key in changed:
        if not any(key == free or key.startswith(free + ".") for free in MAY_CHANGE):
            raise ConfigError(
                f"{key} is {now.get(key)!r}, but the run to resume has {before.get(key)!r}, and a resumed run "
                f"continues exactly. Keep it, or begin another run with another --run_dir. A resumed run may change "
                f"{', '.join(MAY_CHANGE)}"
            )
    if "evaluation.every" in changed and config.data.curriculum.mode == "sequential":
        raise ConfigError(
            f"evaluation.every is {config.evaluation.every}, but the run to resume has {saved.evaluation.every}, and its "
            "curriculum advances on these tests. Keep it, or begin another run with another --run_dir"
        )
    for name, schedule in config.schedules.by_name() if "grpo.steps" in changed else ():
        if schedule.kind in ("linear", "cosine") and schedule.steps is None:
            raise ConfigError(
                f"grpo.steps is {config.grpo.steps}, but the run to resume has {saved.grpo.steps}, and "
                f"schedules.{name}.kind {schedule.kind} with steps null is spread over that many. Keep it; a run can be "
                "prolonged only where such schedules name their own steps"
            )
    if "grpo.steps" in changed and config.grpo.optimizer.schedule != "constant":
        raise ConfigError(
            f"grpo.steps is {config.grpo.steps}, but the run to resume has {saved.grpo.steps}, and its learning rate "
            f"follows a {config.grpo.optimizer.schedule} schedule over that many. Keep it; only a run with a constant "
            "schedule can be prolonged"
        )


def _is_run_config(path: Path) -> bool:
    """Whether a run wrote this file: another program's config.yaml must not cost that program its files."""
    try:
        configfile.load(path)
    except ConfigError:
        return False
    return True


def _flat(tree: schema.Tree, prefix: str = "") -> schema.Tree:
    result: schema.Tree = {}
    for name, value in tree.items():
        result |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result


@contextlib.contextmanager
def _locked(directory: RunDirectory) -> Iterator[None]:
    """Holds the directory's lock. The kernel releases it when the process ends, however it ends."""
    descriptor = os.open(directory.lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"run_dir is {str(directory.path)!r}, but another process (pid {holder}) is writing to it. Wait for "
                "it to end, or choose another with --run_dir"
            ) from error
        except OSError as error:
            # Some network file systems have no locks. A run there is worth more than the guard.
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _begin(directory: RunDirectory, name: str, resume: bool) -> None:
    if directory.has_checkpoint:
        if resume:
            raise ConfigError(
                f"run_dir is {name!r}, but it has checkpoints and no config.yaml to resume by. Restore the file, or "
                "begin a run elsewhere with --run_dir"
            )
        raise ConfigError(
            f"run_dir is {name!r}, but a run with checkpoints is already there. Continue it with --resume, or choose "
            "another directory with --run_dir"
        )
    own = {directory.lock, directory.config, directory.metrics, directory.alarms, directory.summary}
    own |= {directory.reward_failures, directory.samples, directory.plots, directory.tensorboard, directory.checkpoints}
    # A temporary file is what atomic_write leaves behind when it is killed.
    strangers = [
        entry.name
        for entry in directory.path.iterdir()
        if entry not in own and not re.fullmatch(r"\.config\.yaml\..*\.tmp", entry.name)
    ]
    if not directory.config.exists() or not _is_run_config(directory.config):
        strangers += [entry.name for entry in own if entry != directory.lock and entry.exists()]
    if strangers:
        raise ConfigError(
            f"run_dir is {name!r}, but it holds other files than a run's: {', '.join(sorted(strangers)[:5])}. Choose "
            "an empty or new directory with --run_dir"
        )
    for file in (directory.metrics, directory.alarms, directory.reward_failures, directory.summary):
        file.unlink(missing_ok=True)
    for folder in (directory.samples, directory.plots, directory.tensorboard, directory.checkpoints):
        if folder.is_dir():
            shutil.rmtree(folder)
