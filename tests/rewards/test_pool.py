"""The pool of reward processes: what a reward does to its own process costs one row, and nothing outlives the pool."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from grpo_jax.rewards import CompositeReward, PoolClosed, PoolConfig, RewardConfig, RewardInput

MODULE = """
import asyncio, ctypes, math, os, signal, sys, time

def length(row):
    return float(len(row.ids))

def by_completion(row):
    if row.completion == "hang":
        time.sleep(1000)
    if row.completion == "hold":  # the interpreter's lock, for ever
        return float(9 ** 9 ** 9)
    if row.completion == "exit":
        os._exit(0)
    if row.completion == "crash":
        ctypes.string_at(0)
    if row.completion == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if row.completion == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if row.completion == "raise":
        raise ValueError("bad row")
    if row.completion == "sys.exit":
        sys.exit(3)
    if row.completion == "absent":
        return None
    return float(row.metadata.get("score", 1.0))

def chatty(row):
    print('[0, "accuracy", 99.0, null, ""]' * 1000)
    os.write(1, b'{"ready": true}\\n')
    sys.stdin.read()
    return 0.5

def noisy(row):
    if row.completion:  # writes where the answers go, whatever descriptor that is
        for descriptor in range(3, 40):
            try:
                os.write(descriptor, row.completion.encode("utf-8", "surrogateescape") + b"\\n")
            except OSError:
                pass
    return 1.0

def forks(row):
    if row.completion == "fork":
        os.fork()
    return 1.0

def starts(row):
    import subprocess
    subprocess.Popen(["sleep", "77.125"])
    if row.completion == "hang":
        time.sleep(1000)
    return 1.0

def huge(row):
    return 1e39

async def awaited(row):
    if row.completion == "hang":
        await asyncio.sleep(1000)
    if row.completion == "raise":
        raise ValueError("bad row")
    if row.completion == "block":
        time.sleep(1000)
    await asyncio.sleep(0.5)
    return float(len(row.ids))

class Judge:
    async def __call__(self, row):
        await asyncio.sleep(0)
        return 2.0

judge = Judge()

class BatchJudge:
    def judge_batch(self, rows):
        if any(row.completion == "raise" for row in rows):
            raise ValueError("no rewards for this batch")
        if any(row.completion == "short" for row in rows):
            return [1.0]
        return [float(len(rows)), None, math.inf][: len(rows)]

batch_judge = BatchJudge()

def slow(row):
    time.sleep(0.02)
    return float(os.getpid())
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "pool_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def row(completion="", ids=(1, 2), **options):
    return RewardInput(prompt="", completion=completion, reference="", ids=ids, end="eos", **options)


