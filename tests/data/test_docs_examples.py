"""The examples in docs/tasks.md and docs/rewards.md run as they stand."""

import os
import re
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|jsonl)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["tasks.md", "rewards.md"])
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    if page == "rewards.md" and not os.environ.get("CI") and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt install bubblewrap")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert len(blocks) >= 4
    names: dict = {}
    for language, file, code in blocks:
        if file:
            (tmp_path / file).write_text(code)
        else:
            assert language == "python"
            exec(compile(code, page, "exec"), names)
