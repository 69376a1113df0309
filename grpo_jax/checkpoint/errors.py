"""What can be wrong with a checkpoint. Each message says which file or leaf, what was found, and what to do."""


class CheckpointError(RuntimeError):
    """Something about a checkpoint that the user has to act on."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint is whole but holds other arrays than the configuration needs."""


class CheckpointUnreadableError(CheckpointError):
    """The checkpoint's files are missing, cut short or damaged."""


class CheckpointWriteError(CheckpointError):
    """A save failed; earlier checkpoints are intact and the caller's state is untouched."""


class UnsupportedModelError(CheckpointError):
    """A model file of others that this library has no table for, or whose contents the table does not cover."""
