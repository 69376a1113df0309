"""The notebooks run from top to bottom in a fresh kernel."""

import os
from pathlib import Path

import nbformat
import pytest
from nbconvert.preprocessors import ExecutePreprocessor

from grpo_jax.rewards.code import CodeConfig, SandboxFault, check_sandbox

ROOT = Path(__file__).parents[1]


def need_sandbox() -> None:
    try:
        check_sandbox(CodeConfig())
    except SandboxFault as fault:
        if os.environ.get("CI"):
            pytest.fail(str(fault))
        pytest.skip(str(fault))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "commit notebooks without outputs"
    if any("run_python" in cell.source for cell in notebook.cells):
        need_sandbox()
    runner = ExecutePreprocessor(timeout=1200, startup_timeout=600)
    runner.preprocess(notebook, {"metadata": {"path": str(ROOT / "notebooks")}})
