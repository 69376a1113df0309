"""Every hostile program scores 0, within its limits, and leaves nothing behind."""

import glob
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_jax.rewards.code import CodeConfig, code_reward
from grpo_jax.rewards.protocol import RewardInput

HERE = Path(__file__).parent
HOSTILE = [json.loads(line) for line in (HERE / "hostile_programs.jsonl").read_text().splitlines()]
# Without namespaces the code sees the file system and the machine; what is left holds in that mode too.
NAMESPACE_KINDS = {"disk filling", "/proc", "devices", "files", "environment", "programs", "kernel", "C"}
WEAKER = [program for program in HOSTILE if program["kind"] not in NAMESPACE_KINDS]

pytestmark = pytest.mark.slow


def row(program):
    metadata = {key: program[key] for key in ("tests", "cases", "entry_point", "preamble") if key in program}
    return RewardInput(prompt="", completion=program["completion"], reference="", ids=(), end="eos", metadata=metadata)


HONEST = {"completion": "def f(x):\n    return x + 1\n", "tests": "assert f(1) == 2\n", "entry_point": "f"}


def ours():
    """Processes below this one, and sandboxes that have lost their parent."""
    parents, commands = {}, {}
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            with open(folder + "/stat") as stat, open(folder + "/cmdline", "rb") as cmdline:
                pid, _, rest = stat.read().partition(" ")
                parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
                commands[int(pid)] = cmdline.read()
        except OSError:
            continue
    below, size = {os.getpid()}, 0
    while len(below) > size:
        size = len(below)
        below |= {pid for pid, parent in parents.items() if parent in below}
    return {pid for pid, parent in parents.items() if pid in below or (parent == 1 and b"marshal,posix" in commands[pid])}


def left_behind():
    return glob.glob("/tmp/grpo-code-*") + glob.glob("/**/*grpo-hostile*") + glob.glob("/tmp/*grpo-hostile*")


def judged(config, programs):
    reward = code_reward(config)

    def one(numbered):
        number, program = numbered
        start = time.monotonic()
        value = reward(row(program))
        honest = reward(row(HONEST)) if number % 5 == 0 else 1.0
        return program["kind"], program["name"], value, honest, time.monotonic() - start

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, enumerate(programs)))


def test_the_list_is_long_and_well_formed():
    assert len(HOSTILE) >= 80 and len({(program["kind"], program["name"]) for program in HOSTILE}) == len(HOSTILE)
    assert all(("tests" in program) != ("cases" in program) for program in HOSTILE)


def contained(config, programs):
    before, files, descriptors = ours(), left_behind(), len(os.listdir("/proc/self/fd"))
    results = judged(config, programs)
    assert [result[:3] for result in results if result[2] != 0.0] == []
    assert [result[:2] for result in results if result[3] != 1.0] == [], "the next honest program did not pass"
    # Twice the wall limit and the time to start and end, on a busy machine.
    assert [result for result in results if result[4] > 2 * config.limits.wall_seconds + 20] == []
    assert ours() == before
    assert left_behind() == files
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_all_are_contained(shut_in):
    contained(shut_in, HOSTILE)


@pytest.mark.filterwarnings("ignore:sandbox is 'rlimits'")
def test_those_that_need_no_namespace_are_contained_by_limits_alone(shut_in):
    contained(CodeConfig(sandbox="rlimits", limits=shut_in.limits), WEAKER[::4])
