"""Records of a data set of the Hugging Face Hub, by the package `datasets` of the extra `hf`."""

from collections.abc import Iterator, Mapping
from typing import Any


def hub_rows(dataset: str, name: str | None, split: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields ("data set[split]:row", record), rows counted from 0. The package keeps its own cache on disk; this adds none.

    Args:
      dataset: "owner/name" on the Hub, or a folder that `datasets.load_dataset` can read.
      name: its configuration, None where it has one alone.
      split: one split of it.

    Raises:
      ValueError: the package is not installed, or the data set cannot be loaded.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"hub is {dataset!r}, but the package datasets that reads it is not installed: pip install 'grpo_jax[hf]'"
        ) from error
    try:
        rows = datasets.load_dataset(dataset, name, split=split)
    except Exception as error:  # no network, no such data set, configuration or split: the package has a class for each
        raise ValueError(
            f"hub is {dataset!r}, but its configuration {name!r}, split {split!r}, cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    for index, row in enumerate(rows):
        yield f"{dataset}[{split}]:{index}", row
