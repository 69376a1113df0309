"""Checkpoints survive what happens to machines: a process killed while saving, a disk that is full.

Each program below runs in a process of its own, from the repository's root, with its folder as the only argument.
"""

import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.checkpoint import RunCheckpoints

ROOT = Path(__file__).parents[2]

SAVE_FOREVER = """
import sys
import jax.numpy as jnp
from grpo_jax.checkpoint import RunCheckpoints

checkpoints = RunCheckpoints(sys.argv[1], keep=2)
step = checkpoints.latest_step() or 0
while True:
    step += 1
    checkpoints.save(step, {"w": jnp.full((256, 256), float(step)), "step": jnp.int32(step)}, {"step": step})
    if step % 3 == 0:
        checkpoints.wait()
        print(step, flush=True)
"""

# `limit(True)` makes the disk too small for one more checkpoint, `limit(False)` large enough.
FILL_THE_DISK = """
import os, resource, sys
import jax, jax.numpy as jnp, numpy as np
from grpo_jax.checkpoint import CheckpointWriteError, RunCheckpoints

{limit}

state = lambda step: {{"w": jax.random.normal(jax.random.key(step), (1024, 1024))}}
with RunCheckpoints(sys.argv[1] + "/run", keep=2) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, state(step), {{"at": step}})
    checkpoints.wait()
    limit(True)
    third = state(3)
    for attempt in range(2):
        try:
            checkpoints.save(3, third, {{"at": 3}})
            checkpoints.wait()
            raise SystemExit("the disk was not full")
        except CheckpointWriteError as error:
            print(error)
        assert checkpoints.steps() == (1, 2), checkpoints.steps()
    for step in (1, 2):
        restored = checkpoints.restore(third, step)
        assert restored.host == {{"at": step}}
        np.testing.assert_array_equal(restored.state["w"], state(step)["w"])
    limit(False)
    checkpoints.save(3, third, {{"at": 3}})
    np.testing.assert_array_equal(checkpoints.restore(third).state["w"], state(3)["w"])
    assert checkpoints.steps() == (2, 3)
    assert sorted(os.listdir(sys.argv[1] + "/run")) == ["2", "3"]
print("done")
"""

# A limit on the size of a file fails the same low-level writes as a full disk does, and needs no privileges.
BY_FILE_SIZE = """
def limit(on):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if on else resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

# The 24 MB file system holds two checkpoints of 4 MB each, twice over in Orbax's temporary files, and the filler.
BY_FULL_DISK = """
def limit(on):
    filler = sys.argv[1] + "/filler"
    if not on:
        os.remove(filler)
        return
    status = os.statvfs(sys.argv[1])
    with open(filler, "wb") as file:
        file.write(bytes(status.f_bavail * status.f_frsize - 1_000_000))
"""

MOUNT = "mount -t tmpfs -o size=24m none {folder} && exec {python} {program} {folder}"


def run(command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(text)}")
    return str(path)


@pytest.mark.slow
def test_a_process_killed_while_saving_leaves_a_whole_latest_checkpoint(tmp_path):
    folder = tmp_path / "run"
    delays = random.Random(0)
    reported = 0
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, program(tmp_path, SAVE_FOREVER), str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        reported = max(reported, int(child.stdout.readline()))
        time.sleep(delays.uniform(0.0, 0.6))
        child.kill()
        reported = max([reported, *map(int, child.stdout.read().split())])
        child.wait()
        with RunCheckpoints(folder, read_only=True) as checkpoints:
            restored = checkpoints.restore({"w": jnp.zeros((256, 256)), "step": jnp.int32(0)})
        assert restored.step >= reported, "a checkpoint that was reported to be on the disk is gone"
        assert restored.host == {"step": restored.step}
        assert int(restored.state["step"]) == restored.step
        np.testing.assert_array_equal(restored.state["w"], np.full((256, 256), float(restored.step)))
        # The next child takes the folder over as it is, unfinished folders and half-deleted old steps included.


def test_a_write_that_fails_is_one_clear_error_and_loses_nothing(tmp_path):
    done = run([sys.executable, program(tmp_path, FILL_THE_DISK.format(limit=BY_FILE_SIZE)), str(tmp_path)])
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stdout + done.stderr
    message = done.stdout.splitlines()[0]
    for words in ("step 3 could not be saved", str(tmp_path), "Intact there: steps 1, 2", "still in memory"):
        assert words in message
    assert done.stderr.count("\n") < 5, done.stderr


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path):
    mount = shutil.which("unshare")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root and `unshare`, to mount a small file system in a namespace of its own")
    probe = run([mount, "--mount", "sh", "-c", f"mount -t tmpfs -o size=1m none {tmp_path}"])
    if probe.returncode != 0:
        pytest.skip(f"this machine does not allow mounting a small file system: {probe.stderr.strip()}")
    folder = tmp_path / "disk"
    folder.mkdir()
    path = program(tmp_path, FILL_THE_DISK.format(limit=BY_FULL_DISK))
    script = MOUNT.format(folder=folder, python=sys.executable, program=path)
    done = run([mount, "--mount", "sh", "-c", script])
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stdout + done.stderr
    assert "the disk is full" in done.stdout.splitlines()[0]
    assert done.stderr.count("\n") < 5, done.stderr
