"""Text files that are either the old version or the new one, never half of it."""

import os
import tempfile
from pathlib import Path


def atomic_write(path: str | os.PathLike[str], text: str) -> None:
    """Replaces the file at `path` by `text`, so that a reader or a crash sees the old text or the new one.

    The text goes to a temporary file in the same folder, is forced to the disk and renamed over `path` (POSIX rename is
    atomic within a file system); the folder is synced too, since the new name lives there.

    Args:
      path: the file; its folder must exist.
      text: written as UTF-8, line ends as they are.

    Raises:
      OSError: the disk is full, or the folder is missing or read-only. `path` is then as it was.
    """
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a run directory should be as readable as any file the user makes.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _umask() -> int:
    # The only portable way to read the mask is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
