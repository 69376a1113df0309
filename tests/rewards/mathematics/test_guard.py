"""The guard's worker: killed when it takes too long, and gone when its owner is."""

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
from grpo_jax.rewards.mathematics.guard import _SCRIPT, Budget, Guard

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
    stuck, process = worker.pid, worker._process
    assert not worker.equal(ENDLESS, ("number", "1"))
    assert not alive(stuck)
    assert process.returncode == -signal.SIGPROF, "by the system's clock of its processor time"
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
worker.time_limit = {limit}
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


def owner(then, limit=1):
    return subprocess.Popen([sys.executable, "-c", CHILD.format(then=then, limit=limit)], stdout=subprocess.PIPE, text=True)


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
    # Idle: at the end of its input. Computing: killed with the main thread that started it, by the system.
    assert gone(pid, 60)


@needs_proc
@pytest.mark.skipif(sys.platform != "linux", reason="the system signals the death of a parent on Linux")
def test_a_computing_worker_is_killed_with_its_owner_long_before_its_time_is_up():
    process = owner(STUCK.replace("time.sleep(60)", "time.sleep(600)"), limit=500)
    pid = int(process.stdout.readline())
    time.sleep(0.5)
    process.kill()
    process.wait()
    died = gone(pid, 20)
    if not died:
        os.kill(pid, signal.SIGKILL)
    assert died


@needs_proc
def test_a_worker_started_by_a_thread_outlives_the_thread():
    worker = Guard()
    thread = threading.Thread(target=worker.equal, args=(X_PLUS_X, TWO_X))
    thread.start()
    thread.join()
    pid = worker.pid
    time.sleep(0.2)
    assert alive(pid)
    assert worker.equal(X_PLUS_X, TWO_X) and worker.pid == pid
    worker.close()


def test_one_budget_serves_all_the_questions_of_an_answer(worker):
    budget = Budget(1.0)
    assert worker.equal(X_PLUS_X, TWO_X, budget)
    assert 0 < budget.seconds <= 1 - guard.LEAST_COST
    assert not worker.equal(ENDLESS, ("number", "1"), budget)
    assert budget.seconds == 0
    before = worker.pid
    assert not worker.equal(X_PLUS_X, TWO_X, budget), "nothing is left"
    assert worker.pid == before


def claim(worker, name, left, right):
    return worker.prove(name, *(side if name == "latex" else parse(side) for side in (left, right)))


@pytest.mark.parametrize(
    ("name", "left", "right", "proved"),
    [
        ("equal", "x^2-1", "(x-1)(x+1)", True),
        ("equal", "1/(x-x)", "1/(x-x)", False),
        ("equation", "y-2x", "2x-y", True),
        ("equation", "3y-6x", "2x-y", True),
        ("equation", "y-2x", "y-2x-1", False),
        ("equation", "xy-2x^2", "y-2x", False),
        ("equation", "x-x", "y-2x", False),
        ("equation", "x-x", "x-x", False),
        ("equation", "1", "2", False),
        ("equation", "y^2-x^2", "y-x", False),
        ("relation", "2y-x", "4y-2x", True),
        ("relation", "2y-x", "x-2y", False),
        ("latex", r"\overline{AB}+1", r"1+\overline{AB}", True),
        ("latex", r"\overline{AB}", r"\overline{AC}", False),
        ("latex", r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", True),
        ("latex", r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", False),
        ("latex", "x )", "x )", False),
        ("latex", "1 = 1", "1 = 1", False),
        ("latex", "0.5", "0.5", False),
    ],
)
def test_what_the_worker_proves(worker, name, left, right, proved):
    assert claim(worker, name, left, right) is proved


def test_the_first_latex_question_does_not_pay_for_the_import():
    worker = Guard(time_limit=60)
    budget = Budget(60.0)
    worker.prove("latex", r"\vec{v}", r"\vec{w}", budget)
    used = 60 - budget.seconds
    worker.close()
    assert used < 1


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
