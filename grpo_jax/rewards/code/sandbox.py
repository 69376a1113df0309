"""Python processes that are shut in: how they are started, and that nothing of them is left.

A process says that it stands before it is sent anything, so one that cannot be started (a fault of this machine, which is
raised) is told from one that fails (which is the code's fault, and scores 0).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import marshal
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from grpo_jax.rewards.code.config import CodeConfig, Limits, SandboxName
from grpo_jax.rewards.code.exchange import Exchange, Sink
from grpo_jax.rewards.code.seccomp import filter_program

_log = logging.getLogger(__name__)

START_LIMIT = 60.0
"""Seconds to start Python in a sandbox on a busy machine."""
END_LIMIT = 10.0
"""Seconds until a killed sandbox must be gone."""

READY, STARTED = b"R", b"S"

_INSIDE = Path(__file__).with_name("inside")
_NAME = "grpo_jax.rewards.code.inside."
# In the order in which they import each other.
_MODULES = {
    "program": ("start", "program"),
    "tested": ("start", "wire", "tested"),
    "judge": ("start", "wire", "remote", "source", "judge"),
    "nursery_tested": ("start", "wire", "tested", "nursery"),
    "nursery_judge": ("start", "wire", "remote", "source", "judge", "nursery"),
}

# Says that it stands, reads all that it is to run, and runs it. marshal is trusted: only this process writes there.
_BOOT = """
import sys,marshal,posix
p,c,h=map(int,sys.argv[1:4])
posix.write(c,b"R")
d=[]
while 1:
 s=posix.read(p,1<<20)
 if not s:break
 d.append(s)
posix.close(p)
m,j,l=marshal.loads(b"".join(d))
del d
for k,b in marshal.loads(m):
 t=type(sys)(k);sys.modules[k]=t;exec(b,t.__dict__)
t.main(j,l,c,h)
"""


class SandboxFault(RuntimeError):
    """The sandbox could not be built: a fault of this machine, which says nothing of the code."""


@cache
def _code(role: str) -> bytes:
    """What a process of the role runs: its modules, compiled for this interpreter."""
    sources = [(name, (_INSIDE / f"{name}.py").read_text()) for name in _MODULES[role]]
    return marshal.dumps([(_NAME + name, compile(source, f"<{name}>", "exec", optimize=2)) for name, source in sources])


def _python() -> str:
    """This interpreter itself, rather than a link to it from a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


