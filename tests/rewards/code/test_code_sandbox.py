"""The sandbox itself: what is seen from inside, its limits, and that nothing of it outlives its supervisor."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

import grpo_jax.rewards.code.nursery as nursery_module
from grpo_jax.rewards.code import CodeConfig, Limits, SandboxFault, check_sandbox, code_reward, run_python
from grpo_jax.rewards.code import sandbox as module
from grpo_jax.rewards.code.nursery import _filter, close_kept
from grpo_jax.rewards.code.seccomp import filter_program
from grpo_jax.rewards.protocol import RewardInput


def row(completion, **metadata):
    return RewardInput(prompt="", completion=completion, reference="", ids=(), end="eos", metadata=metadata)


def test_a_program_is_run_with_its_streams(either):
    code = "import sys\nprint(input() * 2)\nprint('e', file=sys.stderr)\nraise SystemExit(3)"
    result = run_python(code, stdin="ab\n", config=either)
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("error", 3, "abab\n", "e\n")
    assert run_python("print('é')", config=either).stdout == "é\n"


def test_each_way_to_end_is_told(shut_in):
    assert run_python("pass", config=shut_in).status == "ok"
    failed = run_python("def f():\n    1 / 0\nf()", config=shut_in)
    assert failed.status == "error" and failed.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "<string>" not in failed.stderr, "the traceback begins with the program's own frames"
    assert run_python("import time; time.sleep(99)", config=shut_in).status == "timeout"
    assert run_python("while True: print('x' * 1000)", config=shut_in).status == "output_limit"
    killed = run_python("while True: pass", config=shut_in)
    assert (killed.status, killed.exit_code) == ("killed", -signal.SIGKILL)


def test_a_program_that_closes_its_streams_is_still_waited_for(shut_in):
    code = "import os, time\nprint(1, flush=True)\nos.closerange(0, 9)\ntime.sleep(0.5)\nos._exit(4)"
    result = run_python(code, config=shut_in)
    assert (result.exit_code, result.stdout) == (4, "1\n")


def test_no_file_of_the_user_is_seen(shut_in, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    seen = [str(secret), __file__, os.path.expanduser("~/."), os.getcwd() + "/pyproject.toml", "/etc/passwd", "/proc/1"]
    code = (
        f"import os\nprint([path for path in {seen!r} if os.path.isfile(path) or os.path.isdir(path) and os.listdir(path)])"
    )
    ancestors = ["[]\n"]
    # The interpreter may lie below the home directory, whose name is then there, with nothing else in it.
    if module._python().startswith(os.path.expanduser("~") + "/"):
        ancestors.append(f"[{os.path.expanduser('~/.')!r}]\n")
    assert run_python(code, config=shut_in).stdout in ancestors


def test_each_sandbox_has_a_new_tmp(shut_in):
    code = "import os\nprint(os.listdir('/tmp'))\nopen('/tmp/x', 'w').close()"
    assert [run_python(code, config=shut_in).stdout for _ in range(2)] == ["[]\n", "[]\n"]


def test_memory_is_bounded(shut_in):
    code = (
        "import resource\nheld = []\n"
        "try:\n    while True: held.append(bytearray(1 << 20))\n"
        "except MemoryError:\n    del held[:]\n    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    assert 32 < int(run_python(code, config=shut_in).stdout) <= shut_in.limits.memory_mb


def test_files_are_bounded(shut_in):
    code = (
        "written = 0\n"
        "try:\n    for n in range(100):\n        with open(f'/tmp/{n}', 'wb', 0) as file:\n"
        "            written += file.write(bytes(1 << 20))\n"
        "except OSError as error:\n    print(written, error.errno)"
    )
    written, number = map(int, run_python(code, config=shut_in).stdout.split())
    assert written <= shut_in.limits.file_mb << 20 and number == 28  # ENOSPC


def test_packages_are_there_only_when_asked_for(shut_in):
    assert run_python("import numpy", config=shut_in).status == "error"
    wider = CodeConfig(packages=("numpy",), limits=Limits(memory_mb=1024))
    result = run_python("import numpy\nprint(numpy.arange(3).sum())\nimport jax", config=wider)
    assert result.stdout == "3\n" and "No module named 'jax'" in result.stderr
    with pytest.raises(ValueError, match="packages holds 'no_such_package'"):
        check_sandbox(CodeConfig(packages=("no_such_package",)))


def test_without_bubblewrap_there_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    module._bubblewrap.cache_clear()
    with pytest.raises(
        SandboxFault, match=r"^sandbox is 'bubblewrap', but .*bwrap is not on the PATH.*set sandbox to rlimits"
    ):
        code_reward(CodeConfig())
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxFault, match="No permissions to create new namespace"):
        code_reward(CodeConfig())
    module._bubblewrap.cache_clear()


def test_a_sandbox_that_breaks_later_raises_and_scores_nothing(shut_in, monkeypatch, tmp_path):
    reward = code_reward(shut_in)
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: out of something' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    module._bubblewrap.cache_clear()
    close_kept()
    for metadata in ({"tests": "assert f() == 1"}, {"cases": [{"input": "", "output": ""}]}):
        with pytest.raises(SandboxFault, match="out of something"):
            reward(row("def f(): return 1", **metadata))
    module._bubblewrap.cache_clear()


def test_the_weaker_mode_warns():
    module._warn_of_rlimits.cache_clear()
    with pytest.warns(RuntimeWarning, match="sandbox is 'rlimits'.*install bubblewrap"):
        code_reward(CodeConfig(sandbox="rlimits"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code_reward(CodeConfig(sandbox="rlimits"))  # once is enough


def test_the_filter_is_for_known_machines():
    assert filter_program(machine="x86_64") != filter_program(machine="aarch64")
    with pytest.raises(ValueError, match="this machine is a 'riscv64'"):
        filter_program(machine="riscv64")


SUPERVISOR = """
import sys, threading, warnings
warnings.simplefilter("ignore")
from grpo_jax.rewards.code import CodeConfig, Limits, code_reward
from grpo_jax.rewards.protocol import RewardInput
reward = code_reward(CodeConfig(sandbox=sys.argv[1], limits=Limits(cpu_seconds=100, wall_seconds=1000)))
def judge(completion, **metadata):
    reward(RewardInput(prompt="", completion=completion, reference="", ids=(), end="eos", metadata=metadata))
