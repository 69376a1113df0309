"""A process in which Python and the modules of a role are loaded already, and which forks for each completion.

It runs nothing of a data set or a completion itself. It takes requests over a socket: b"F" with three descriptors (work,
control, channel) starts a process of the role, b"K" ends it, and is answered once nothing of it is left. One at a time.
"""

import array
import ctypes
import gc
import marshal
import posix
import socket
import sys

from grpo_jax.rewards.code.inside.start import STARTED, close_others, filtered, silence

_READY = b"R"
_SIGKILL = 9
_HERE = "/tmp"


def main(job, confinement, control, channel):
    """Serves until the socket ends."""
    close_others(control, channel)
    silence()
    for name in job["preload"]:
        __import__(name)
    role = sys.modules["grpo_jax.rewards.code.inside." + job["role"]]
    libc = ctypes.CDLL(None, use_errno=True)
    # What is loaded by now is never collected, so that a child need not copy its pages.
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=channel)
    posix.write(control, STARTED)
    child = 0
    while True:
        data, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_SPACE(3 * array.array("i").itemsize))
        if not data:
            posix._exit(0)
        if data == b"K":
            if child:
                posix.kill(child, _SIGKILL)
                posix.waitpid(child, 0)
                child = 0
            _sweep(_HERE)
            posix.chmod(_HERE, 0o755)
            posix.utime(_HERE, (0, 0))
            requests.sendall(b"D")
            continue
        descriptors = array.array("i")
        for _, _, part in ancillary:
            descriptors.frombytes(part)
        child = posix.fork()
        if child == 0:
            try:
                requests.close()
                posix.close(control)
                _work(role, libc, *descriptors)
            finally:
                posix._exit(1)
        for descriptor in descriptors:
            posix.close(descriptor)


def _work(role, libc, program, control, channel):
    """What a process that was started for this completion alone would do."""
    posix.write(control, _READY)
    parts = []
    while part := posix.read(program, 1 << 20):
        parts.append(part)
    posix.close(program)
    _, job, confinement = marshal.loads(b"".join(parts))
    # The filter is for this process, whose number stands between the parts.
    filtered(libc, posix.getpid().to_bytes(4, sys.byteorder).join(confinement["forked_filter"]))
    role.main(job, confinement, control, channel)


def _sweep(folder):
    """Removes what a process has left: the next finds the folder as the first did. Where that fails, there is no next."""
    try:
        with posix.scandir(folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    posix.chmod(path, 0o700)
                    _sweep(path)
                    posix.rmdir(path)
                else:
                    posix.unlink(path)
    except (OSError, RecursionError, ValueError):
        posix._exit(1)
