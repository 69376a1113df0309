"""A program that asks for huge pages begins again once, with its arguments, and only where that can help."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_jax.cli import huge_pages

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
from grpo_jax.cli.huge_pages import use_huge_pages
print(os.getpid(), flush=True)
use_huge_pages()
print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1:])
"""


def lines(tmp_path: Path, **environment: str) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    clean = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    result = subprocess.run(
        [sys.executable, str(script), "--a", "b c"],
        env=clean | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


@pytest.mark.skipif(not huge_pages._grants_huge_pages(), reason="this kernel grants no huge pages")
def test_process_begins_again_once_with_its_arguments_and_id(tmp_path: Path) -> None:
    first, second, last = lines(tmp_path)
    assert first == second
    assert last == "glibc.malloc.hugetlb=1 ['--a', 'b c']"


def test_a_setting_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    _, last = lines(tmp_path, GLIBC_TUNABLES="glibc.malloc.arena_max=2")
    assert last == "glibc.malloc.arena_max=2 ['--a', 'b c']"