evil = "import ctypes, signal, time\\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\\n" \\
    "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\\n"
for loop in ("while True: time.sleep(1)", "while True: pass"):
    threading.Thread(target=judge, args=(evil + loop,), kwargs={"tests": "assert f()"}, daemon=True).start()
    threading.Thread(target=judge, args=(evil + loop,), kwargs={"cases": [{"input": "", "output": ""}]}, daemon=True).start()
import time
time.sleep(3)
print("go", flush=True)
time.sleep(1000)
"""


def children(pid):
    """All processes below one, from /proc."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    below = {pid}
    while more := {one for one, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {pid}


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("sandbox", ["bubblewrap", "rlimits"])
def test_nothing_outlives_a_supervisor_that_is_killed(shut_in, sandbox, tmp_path, monkeypatch):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, sandbox], stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == b"go\n"
    below = children(process.pid)
    assert len(below) >= 6
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while [pid for pid in below if alive(pid)] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in below if alive(pid)] == []
    # The directories of the weaker mode are removed by the next who asks for it.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for directory in tmp_path.iterdir():
        os.utime(directory, (0, 0))
    module._remove_abandoned()
    assert list(tmp_path.iterdir()) == []


def test_no_descriptor_is_left_open(shut_in):
    reward = code_reward(shut_in)
    reward(row("def f(): return 1", tests="assert f() == 1"))  # the kept sandboxes stay
    before = len(os.listdir("/proc/self/fd"))
    for completion in (
        "def f(): return 1",
        "while True: pass",
        "import os; os._exit(0)",
        "import time; time.sleep(99)",
        "(",
    ):
        reward(row(completion, tests="assert f() == 1"))
        reward(row(completion, cases=[{"input": "x" * 200_000, "output": "y"}]))
    assert len(os.listdir("/proc/self/fd")) == before


