"""Parameters alone, with what is needed to build their model: a folder that loads without any training code.

- `<directory>/params/`: an Orbax checkpoint of the nested parameter dict, which `StandardCheckpointer` reads
- `<directory>/model.json`: `{"format": 1, "model": {...ModelConfig...}, "tokenizer": {...}}`
"""

import dataclasses
import json
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from grpo_jax.checkpoint.atomic import atomic_write
from grpo_jax.checkpoint.errors import CheckpointUnreadableError
from grpo_jax.checkpoint.structure import check_structure, describe, flatten, restore_target
from grpo_jax.model import ModelConfig, abstract_params
from grpo_jax.types import Params

FORMAT = 1
PARAMS = "params"
MODEL = "model.json"


def export_params(
    params: Params,
    config: ModelConfig,
    directory: str | os.PathLike[str],
    *,
    tokenizer: Mapping[str, Any] | None = None,
) -> Path:
    """Writes parameters and model config; returns the folder.

    `model.json` is written last and atomically, so a folder that has it is whole.

    Args:
      params: the tree of `init_params(config)`.
      config: the model they belong to.
      directory: made if missing; an export already there is not overwritten.
      tokenizer: a JSON document that says how to rebuild the tokenizer (name, fingerprint, alphabet or file); kept
        as it is.

    Raises:
      CheckpointMismatchError: `params` are not those of `config`.
      FileExistsError: the folder already holds an export.
    """
    folder = Path(directory).absolute()
    check_structure(_leaves(params), _leaves(abstract_params(config)), source="the export's arguments")
    for name in (PARAMS, MODEL):
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name} exists already; exports are not overwritten: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / PARAMS, dict(params))
    document = {"format": FORMAT, "model": dataclasses.asdict(config), "tokenizer": dict(tokenizer or {})}
    atomic_write(folder / MODEL, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return folder


def load_exported(directory: str | os.PathLike[str], *, shardings: Any = None) -> tuple[ModelConfig, Params]:
    """Reads what `export_params` wrote.

    Args:
      directory: the export's folder.
      shardings: tree of shardings shaped like the parameters, None for the first local device.

    Returns:
      The model config and its parameters.

    Raises:
      FileNotFoundError: there is no export in `directory`.
      CheckpointUnreadableError: `model.json` or the arrays are damaged.
      CheckpointMismatchError: the arrays are not those of the config.
    """
    folder = Path(directory).absolute()
    config = config_from_json(read_model_json(folder)["model"])
    wanted = abstract_params(config)
    if shardings is not None:
        wanted = jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), wanted, shardings)
    with ocp.StandardCheckpointer() as checkpointer:
        try:
            saved = checkpointer.metadata(folder / PARAMS).item_metadata.tree
        except Exception as error:
            raise CheckpointUnreadableError(_damaged(folder, error)) from error
        check_structure(_leaves(saved), _leaves(wanted), source=str(folder))
        try:
            return config, checkpointer.restore(folder / PARAMS, jax.tree.map(restore_target, wanted))
        except Exception as error:
            raise CheckpointUnreadableError(_damaged(folder, error)) from error


def read_model_json(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the document in an export's `model.json`: format, model, tokenizer.

    Raises:
      FileNotFoundError: there is none.
      CheckpointUnreadableError: it is not JSON, or of another format.
    """
    path = Path(directory) / MODEL
    if not path.is_file():
        raise FileNotFoundError(f"no export in {path.parent}: {MODEL} is missing; name a folder that export_params wrote")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointUnreadableError(f"{path} is not JSON: {error}; export again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise CheckpointUnreadableError(f"{path} has format {found!r}, this version reads {FORMAT}; export again")
    return document


def config_from_json(document: Mapping[str, Any]) -> ModelConfig:
    """Rebuilds the config from `dataclasses.asdict(config)` after a trip through JSON.

    Raises:
      CheckpointUnreadableError: a field is unknown, missing or impossible; names it.
    """
    try:
        return _build(ModelConfig, document)
    except (TypeError, ValueError) as error:
        raise CheckpointUnreadableError(
            f"the model config of the export does not build a ModelConfig: {error}; it was written by another version"
        ) from error


def _build(cls: Any, document: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    values = {name: _value(hints.get(name), value) for name, value in document.items()}
    return cls(**values)


def _value(hint: Any, value: Any) -> Any:
    # A nested config is a dict in JSON; its dataclass stands in the field's type, alone or beside None.
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    nested = [option for option in options if dataclasses.is_dataclass(option)]
    return _build(nested[0], value) if nested and isinstance(value, dict) else value


def _leaves(tree: Any) -> list[Any]:
    return [describe(path, leaf) for path, leaf in flatten(tree).items()]


def _damaged(folder: Path, error: Exception) -> str:
    return f"the parameters in {folder / PARAMS} cannot be read: {' '.join(str(error).split())[:300]}; export again"
