"""The floors of the house: a room imports rooms below it and never one above, and some rooms import no jax."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "grpo_jax"

# Each room with the rooms that it may import. A room that is not listed here has no place in the house yet.
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "parallel": {"types"},
    "model": {"types", "parallel"},
    "objectives": {"types", "parallel"},
    "generation": {"types", "parallel", "model"},
    "data": set(),
    "rewards": set(),
    "checkpoint": {"types", "parallel", "model", "data"},
    "evaluation": {"types", "parallel", "model", "objectives", "generation", "data", "rewards", "checkpoint"},
}
MAY_IMPORT["training"] = MAY_IMPORT["evaluation"] | {"evaluation"}
MAY_IMPORT["cli"] = MAY_IMPORT["training"] | {"training"}

WITHOUT_JAX = ("data", "rewards")
LINEN_HOME = "model"


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room is meant"
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    room = room_of(path)
    assert room in MAY_IMPORT, f"{room} is not in the plan: give it a floor"
    for module in imported_modules(path):
        parts = module.split(".")
        if parts[0] == "grpo_jax" and len(parts) > 1:
            assert parts[1] in MAY_IMPORT[room] | {room}, f"{room} must not import {parts[1]} ({module})"


@pytest.mark.parametrize("path", [path for path in SOURCES if room_of(path) in WITHOUT_JAX], ids=str)
def test_host_rooms_do_not_import_jax(path: Path) -> None:
    assert not {module for module in imported_modules(path) if module.split(".")[0] in ("jax", "flax")}


@pytest.mark.parametrize("path", [path for path in SOURCES if room_of(path) != LINEN_HOME], ids=str)
def test_linen_stays_in_the_model_room(path: Path) -> None:
    assert not {module for module in imported_modules(path) if module.startswith("flax.linen")}


def test_kernels_know_nothing_of_the_rooms_above() -> None:
    sources = sorted((ROOT / "pallas_kernels").rglob("*.py"))
    assert len(sources) > 30
    for path in sources:
        assert not {module for module in imported_modules(path) if module.split(".")[0] == "grpo_jax"}, path


def test_every_package_lists_its_public_names() -> None:
    for init in PACKAGE.rglob("__init__.py"):
        assert "__all__" in init.read_text(), f"{init.parent.name} has no explicit list of public names"