# Sandboxes that are kept


def test_what_one_completion_leaves_the_next_does_not_find(shut_in):
    reward = code_reward(shut_in)
    leaves = """
import builtins, os, sys, threading
def f():
    builtins.abs = lambda x: 42
    sys.modules["math"].pi = 3
    os.environ["LEFT"] = "1"
    os.makedirs("/tmp/a/b/c", exist_ok=True)
    open("/tmp/a/b/file", "w").write("left")
    os.symlink("/", "/tmp/a/link")
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
    return os.getpid()
"""
    finds = """
import math, os
def f():
    return [os.listdir("/tmp"), abs(-1), int(math.pi * 100), os.environ.get("LEFT"), os.getpid() > 2]
"""
    for _ in range(3):
        assert reward(row(leaves, tests="assert f() > 2")) == 1
        assert reward(row(finds, tests="assert f() == [[], 1, 314, None, True]")) == 1


def test_a_completion_cannot_end_or_reach_what_is_kept(shut_in):
    reward = code_reward(shut_in)
    reward(row("def f(): return 1", tests="assert f() == 1"))
    kept = {role: nursery for role, nursery in nursery_module._of_this_thread.kept.items()}
    attacks = """
import os, resource, signal
def f():
    refused = 0
    for target in (1, 2, 3, os.getppid(), -1, 0):
        for number in (9, 19, 15):
            try:
                os.kill(target, number)
            except OSError:
                refused += 1
    try:
        resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))
    except OSError:
        refused += 1
    try:
        os.fork()
    except OSError:
        refused += 1
    return refused
"""
    assert reward(row(attacks, tests="assert f() == 20")) == 1
    assert nursery_module._of_this_thread.kept == kept and all(nursery.alive for nursery in kept.values())


def test_a_kept_sandbox_that_is_killed_is_replaced(shut_in):
    reward = code_reward(shut_in)
    honest = row("def f(): return 1", tests="assert f() == 1")
    assert reward(honest) == 1
    for pid in children(os.getpid()):
        if b"bwrap" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert reward(honest) == 1
    close_kept()
    assert not nursery_module._of_this_thread.__dict__.get("kept")
    assert reward(honest) == 1


def test_the_filter_of_a_forked_process_names_it_wherever_signals_are_allowed():
    assert len(_filter()) == 4  # kill, tgkill, prlimit
    assert (42).to_bytes(4, sys.byteorder).join(_filter()) == filter_program(process=42)
    assert filter_program(forks=True) != filter_program()


def test_nothing_can_be_hung_onto_the_kept_folder_or_the_devices(shut_in):
    reward = code_reward(shut_in)
    tries = """
import fcntl, os, socket, struct
def f():
    refused = 0
    left, right = socket.socketpair()
    for attempt in (
        lambda: os.setxattr("/tmp", "user.s", b"x"),
        lambda: os.chmod("/dev/null", 0o666),
        lambda: os.utime("/dev/zero", (1, 1)),
        lambda: fcntl.ioctl(left, 0x8902, struct.pack("i", os.getppid())),
        lambda: fcntl.ioctl(left, 0x8901, struct.pack("i", os.getppid())),
        lambda: os.chmod("/tmp", 0o500),
        lambda: os.utime("/tmp", (777, 777)),
    ):
        try:
            attempt()
        except OSError:
            refused += 1
    open("/dev/null", "w").write("x")
    return refused
"""
    assert reward(row(tries, tests="assert f() == 7")) == 1
    finds = """
import os
def f():
    open("/tmp/mine", "w").write("x")
    os.unlink("/tmp/mine")
    return os.stat("/tmp").st_mode & 0o777, os.stat("/tmp").st_mtime < 777 or os.stat("/tmp").st_mtime > 1e9
"""
    assert reward(row(finds, tests="assert f() == (0o755, True)")) == 1
