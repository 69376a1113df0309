"""YAML files and command-line options to a RunConfig and back.

The keys are the fields of the dataclasses in config.py and nothing else: an unknown key, a wrong type and a bad value
are each one ConfigError that says where it stands, what was given and what is allowed.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo_jax.training import schema
from grpo_jax.training.config import RolloutConfig, RunConfig
from grpo_jax.training.recipes import with_recipe
from grpo_jax.training.rules import check
from grpo_jax.training.schema import ConfigError, Tree

COMMAND_LINE = "command line"


def load(path: Path | None = None, options: Sequence[tuple[str, str]] = (), recipe: str | None = None) -> RunConfig:
    """A checked RunConfig from a YAML file, a recipe over it, and options over both.

    Args:
        path: the file; None starts from the defaults.
        options: dotted keys and their values as text, as on the command line; of two for one key the last counts.
        recipe: the name of one of grpo_jax.training.recipes.RECIPES; None for none.

    Raises:
        ConfigError: the file cannot be read, there is no such recipe, or the configuration is not one that can be run.
    """
    tree: Tree = {} if path is None else schema.checked(RunConfig, read_yaml(path), str(path))
    if recipe is not None:
        # A recipe goes by the run's length, which an option may give.
        rollout = _with_options(tree, options).get("rollout", {})
        tree = with_recipe(tree, recipe, rollout.get("max_completion_tokens", RolloutConfig.max_completion_tokens))
    config = schema.built(RunConfig, _with_options(tree, options))
    check(config)
    return config


def _with_options(tree: Tree, options: Sequence[tuple[str, str]]) -> Tree:
    for key, text in options:
        tree = schema.merged(tree, _option_tree(key, text))
    return tree


def read_run_dir(path: Path | None, options: Sequence[tuple[str, str]]) -> str:
    """The run_dir of a configuration, whatever else it holds.

    Args:
        path: its file; None starts from the default.
        options: options that go over it; of those for run_dir the last counts.
    """
    given = [text for key, text in options if key == "run_dir"]
    if given:
        return given[-1]
    tree = {} if path is None else schema.checked(RunConfig, read_yaml(path), str(path))
    return tree.get("run_dir", RunConfig.run_dir)


def dumped(config: RunConfig) -> str:
    """The whole configuration, defaults included, as YAML that `load` turns back into the same RunConfig."""
    return yaml.safe_dump(schema.plain(config), sort_keys=False, allow_unicode=True, width=120)


def read_yaml(path: Path) -> object:
    """The content of a YAML file.

    Raises:
        ConfigError: there is no such file, it is empty, it is not YAML, or a mapping in it has one key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        beside = sorted(other.name for other in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        there = f"; {path.parent} has {', '.join(beside)}" if beside else ""
        raise ConfigError(f"{path}: there is no such configuration file{there}") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: is a directory, not a YAML file. A run's own is {path / 'config.yaml'}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {_yaml_problem(error)}") from error
    if content is None:
        raise ConfigError(f"{path}: is empty, but it must hold at least one key. Leave --config out for the defaults")
    return content


def _option_tree(key: str, text: str) -> Tree:
    annotation, parts = schema.located(RunConfig, key, text, COMMAND_LINE)
    tree: Any = _option_value(annotation, key, text)
    for part in reversed(parts):
        tree = {part: tree}
    return schema.checked(RunConfig, tree, COMMAND_LINE)


def _option_value(annotation: Any, key: str, text: str) -> object:
    """The text of an option as a plain value: text stays as it stands, everything else is read as YAML."""
    if text == "null" and schema.is_optional(annotation):
        return None
    if schema.is_text(annotation):
        return text
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{COMMAND_LINE}: {key} is {text!r}, but it must be {schema.describe(annotation)}") from error


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return f"is not YAML: {error}"


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, and reads 1e-4 as the number that it looks like."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: set[object] = set()
        for key_node, _ in node.value:
            # `<<` merges another mapping, whose keys may well be given again.
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice in one section; keep one of them", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML speaks, wants a dot in a float and a sign in its exponent, and takes `1e-4` for text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
