"""The first steps in a sandbox: limits, and for the mode without namespaces what bubblewrap would have done."""

import posix
import resource
import sys

STARTED = b"S"
"""What a process says on its control descriptor when all limits hold, just before it does its work."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9  # the module signal takes as long to import as Python to start
_CAPABILITY_VERSION_3 = 0x20080522


def confine(confinement, control):
    """Sets the limits, and says so."""
    if confinement["parent"] is not None:
        _without_bubblewrap(confinement)
    _set_limits(confinement["limits"])
    sys.path += confinement["path"]
    posix.write(control, STARTED)


def _set_limits(limits):
    for name, wanted in limits:
        kind = getattr(resource, name)
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            wanted = min(wanted, most)
        resource.setrlimit(kind, (wanted, wanted))


def _without_bubblewrap(confinement):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"{name} failed")

    call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if posix.getppid() != confinement["parent"]:
        posix._exit(1)
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Others of this user, the tested process among them, may not look into the judge by /proc.
    call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    # Root keeps its user, for others may not be allowed to read this interpreter, but none of its rights over the system.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
    filtered(libc, confinement["filter"])


def filtered(libc, code):
    """Holds this process to a filter of system calls from now on."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    program = Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def silence(*, stdin=False):
    """Points the standard streams to nowhere."""
    nowhere = posix.open("/dev/null", posix.O_RDWR)
    for descriptor in (0, 1, 2) if stdin else (1, 2):
        posix.dup2(nowhere, descriptor)
    posix.close(nowhere)


def close_others(*kept):
    """Closes every descriptor but the standard streams and those named."""
    first = 3
    for descriptor in sorted(kept):
        posix.closerange(first, descriptor)
        first = descriptor + 1
    posix.closerange(first, 1024)


def module(name):
    """A module of its own for code that is judged, found by those who look for the module of a class."""
    made = type(sys)(name)
    made.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules[name] = made
    # `site` would have made these, but it is not loaded.
    builtins = sys.modules["builtins"].__dict__
    builtins.setdefault("exit", sys.exit)
    builtins.setdefault("quit", sys.exit)
    sys.argv[:] = ["program.py"]
    return made.__dict__


def compiled(variants, filename):
    """The code of the first variant that compiles: each a list of sources to run one after the other.

    Raises:
      what compiling the last variant raises.
    """
    for variant in variants[:-1]:
        try:
            return [compile(source, filename, "exec", dont_inherit=True) for source in variant]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    return [compile(source, filename, "exec", dont_inherit=True) for source in variants[-1]]
