"""The sympy worker: killed when it takes too long, and gone when its owner is."""

import ast
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from grpo_jax.rewards.mathematics import guard
from grpo_jax.rewards.mathematics.expression import parse
from grpo_jax.rewards.mathematics.guard import _SCRIPT, Guard

X_PLUS_X, TWO_X = parse("x+x"), parse("2x")
# Built by hand: the grammar refuses it. 7^(10^10) keeps one multiplication inside the interpreter lock for minutes.
ENDLESS = ("power", ("number", "7"), ("number", "10000000000"))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid, seconds):
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def worker():
    process = Guard(time_limit=1)
    yield process
    process.close()


def test_one_worker_answers_many_questions(worker):
    assert worker.equal(X_PLUS_X, TWO_X)
    first = worker.pid
    assert not worker.equal(parse("x+1"), TWO_X)
    assert worker.pid == first


@needs_proc
def test_a_comparison_without_end_is_unequal_and_its_process_is_killed(worker):
    worker.equal(X_PLUS_X, TWO_X)
    stuck = worker.pid
    assert not worker.equal(ENDLESS, ("number", "1"))
    assert not alive(stuck)
    assert worker.equal(X_PLUS_X, TWO_X), "the next question gets a new worker"


@needs_proc
def test_a_worker_that_does_not_answer_is_killed_by_the_clock(monkeypatch):
    monkeypatch.setattr(guard, "WALL_FACTOR", 0.01)
    worker = Guard(time_limit=60)
    assert not worker.equal(ENDLESS, ("number", "1"))
    assert worker.pid is None


@needs_proc
def test_a_worker_that_someone_else_killed_is_replaced(worker):
    worker.equal(X_PLUS_X, TWO_X)
    os.kill(worker.pid, signal.SIGKILL)
    assert gone(worker.pid, 5)
    assert worker.equal(X_PLUS_X, TWO_X)


@needs_proc
def test_close_and_garbage_collection_leave_no_process():
    worker = Guard()
    worker.equal(X_PLUS_X, TWO_X)
    pid = worker.pid
    worker.close()
    assert not alive(pid)
    worker.equal(X_PLUS_X, TWO_X)
    pid = worker.pid
    del worker
    gc.collect()
    assert not alive(pid)


def test_questions_from_other_threads_get_their_own_answers(worker):
    pairs = [(parse(f"x+{i}"), parse(f"{i % 3}+x")) for i in range(12)]
    answers = {}

    def ask(index):
        answers[index] = worker.equal(*pairs[index])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: i == i % 3 for i in range(12)}


def test_an_interruption_while_the_worker_starts_does_not_shift_the_answers(monkeypatch):
    worker = Guard()

    def interrupted(process, limit):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(worker, "_read_line", interrupted)
        worker.equal(X_PLUS_X, TWO_X)
    assert worker.pid is None


def test_an_interruption_between_question_and_answer_does_not_shift_the_answers(worker, monkeypatch):
    worker.equal(X_PLUS_X, TWO_X)

    def interrupted(process, limit):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(worker, "_read_line", interrupted)
        worker.equal(parse("x+1"), TWO_X)
    assert worker.equal(X_PLUS_X, TWO_X)


CHILD = """
import sys, time
from grpo_jax.rewards.mathematics.expression import parse
from grpo_jax.rewards.mathematics.guard import shared
worker = shared()
worker.time_limit = 1
worker.equal(parse("x+x"), parse("2x"))
print(worker.pid, flush=True)
{then}
"""
STUCK = """
import threading
endless = ("power", ("number", "7"), ("number", "10000000000")), ("number", "1")
threading.Thread(target=worker.equal, args=endless, daemon=True).start()
time.sleep(60)
"""


def owner(then):
    return subprocess.Popen([sys.executable, "-c", CHILD.format(then=then)], stdout=subprocess.PIPE, text=True)


@needs_proc
@pytest.mark.parametrize("then", ["", "raise SystemError"])
def test_the_worker_ends_with_its_owner(then):
    process = owner(then)
    pid = int(process.stdout.readline())
    process.wait(300)
    assert gone(pid, 5)


@needs_proc
@pytest.mark.parametrize("then", ["time.sleep(60)", STUCK], ids=["idle", "computing"])
def test_the_worker_ends_by_itself_when_its_owner_is_killed(then):
    process = owner(then)
    pid = int(process.stdout.readline())
    time.sleep(0.3)
    assert alive(pid)
    process.kill()
    process.wait()
    # Idle: at once. Computing: when it has used its processor time.
    assert gone(pid, 60)


def test_a_forked_child_does_not_read_its_parents_answers():
    code = """
import os
before = worker.pid
pid = os.fork()
if pid == 0:
    del worker
    own = shared()
    ok = own.equal(parse("x+x+y"), parse("2x+y")) and own.pid != before
    own.close()
    os._exit(0 if ok else 1)
assert os.waitpid(pid, 0)[1] == 0
assert worker.equal(parse("x+x+z"), parse("2x+z"))
assert worker is shared() and worker.pid == before
"""
    assert owner(code).wait(300) == 0


def test_a_worker_that_cannot_start_is_an_error_that_says_what_to_try(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/true" if os.path.exists("/bin/true") else "/usr/bin/true")
    with pytest.raises(RuntimeError, match="import sympy"):
        Guard().equal(X_PLUS_X, TWO_X)


def test_the_worker_imports_the_standard_library_sympy_and_math_verify_alone():
    tree = ast.parse(_SCRIPT.read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"sympy", "math_verify", "latex2sympy2_extended"}


def test_limits_are_positive():
    with pytest.raises(ValueError, match="seconds above 0"):
        Guard(time_limit=0)