def composite(name, **pool):
    pool = {"workers": 2, "timeout": 1.5} | pool
    return CompositeReward(
        RewardConfig(accuracy=f"pool_rewards:{name}", format_weight=0, termination_weight=0, pool=PoolConfig(**pool))
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, seconds=10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_rows_keep_their_order_whichever_worker_judges_them():
    with composite("length") as reward:
        result = reward.score([row(ids=range(count)) for count in range(200)])
        np.testing.assert_array_equal(result.accuracy, np.arange(200))
        assert reward.score([]).total.shape == (0,)


def test_both_workers_judge():
    with composite("slow") as reward:
        assert len(set(reward.score([row()] * 64).accuracy.tolist())) == 2


@pytest.mark.parametrize("how", ["hang", "hold", "stop"])
def test_a_reward_that_hangs_is_missing_on_its_row_alone_and_its_worker_is_replaced(how, caplog):
    with composite("by_completion", workers=1) as reward:
        result = reward.score([row(), row(how, metadata={"note": "the hanging one"}), row(metadata={"score": 3.0})])
        np.testing.assert_array_equal(result.accuracy, [1, np.nan, 3])
        np.testing.assert_array_equal(np.isnan(result.total), [False, True, False])
        assert (result.failed["accuracy"], result.timed_out["accuracy"], result.missing["accuracy"]) == (1, 1, 0)
        assert [(each.row, each.failure) for each in result.failures] == [(1, "timed_out")]
        assert "the hanging one" in caplog.text and "no answer within 1.5 s" in caplog.text
        assert reward.pool.restarts == 1 and len(reward.pool.pids) == 1


@pytest.mark.parametrize("how", ["exit", "crash", "kill"])
def test_a_reward_that_ends_its_process_is_missing_on_its_row_alone(how):
    with composite("by_completion") as reward:
        result = reward.score([row(), row(how), row(), row(how), row()])
        np.testing.assert_array_equal(result.accuracy, [1, np.nan, 1, np.nan, 1])
        assert [each.failure for each in result.failures] == ["died", "died"]
        assert (result.failed["accuracy"], result.timed_out["accuracy"]) == (2, 0)


def test_a_reward_that_raises_or_does_not_apply_keeps_its_worker():
    with composite("by_completion", workers=1) as reward:
        result = reward.score([row("raise"), row("sys.exit"), row("absent"), row()])
        np.testing.assert_array_equal(result.accuracy, [np.nan, np.nan, np.nan, 1])
        assert [each.failure for each in result.failures] == ["raised", "raised"]
        assert "ValueError: bad row" in result.failures[0].report
        assert (result.failed["accuracy"], result.missing["accuracy"]) == (2, 1)
        assert reward.pool.restarts == 0


def test_a_reward_that_hangs_on_everything_is_given_up_after_a_few_rows(caplog):
    with composite("by_completion", timeout=0.5) as reward:
        started = time.monotonic()
        result = reward.score([row("hang")] * 64)
        # Waited out, each of two workers would need 32 times half a second and as many starts.
        assert time.monotonic() - started < 16
        assert np.isnan(result.total).all() and result.timed_out["accuracy"] == 64
        assert reward.score([row()]).accuracy.tolist() == [1.0]


def test_what_a_reward_prints_or_reads_is_not_taken_for_an_answer():
    with composite("chatty") as reward:
        assert reward.score([row()] * 8).accuracy.tolist() == [0.5] * 8


def test_awaited_rewards_wait_together():
    with composite("awaited", workers=1, timeout=20) as reward:
        reward.check()
        started = time.monotonic()
        result = reward.score([row(ids=range(count)) for count in range(16)])
        assert time.monotonic() - started < 4  # 8 s one after the other
        np.testing.assert_array_equal(result.accuracy, np.arange(16))


def test_an_awaited_reward_that_hangs_costs_its_row_alone():
    with composite("awaited", workers=1) as reward:
        result = reward.score([row(), row("hang"), row("raise"), row()])
        np.testing.assert_array_equal(result.accuracy, [2, np.nan, np.nan, 2])
        assert [each.failure for each in result.failures] == ["timed_out", "raised"]
        assert reward.pool.restarts == 0


def test_an_awaited_reward_that_never_yields_is_ended_with_its_worker():
    with composite("awaited", workers=1, timeout=0.5) as reward:
        assert reward.score([row("block")]).timed_out["accuracy"] == 1
        assert reward.score([row()]).timed_out["accuracy"] == 1  # 0.5 s of waiting, and 0.5 s are allowed
        assert reward.pool.restarts == 1


def test_an_object_can_be_awaited_too():
    with composite("judge") as reward:
        assert reward.score([row()] * 3).accuracy.tolist() == [2.0] * 3


def test_without_workers_rewards_are_judged_here():
    for name, expected in (("awaited", 2.0), ("length", 2.0), ("judge", 2.0)):
        reward = composite(name, workers=0)
        assert reward.pool is None
        assert reward.score([row()]).accuracy.tolist() == [expected]


def test_a_judge_of_batches_is_asked_once_in_the_trainers_process():
    reward = CompositeReward(RewardConfig(accuracy="pool_rewards:batch_judge", format_weight=0, termination_weight=0))
    assert reward.pool is None
    result = reward.score([row(), row(), row()])
    np.testing.assert_array_equal(result.accuracy, [3, np.nan, np.nan])
    assert (result.missing["accuracy"], result.failed["accuracy"]) == (1, 1)
    assert reward.score([]).total.shape == (0,)


@pytest.mark.parametrize(
    ("completion", "report"), [("raise", "no rewards for this batch"), ("short", "1 rewards for 2 rows")]
)
def test_a_judge_of_batches_that_fails_is_missing_on_all_of_them(completion, report):
    reward = CompositeReward(RewardConfig(extras={"pool_rewards:batch_judge": 1.0}))
    result = reward.score([row(completion), row()])
    assert np.isnan(result.total).all() and report in result.failures[0].report


def test_submitted_rows_are_judged_while_the_caller_does_other_things():
    with composite("slow", workers=1) as reward:
        reward.check()
        pending = reward.submit([row()] * 50)
        time.sleep(2.5)
        started = time.monotonic()
        assert not np.isnan(pending.result().accuracy).any()
        assert time.monotonic() - started < 0.5  # a second, were it only begun now


def test_whoever_hands_in_too_much_waits():
    with composite("slow", workers=1, max_pending=32) as reward:
        reward.check()
        pending, started = [], time.monotonic()
        for _ in range(6):
            pending.append(reward.submit([row()] * 32))
        # 192 rows of 0.02 s, of which no more than 32 and a few in work may wait when the last is taken.
        assert time.monotonic() - started > 0.02 * (192 - 32 - 4 * 16)
        assert sum(each.result().accuracy.size for each in pending) == 192


def test_closing_ends_the_workers_and_the_waiting():
    reward = composite("by_completion", timeout=100)
    reward.check()
    pending = reward.submit([row("hang")] * 4)
    pids = reward.pool.pids
    threading.Timer(0.5, reward.close).start()
    with pytest.raises(PoolClosed):
        pending.result()
    assert pids and gone(pids)
    with pytest.raises(PoolClosed):
        reward.submit([row()])
    reward.close()


def test_a_pool_that_nobody_holds_ends():
    reward = composite("length")
    reward.score([row()] * 40)
    pids = reward.pool.pids
    del reward
    assert pids and gone(pids)


def test_a_killed_worker_is_replaced():
    with composite("length") as reward:
        reward.score([row()] * 40)
        for pid in reward.pool.pids:
            os.kill(pid, signal.SIGKILL)
        result = reward.score([row()] * 40)
        # The row that a dead worker was asked about is lost with it, since it may have been the reason.
        assert np.isnan(result.total).sum() <= 2 and reward.pool.restarts >= 1


def test_a_reward_that_workers_cannot_load_is_refused_at_once(tmp_path):
    path = tmp_path / "only_here.py"
    path.write_text("def one(row):\n    return 1.0\n")
    reward = CompositeReward(RewardConfig(extras={"only_here:one": 1.0}))
    path.unlink()
    with pytest.raises(ValueError, match=r"cannot build their rewards.*only_here"):
        reward.check()
    with pytest.raises(ValueError, match="cannot build their rewards"):
        reward.score([row()])
    reward.close()


TRAINER = """
import sys, time
sys.path.insert(0, {folder!r})
from grpo_jax.rewards import CompositeReward, PoolConfig, RewardConfig, RewardInput
row = lambda text: RewardInput(prompt="", completion=text, reference="", ids=(), end="eos")
reward = CompositeReward(RewardConfig(accuracy="pool_rewards:by_completion", pool=PoolConfig(workers=2, timeout=300)))
reward.score([row("")] * 40)
print(*reward.pool.pids, flush=True)
reward.submit([row("hold"), row("hang")] * 4).result()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_a_trainer_that_is_ended(number, tmp_path):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER.format(folder=str(tmp_path))],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # Whoever started these tests in the background may have had Ctrl-C ignored, which is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2 and all(alive(pid) for pid in pids)
        time.sleep(1.0)
        trainer.send_signal(number)
        assert trainer.wait(timeout=20) != 0
        assert gone(pids)
    finally:
        trainer.kill()
        trainer.communicate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"timeout": 0.0}, "timeout is 0"),
        ({"timeout": math.inf}, "timeout is inf"),
        ({"max_pending": 0}, "max_pending is 0"),
    ],
)
def test_impossible_pools_are_refused_by_field(options, message):
    with pytest.raises(ValueError, match=message):
        PoolConfig(**options)


def test_a_pool_that_nothing_would_use_is_refused():
    with pytest.raises(ValueError, match=r"^pool is given, but it must be null"):
        CompositeReward(RewardConfig(accuracy="boxed_once", pool=PoolConfig()))


@pytest.mark.parametrize(
    "text", ["hello", "x" * 200, "\udcff\udcfe", '{"a": 1}', '[0, "accuracy", 99.0, null, ""]', "[7, null]"]
)
def test_a_reward_that_writes_among_the_answers_costs_its_worker_and_no_more(text):
    with composite("noisy", workers=1) as reward:
        result = reward.score([row(), row(text), row(), row()])
        assert reward.score([row()] * 3).accuracy.tolist() == [1, 1, 1]
    # A well-formed lie about a row that is being judged is believed: it is the reward's own word, either way.
    assert np.isnan(result.accuracy).sum() <= 1 and result.accuracy[3] == 1


def test_a_reward_that_forks_costs_rows_and_not_the_run():
    with composite("forks", workers=1) as reward:
        reward.score([row(), row("fork"), row(), row()])
        pids = reward.pool.pids
        assert np.isnan(reward.score([row()] * 8).accuracy).sum() <= 2
        assert reward.score([row()] * 3).accuracy.tolist() == [1, 1, 1]
    assert gone(pids)


def processes_named(text):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_what_a_reward_starts_ends_with_its_worker():
    with composite("starts", workers=1) as reward:
        assert np.isnan(reward.score([row(), row("hang")]).accuracy).tolist() == [False, True]
    deadline = time.monotonic() + 5
    while processes_named(b"77.125") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_named(b"77.125") == []


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [lambda: 1, nested(20_000)], ids=["a function", "deep"])
def test_a_row_that_cannot_be_sent_to_a_process_is_missing_alone(value):
    with composite("length", workers=1) as reward:
        result = reward.score([row(), row(metadata={"bad": value}), row()])
        np.testing.assert_array_equal(result.accuracy, [2, np.nan, 2])
        assert [each.failure for each in result.failures] == ["raised"]


def test_a_number_that_float32_cannot_hold_has_failed():
    with composite("huge") as reward:
        result = reward.score([row()])
        assert np.isnan(result.total).all() and result.failed["accuracy"] == 1
    result = CompositeReward(RewardConfig(accuracy="last_number", format_weight=1e300)).score(
        [RewardInput(prompt="", completion="<think></think><answer>2</answer>", reference="2", ids=(1,), end="eos")]
    )
    assert np.isnan(result.total).all()


def test_a_forked_trainer_is_told_that_the_pool_is_not_its_own():
    with composite("length") as reward:
        reward.score([row()])
        pid = os.fork()
        if pid == 0:
            try:
                reward.score([row()])
            except PoolClosed:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert reward.score([row()]).accuracy.tolist() == [2]