_PYTHON_OPTIONS = ("-s", "-P", "-S", "-B", "-X", "utf8", "-c", _BOOT)
# One order of sets and one thread of linear algebra: the same code gets the same verdict, and no more than its share.
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@cache
def _package_paths(name: str) -> tuple[str, ...]:
    """Where an installed package lies, and the libraries that came with it.

    Raises:
      ValueError: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"packages holds {name!r}, but no such package is installed here")
    here = Path(next(iter(spec.submodule_search_locations or ()), spec.origin))
    libraries = here.with_name(f"{name}.libs")
    return (str(here), str(libraries)) if libraries.is_dir() else (str(here),)


@cache
def _bubblewrap(config: CodeConfig) -> tuple[str, ...]:
    """The command up to the interpreter: the system's libraries and this interpreter, read-only, and nothing else.

    Raises:
      SandboxFault: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxFault("bwrap is not on the PATH")
    command = [program, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    for library in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store"):
        if os.path.islink(library):
            command += ["--symlink", os.readlink(library), library]
        elif os.path.isdir(library) and (library != "/nix/store" or _python().startswith("/nix/store")):
            command += ["--ro-bind", library, library]
    for file in ("/etc/ld.so.cache", "/usr/share/zoneinfo"):
        command += ["--ro-bind-try", file, file]
    python, version = _python(), f"python{sys.version_info.major}.{sys.version_info.minor}"
    command += ["--ro-bind", python, python]
    for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix)):
        for part in ("lib", "lib64"):
            library = os.path.join(os.path.realpath(prefix), part)
            if os.path.isdir(library) and not os.path.islink(library) and library not in ("/usr/lib", "/usr/lib64"):
                command += ["--ro-bind", library, library]
            # Installed packages can hold anything, this project among them.
            for installed in (f"{version}/site-packages", "python3/dist-packages"):
                hidden = os.path.join(library, installed)
                if os.path.isdir(hidden) and os.listdir(hidden):
                    command += ["--tmpfs", hidden, "--remount-ro", hidden]
    for name in config.packages:
        for path in _package_paths(name):
            command += ["--ro-bind", path, f"/packages/{os.path.basename(path)}"]
    for device in ("null", "zero", "random", "urandom"):
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    command += ["--size", str(config.limits.file_mb << 20), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    return tuple(command)


class Running:
    """One sandboxed process that was started.

    Attributes:
      control: what it says of itself: READY, STARTED, and a judge its verdict.
      errors: what it wrote to its errors, and before it stands, what bubblewrap did.
      output: what it wrote to its output, where that is collected.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: str | None, exchange: Exchange) -> None:
        self._process = process
        self._directory = directory
        self._exchange = exchange
        self._descriptors: list[int] = []
        self._program = -1
        self._payload: Callable[[], bytes] = bytes
        self.control: Sink
        self.errors: Sink
        self.output: Sink | None = None

    @property
    def pid(self) -> int:
        """The process that this one started: bubblewrap's, or the sandboxed one itself."""
        return self._process.pid

    def stands(self) -> bool:
        """Whether it said that it stands, or never will."""
        return bool(self.control.data) or self.control.ended

    def send(self) -> None:
        """Sends what it is to run.

        Raises:
          SandboxFault: it does not stand.
        """
        if not self.control.data:
            self._exchange.run(lambda: self.errors.ended, time.monotonic() + 1.0)
            said = self.errors.data.decode(errors="replace").strip()
            raise SandboxFault(f"the sandbox did not stand within {START_LIMIT:g} s: {said or 'it said nothing'}")
        program, self._program = self._program, -1
        self._exchange.feed(program, self._payload())

    def check_started(self) -> None:
        """Raises SandboxFault where it ended before its limits held."""
        if not self.control.data.startswith(READY + STARTED):
            said = self.errors.data.decode(errors="replace").strip()
            raise SandboxFault(f"the sandbox ended before its limits held: {said or 'it said nothing'}")

    def wait(self, seconds: float) -> int | None:
        """Its exit status as subprocess gives it, None where it has not ended by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def end(self) -> None:
        """Kills all that is in the sandbox, and returns when it is gone."""
        if self._process.returncode is None:
            # Its own session first, then itself: bubblewrap's end takes the process namespace along.
            if self._directory is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        # The first process of the namespace holds the errors' pipe, and ends after all others.
        if not self._exchange.run(lambda: self.errors.ended and self.control.ended, time.monotonic() + END_LIMIT):
            _log.warning("a sandbox (process %d) was killed but is not gone after %g s", self.pid, END_LIMIT)
        self._process.wait()
        for descriptor in self._descriptors:
            self._exchange.drop(descriptor)
        if self._program >= 0:
            os.close(self._program)
        self._descriptors, self._program = [], -1
        if self._directory is not None:
            _remove(Path(self._directory))


def _remove(directory: Path) -> None:
    """Removes a directory that the code has written to: nested deeper than paths may be long, or without rights."""
    try:
        shutil.rmtree(directory)
        return
    except (OSError, RecursionError):
        pass
    count = 0
    with contextlib.suppress(OSError):
        while entries := list(directory.iterdir()):
            for entry in entries:
                if entry.is_symlink() or not entry.is_dir():
                    entry.unlink()
                    continue
                entry.chmod(0o700)
                for below in list(entry.iterdir()):
                    count += 1
                    below.rename(directory / f"{count}.grpo")
                entry.rmdir()
        directory.rmdir()
    if directory.exists():
        _log.warning("%s, the files of a program that has ended, cannot be removed", directory)


def start(
    config: CodeConfig,
    role: str,
    job: dict[str, Any],
    exchange: Exchange,
    *,
    channel: int = -1,
    stdin: bytes | None = None,
    output_limit: int = 0,
) -> Running:
    """Starts a sandboxed process; `Running.send` gives it its work. The thread that calls must outlive it.

    Args:
      config: the sandbox and its limits.
      role: a name of `_MODULES`.
      job: what the role's main function takes, in types of marshal.
      exchange: reads and writes its pipes.
      channel: a descriptor for it to keep.
      stdin: its input; None for none, in which case its output is not collected either.
      output_limit: bytes to collect of its output.

    Raises:
      SandboxFault: it cannot be started.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

        def pipe() -> tuple[int, int]:
            read, write = os.pipe()
            return read, write

        def keep(stack: contextlib.ExitStack, descriptor: int) -> int:
            stack.callback(os.close, descriptor)
            return descriptor

        try:
            program, program_end = pipe()
            keep(theirs, program), keep(ours, program_end)
            control_end, control = pipe()
            keep(theirs, control), keep(ours, control_end)
            errors_end, errors = pipe()
            keep(theirs, errors), keep(ours, errors_end)
            standard: list[int] = [subprocess.DEVNULL, subprocess.DEVNULL]
            ends = [control_end, errors_end]
            if stdin is not None:
                input_, input_end = pipe()
                keep(theirs, input_), keep(ours, input_end)
                output_end, output = pipe()
                keep(theirs, output), keep(ours, output_end)
                standard = [input_, output]
                ends.append(output_end)
            passed = [program, control] + ([channel] if channel >= 0 else [])
            command, directory = _COMMANDS[config.sandbox](config, passed, theirs, role.startswith("nursery"))
            environment = dict(_ENVIRONMENT)
            if directory is not None:
                ours.callback(_remove, Path(directory))
                environment["HOME"] = environment["TMPDIR"] = directory
            process = subprocess.Popen(
                [*command, _python(), *_PYTHON_OPTIONS, str(program), str(control), str(channel)],
                stdin=standard[0],
                stdout=standard[1],
                stderr=errors,
                pass_fds=passed,
                env=environment,
                cwd=directory,
                start_new_session=directory is not None,
            )
        except OSError as error:
            raise SandboxFault(f"a sandbox cannot be started: {error}") from error
        ours.pop_all()
    running = Running(process, directory, exchange)
    running._descriptors = ends
    running._program = program_end
    running.control = exchange.collect(control_end, 1000)
    running.errors = exchange.collect(errors_end, max(output_limit, 4000))
    if stdin is not None:
        running.output = exchange.collect(output_end, output_limit)
        exchange.feed(input_end, stdin)
    running._payload = lambda: marshal.dumps((_code(role), job, confinement(config, process.pid, directory)))
    return running


def confinement(config: CodeConfig, process: int | None = None, directory: str | None = None) -> dict[str, Any]:
    """What a process does to itself before it does its work; one outside namespaces has a directory."""
    within = directory is None
    paths = (
        []
        if not config.packages
        else ["/packages"]
        if within
        else sorted({str(Path(path).parent) for name in config.packages for path in _package_paths(name)})
    )
    return {
        "limits": _resource_limits(config.limits),
        "path": paths,
        "parent": None if within else os.getpid(),
        "filter": None if within else filter_program(process),
    }


def _resource_limits(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("RLIMIT_CORE", 0),
        ("RLIMIT_CPU", limits.cpu_seconds),
        ("RLIMIT_AS", limits.memory_mb << 20),
        ("RLIMIT_FSIZE", limits.file_mb << 20),
        ("RLIMIT_NOFILE", limits.open_files),
        ("RLIMIT_STACK", 8 << 20),
        ("RLIMIT_MEMLOCK", 0),
    ]


_DIRECTORY = "grpo-code-"


def _remove_abandoned() -> None:
    """Removes the directories that supervisors which were killed have left, an hour after."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY}*-*"):
        with contextlib.suppress(OSError, ValueError):
            status = directory.lstat()
            if directory.is_symlink() or status.st_uid != os.getuid() or time.time() - status.st_mtime < 3600:
                continue
            try:
                os.kill(int(directory.name.removeprefix(_DIRECTORY).partition("-")[0]), 0)
            except ProcessLookupError:
                _remove(directory)


Command = tuple[Sequence[str], str | None]


def _bubblewrap_command(config: CodeConfig, passed: list[int], theirs: contextlib.ExitStack, forks: bool) -> Command:
    command = _bubblewrap(config)
    read, write = os.pipe()
    theirs.callback(os.close, read)
    try:
        os.write(write, filter_program(forks=forks))
    finally:
        os.close(write)
    passed.append(read)
    return [*command, "--seccomp", str(read), "--"], None


def _rlimits_command(config: CodeConfig, passed: list[int], theirs: contextlib.ExitStack, forks: bool) -> Command:
    return [], tempfile.mkdtemp(prefix=f"{_DIRECTORY}{os.getpid()}-")


_COMMANDS: dict[SandboxName, Callable[[CodeConfig, list[int], contextlib.ExitStack, bool], Command]] = {
    "bubblewrap": _bubblewrap_command,
    "rlimits": _rlimits_command,
}


def check_sandbox(config: CodeConfig) -> None:
    """Runs a trial program in the sandbox, and warns of the weaker mode.

    Raises:
      SandboxFault: the sandbox does not work here; says what was found and what to do.
    """
    # Imported here, for it is built on this module.
    from grpo_jax.rewards.code.program import run_python

    for name in config.packages:
        _package_paths(name)
    try:
        result = run_python("print(6 * 7)", config=config)
        if (result.status, result.stdout) != ("ok", "42\n"):
            raise SandboxFault(f"a trial program ended as {result.status!r} and wrote {result.stdout + result.stderr!r}")
    except (SandboxFault, ValueError) as error:
        remedy = (
            "install bubblewrap 0.7 or newer (the package is called bubblewrap) and allow unprivileged user namespaces, or "
            "set sandbox to rlimits, which is weaker: the code can then read and write this user's files"
            if config.sandbox == "bubblewrap"
            else "use a Linux machine where seccomp filters are allowed"
        )
        raise SandboxFault(
            f"sandbox is {config.sandbox!r}, but it does not work here: {error}. To judge code, {remedy}"
        ) from error
    if config.sandbox == "rlimits":
        _remove_abandoned()
        _warn_of_rlimits()


@lru_cache(maxsize=1)
def _warn_of_rlimits() -> None:
    text = (
        "sandbox is 'rlimits': code that the model writes can read and write all files of this user; install bubblewrap and "
        "set sandbox to bubblewrap to shut it in"
    )
    _log.warning(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
