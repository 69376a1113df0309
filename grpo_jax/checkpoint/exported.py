"""An exported model as a starting point: what `grpo export` wrote, opened the way a GGUF file is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grpo_jax.checkpoint.errors import CheckpointMismatchError
from grpo_jax.checkpoint.export import config_from_json, load_exported, read_model_json
from grpo_jax.checkpoint.gguf import GGUFModel
from grpo_jax.data import CharacterTokenizer, HFTokenizer, Tokenizer
from grpo_jax.data.arithmetic import ALPHABET
from grpo_jax.model import ModelConfig
from grpo_jax.types import Params


class ExportedModel:
    """An export's folder, its description read; the parameters are not.

    Args:
      directory: the folder.

    Raises:
      FileNotFoundError: there is no export in it.
      CheckpointUnreadableError: its description is damaged or of another version.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory)
        self._document = read_model_json(directory)

    def model_config(self) -> ModelConfig:
        """Returns the model's shape, as it was exported."""
        return config_from_json(self._document["model"])

    def tokenizer(self) -> Tokenizer:
        """Rebuilds the tokenizer that the parameters were trained with.

        Raises:
          FileNotFoundError: its file is no longer there.
          CheckpointMismatchError: what is there now is another tokenizer.
        """
        described = self._document["tokenizer"]
        tokenizer: Tokenizer
        if described.get("pretrained") is not None:
            tokenizer = open_pretrained(described["pretrained"]).tokenizer()
        elif described.get("path") is not None:
            tokenizer = HFTokenizer.from_file(described["path"], eos=tuple(described["eos"]))
        else:
            tokenizer = CharacterTokenizer(described.get("alphabet") or ALPHABET)
        if tokenizer.fingerprint() != described.get("fingerprint"):
            raise CheckpointMismatchError(
                f"the tokenizer of the export in {self.path} is not the one that its parameters were trained with: a file "
                "of it has changed since. Restore the file, or export again"
            )
        return tokenizer

    def load_params(self, config: ModelConfig, *, shardings: Any = None) -> Params:
        """Reads the parameters; `config` is `model_config()`, but for what does not change their shapes."""
        return load_exported(self.path, shardings=shardings)[1]


def open_pretrained(source: str) -> ExportedModel | GGUFModel:
    """The model at a path: an export where it is a folder, else a GGUF file or `package:NAME`.

    Raises:
      FileNotFoundError: there is none.
      CheckpointError: it cannot be read.
    """
    return ExportedModel(source) if Path(source).is_dir() else GGUFModel(source)
