"""The public names: importable from the package, documented in their docstrings and in docs/api.md."""

import re
from pathlib import Path

import pytest

import grpo_jax

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
ROWS = set(re.findall(r"^\| `(\w+)", PAGE, re.M))


@pytest.mark.parametrize("name", grpo_jax.__all__)
def test_public_name_is_importable_and_documented(name: str) -> None:
    assert (getattr(grpo_jax, name).__doc__ or "").strip()
    assert name in ROWS


def test_page_lists_no_name_that_is_not_there() -> None:
    assert set(grpo_jax.__all__) == ROWS


def test_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="grpo_step"):
        grpo_jax.nothing_of_that_name  # noqa: B018
