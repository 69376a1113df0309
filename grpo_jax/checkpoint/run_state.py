"""Checkpoints of a run: arrays and host state of a step, written in the background, whole or not at all.

A step is a folder `<directory>/<step>/` with three Orbax items:

- `state`: the arrays, keyed by their dotted path in the state's tree (`params.embed.embedding`),
- `structure`: path, shape and dtype of each of them, checked before anything is restored,
- `host`: the JSON document that goes with them (data cursor, RNG states, policy version).

Orbax writes into `<step>.orbax-checkpoint-tmp` and renames it when every byte is on the disk, so a process killed while
saving leaves the step before as the latest. Only `keep` deletes a finished step, after a newer one is whole.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from grpo_jax.checkpoint.errors import CheckpointUnreadableError, CheckpointWriteError
from grpo_jax.checkpoint.structure import Leaf, check_structure, describe, flatten, restore_target


class Restored(NamedTuple):
    """What `RunCheckpoints.restore` returns.

    Attributes:
      step: the step the checkpoint was saved at.
      state: a tree shaped like the abstract state asked for.
      host: the JSON document saved with it (tuples come back as lists).
    """

    step: int
    state: Any
    host: dict[str, Any]


class RunCheckpoints:
    """The checkpoints of one run. Use as a context manager, or call `close`."""

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 3, read_only: bool = False):
        """Opens the folder of a run's checkpoints.

        Args:
          directory: made if missing (unless `read_only`).
          keep: how many of the newest steps stay; older ones are deleted after a newer one is whole, so the disk needs
            room for `keep + 1`.
          read_only: for readers beside a running training. Without it, unfinished folders that a killed process left
            are cleared, which would take away a live writer's.

        Raises:
          ValueError: `keep` < 1.
          FileNotFoundError: `read_only` and there is no such folder.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, or there would be nothing to resume from; got {keep}")
        self.directory = Path(directory).absolute()
        if read_only and not self.directory.is_dir():
            raise FileNotFoundError(f"no checkpoint folder at {self.directory}: name the folder that holds the steps")
        self._keep = keep
        self._read_only = read_only
        self._saving: int | None = None
        self._quiet = _WithoutOrbax()
        logging.getLogger("absl").addFilter(self._quiet)
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        if self._read_only:
            options = ocp.CheckpointManagerOptions(read_only=True)
        else:
            options = ocp.CheckpointManagerOptions(max_to_keep=self._keep, cleanup_tmp_directories=True)
        return ocp.CheckpointManager(self.directory, options=options)

    def steps(self) -> tuple[int, ...]:
        """Returns the steps on the disk, oldest first; one still being written counts."""
        return tuple(self._manager.all_steps())

    def latest_step(self) -> int | None:
        """Returns the newest of `steps()`, or None."""
        return max(self.steps(), default=None)

    def save(self, step: int, state: Any, host: Mapping[str, Any]) -> None:
        """Starts writing a checkpoint and returns; waits only for the previous one to finish.

        The buffers may be donated as soon as this returns: on accelerators the values are on the host by then; on the
        CPU the writer holds the buffers themselves, and JAX does not reuse a buffer that is held (a step that donates
        them meanwhile allocates one more copy of the state). `host` is copied.

        Args:
          step: must be later than every step on the disk.
          state: a pytree of `jax.Array`s of any sharding.
          host: a JSON document.

        Raises:
          CheckpointWriteError: the previous save failed, or this one could not begin. `state` is as it was; the same
            call can be made again once the cause is gone.
          ValueError: `step` is not later than the latest.
          TypeError: a leaf of `state` is no `jax.Array`, or `host` is not JSON.
        """
        # Keyed by path rather than nested: optax's tuples and empty states then need no counterpart in the file.
        leaves = flatten(state)
        for path, array in leaves.items():
            if not isinstance(array, jax.Array) or jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
                kind = array.dtype if isinstance(array, jax.Array) else type(array).__name__
                raise TypeError(
                    f"a checkpoint's state holds plain jax arrays; {path} is {kind}: use jnp.asarray "
                    "(jax.random.key_data for keys), or put it into host"
                )
        try:
            document = json.loads(json.dumps(dict(host)))
        except (TypeError, ValueError) as error:
            raise TypeError(f"host must be JSON (dict, list, str, int, float, bool, None): {error}") from error
        self.wait()
        latest = self.latest_step()
        if latest is not None and step <= latest:
            raise ValueError(
                f"step {step} is not later than step {latest}, the latest in {self.directory}: two continuations would "
                "mix. To go on from an earlier step, move the later ones out of the folder first"
            )
        structure = [describe(path, array)._asdict() for path, array in leaves.items()]
        with self._write_errors(step):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(leaves),
                    structure=ocp.args.JsonSave({"leaves": structure}),
                    host=ocp.args.JsonSave(document),
                ),
                force=True,
            )
        self._saving = step

    def wait(self) -> None:
        """Blocks until the last save is on the disk.

        Raises:
          CheckpointWriteError: that save failed (a full disk, say). Raised once; saving again may succeed.
        """
        step, self._saving = self._saving, None
        if step is not None:
            with self._write_errors(step):
                self._manager.wait_until_finished()

    @contextmanager
    def _write_errors(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Orbax has already dropped the oldest step from its list, and its unfinished folder fills the disk further.
            # A fresh manager reads the list from the disk and clears that folder.
            self._discard_manager()
            self._manager = self._open()
            raise CheckpointWriteError(
                f"step {step} could not be saved in {self.directory}: {_reason(error)}. "
                f"Intact there: {_listing(self.steps())}. The run's state is still in memory: "
                "free space or mend the folder, then save again"
            ) from error

    def _discard_manager(self) -> None:
        try:
            self._manager.close()
        except Exception:
            # The failure of the save itself, raised a second time.
            logging.getLogger(__name__).debug("closing after a failed save", exc_info=True)

    def restore(self, abstract_state: Any, step: int | None = None) -> Restored:
        """Reads a checkpoint onto the given shapes and shardings.

        Args:
          abstract_state: a pytree of arrays or `jax.ShapeDtypeStruct`s; each leaf's sharding says where its array goes
            (the first local device if it has none), whatever the sharding it was saved with.
          step: the latest if None.

        Raises:
          FileNotFoundError: no such step, or none at all.
          CheckpointMismatchError: the saved arrays are not those of `abstract_state`; names the first that differs.
          CheckpointUnreadableError: the files are damaged; names the folder and the other steps. Nothing is deleted.
        """
        step = self._chosen(step)
        folder = self.directory / str(step)
        wanted = flatten(abstract_state)
        check_structure(
            self._read(step, lambda: self._saved_leaves(step)),
            [describe(path, leaf) for path, leaf in wanted.items()],
            source=str(folder),
        )
        targets = {path: restore_target(leaf) for path, leaf in wanted.items()}
        restored = self._read(
            step,
            lambda: self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(targets), host=ocp.args.JsonRestore())
            ),
        )
        leaves = [restored["state"][path] for path in wanted]
        return Restored(step, jax.tree.unflatten(jax.tree.structure(abstract_state), leaves), restored["host"])

    def _saved_leaves(self, step: int) -> list[Leaf]:
        entries = self._manager.restore(step, args=_json_item("structure"))["structure"]["leaves"]
        return [Leaf(entry["path"], tuple(entry["shape"]), entry["dtype"]) for entry in entries]

    def read_host(self, step: int | None = None) -> dict[str, Any]:
        """Returns the JSON document of a step (the latest if None) without touching its arrays.

        Raises:
          FileNotFoundError, CheckpointUnreadableError: as in `restore`.
        """
        step = self._chosen(step)
        return self._read(step, lambda: self._manager.restore(step, args=_json_item("host")))["host"]

    def _chosen(self, step: int | None) -> int:
        self.wait()
        steps = self.steps()
        if not steps:
            raise FileNotFoundError(f"there is no checkpoint in {self.directory}: start the run without resuming")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise FileNotFoundError(f"there is no step {step} in {self.directory}: it has {_listing(steps)}")
        return step

    def _read(self, step: int, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            others = tuple(other for other in self.steps() if other != step)
            raise CheckpointUnreadableError(
                f"the checkpoint in {self.directory / str(step)} cannot be read: {_reason(error)}. Nothing was "
                f"deleted; other checkpoints there: {_listing(others)}. To go on from an earlier one, move {step}/ out "
                "of the folder"
            ) from error

    def close(self) -> None:
        """Waits for the last save and releases Orbax's threads.

        Raises:
          CheckpointWriteError: as in `wait`.
        """
        try:
            self.wait()
        finally:
            self._manager.close()
            logging.getLogger("absl").removeFilter(self._quiet)

    def __enter__(self) -> "RunCheckpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _json_item(name: str) -> ocp.args.Composite:
    return ocp.args.Composite(**{name: ocp.args.JsonRestore()})


def _listing(steps: Sequence[int]) -> str:
    return "steps " + ", ".join(map(str, steps)) if steps else "none"


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    # TensorStore reports the errno inside its text only.
    if "No space left on device" in text:
        return "the disk is full (no space left on device)"
    return text if len(text) <= 300 else text[:300] + " ..."


class _WithoutOrbax(logging.Filter):
    # Orbax logs the traceback of a failed save from each of its threads, hundreds of lines; the failure itself reaches
    # the caller as an exception, with this module's message.
    def filter(self, record: logging.LogRecord) -> bool:
        return "orbax" not in Path(record.pathname).parts
