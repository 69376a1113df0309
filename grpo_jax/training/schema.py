"""Dataclasses as a schema: the keys they have, and plain trees (from YAML) checked against them and built into them.

A tree is nested dicts of plain values, each dict a section. Three steps lead from trees to a dataclass: `checked`
refuses unknown keys and wrong types and names the place they came from, `merged` lays one tree over another, and
`built` makes the dataclasses, whose own `__post_init__` refuses bad values. Each refusal is a ConfigError with one
message.

jsonargparse parses the same dataclasses, but reports a mistyped key below an optional section as ten lines about union
subtypes, names no nearest key, and leaves such sections' keys out of --help.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

Tree = dict[str, Any]


class ConfigError(ValueError):
    """A configuration that cannot be run. The message names the key, the value, the rule and the remedy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a schema.

    Attributes:
        path: dotted path, the name of the key.
        annotation: the type of its value.
        default: what it is when no tree gives it; dataclasses.MISSING where one must.
        doc: its line in the docstring of its dataclass.
        section: the dataclass whose fields are the keys below this one; None for a key that holds a value.
    """

    path: str
    annotation: Any
    default: Any
    doc: str
    section: type | None


def keys(cls: type, default: Any = None, prefix: str = "") -> Iterator[Key]:
    """Every key of a dataclass, sections before the keys below them, in the order of the fields.

    Args:
        cls: the dataclass.
        default: the instance whose values are the defaults; None takes the defaults of the fields.
        prefix: dotted path of the section itself, with its dot.
    """
    docs = field_docs(cls)
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        path, annotation = prefix + field.name, hints[field.name]
        value = _default(field) if default is None else getattr(default, field.name)
        section = section_type(annotation)
        yield Key(path=path, annotation=annotation, default=value, doc=docs.get(field.name, ""), section=section)
        if section is not None:
            yield from keys(section, value if isinstance(value, section) else None, path + ".")


def field_docs(cls: type) -> dict[str, str]:
    """The text that the docstrings of a dataclass and its bases give each field, under `Attributes:` or `Args:`."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        lines = (base.__doc__ or "").splitlines()
        start = next((i for i, line in enumerate(lines) if line.strip() in ("Attributes:", "Args:")), len(lines))
        indent, name = None, ""
        for line in lines[start + 1 :]:
            if not line.strip():
                continue
            depth = len(line) - len(line.lstrip())
            indent = depth if indent is None else indent
            if depth < indent:
                break
            entry = re.match(r"(\w+)(?: \([^)]*\))?:\s*(.*)", line.strip())
            if depth == indent and entry:
                name = entry[1]
                docs[name] = entry[2]
            elif name:
                docs[name] = f"{docs[name]} {line.strip()}".strip()
    return docs


def section_type(annotation: Any) -> type | None:
    """The dataclass of a section; None where the annotation is of a value."""
    sections = [member for member in _members(annotation) if dataclasses.is_dataclass(member)]
    return typing.cast(type, sections[0]) if sections else None


def checked(cls: type, tree: object, origin: str) -> Tree:
    """A tree with its values converted, after refusing keys and types that the dataclass does not have.

    Args:
        cls: the dataclass of the whole tree.
        tree: nested mappings; keys may be left out.
        origin: where the tree comes from, for messages: a file's name or `command line`.
    """
    return _checked_section(cls, cls, tree, "", origin)


def merged(base: Tree, over: Tree) -> Tree:
    """`base` with what `over` gives laid over it, section by section."""
    result = dict(base)
    for name, value in over.items():
        below = result.get(name)
        result[name] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def built(cls: type, tree: Tree, default: Any = None, path: str = "") -> Any:
    """The dataclass of a checked tree; what the tree leaves out comes from `default` or the defaults of the fields."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        where = f"{path}.{field.name}" if path else field.name
        fallback = _default(field) if default is None else getattr(default, field.name)
        if field.name in tree:
            values[field.name] = _built_value(hints[field.name], tree[field.name], fallback, where)
        elif fallback is dataclasses.MISSING:
            raise ConfigError(
                f"{where} is not given, but it must be: it has no default. Give it {describe(hints[field.name])}"
            )
        else:
            values[field.name] = fallback
    try:
        return cls(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(_located(cls, path, str(error))) from error


def plain(value: Any) -> Any:
    """The tree of a dataclass: dicts and lists of plain values, which `checked` and `built` turn back into it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def located(cls: type, path: str, value: object, origin: str) -> tuple[Any, list[str]]:
    """The annotation of the key at a dotted path, and the path in parts.

    What follows a free mapping (`rewards.extras`) is one part, dots and all: its names are the user's own.

    Raises:
        ConfigError: there is no such key; the message names the nearest.
    """
    annotation: Any = cls
    parts = path.split(".")
    for index, part in enumerate(parts):
        item = _mapping_item(annotation)
        if item is not None:
            return item, [*parts[:index], ".".join(parts[index:])]
        section = section_type(annotation)
        hints = typing.get_type_hints(section) if section else {}
        if part not in hints:
            _unknown(cls, path, value, origin)
        annotation = hints[part]
    return annotation, parts


def shown(value: object) -> str:
    """A value as a YAML file would have it: null, true, 0.02, 'text'."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)


def is_text(annotation: Any) -> bool:
    """Whether a value's characters are to be taken as they stand: text, or one of several words."""
    return all(
        member is str or (_is_literal(member) and all(isinstance(choice, str) for choice in typing.get_args(member)))
        for member in _members(annotation)
    )


def is_optional(annotation: Any) -> bool:
    """Whether the value may be null."""
    return type(None) in typing.get_args(annotation)


def describe(annotation: Any) -> str:
    """The rule that a type is, in words."""
    words = [_describe_member(member) for member in _members(annotation)]
    return " or ".join(words + ["null"] * is_optional(annotation))


def _describe_member(member: Any) -> str:
    if member is Any:
        return "null, true or false, a finite number, text, or a list or mapping of such"
    if dataclasses.is_dataclass(member):
        return "a section (a mapping of keys to values)"
    if _is_literal(member):
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(member))
    origin, arguments = typing.get_origin(member), typing.get_args(member)
    if origin in (tuple, list):
        if origin is tuple and arguments[-1] is not Ellipsis:
            return f"a list of {len(arguments)}: " + ", ".join(describe(argument) for argument in arguments)
        return f"a list, each item {describe(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"a mapping of names, each to {describe(arguments[1])}"
    return {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[member]


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types that a value may have, null apart."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(member for member in typing.get_args(annotation) if member is not type(None))
    return (annotation,)


def _is_literal(member: Any) -> bool:
    return typing.get_origin(member) is Literal


def _mapping_item(annotation: Any) -> Any:
    """The type of a free mapping's values; None where the annotation is of something else."""
    for member in _members(annotation):
        origin = typing.get_origin(member)
        if origin is not None and not _is_literal(member) and issubclass(origin, Mapping):
            return typing.get_args(member)[1]
    return None


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _checked_section(root: type, cls: type, tree: object, path: str, origin: str) -> Tree:
    if not isinstance(tree, Mapping):
        remedy = "Leave the line out to keep its defaults" if tree is None else "Give its keys below it, indented"
        name = path or "the configuration"
        raise ConfigError(f"{origin}: {name} is {shown(tree)}, but it must be {describe(cls)}. {remedy}")
    hints = typing.get_type_hints(cls)
    result: Tree = {}
    for name, value in tree.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in hints:
            _unknown(root, where, value, origin)
        result[name] = _checked_value(root, hints[name], value, where, origin)
    return result


def _checked_value(root: type, annotation: Any, value: object, path: str, origin: str) -> Any:
    if value is None and is_optional(annotation):
        return None
    for member in _members(annotation):
        if member is Any:
            return _checked_plain(value, path, origin)
        if dataclasses.is_dataclass(member):
            return _checked_section(root, typing.cast(type, member), value, path, origin)
        kind, arguments = typing.get_origin(member), typing.get_args(member)
        if _is_literal(member):
            # 1 == True in Python, so types are compared as well.
            if any(value == choice and type(value) is type(choice) for choice in arguments):
                return value
        elif kind in (tuple, list):
            if isinstance(value, list | tuple):
                variable = kind is list or arguments[-1] is Ellipsis
                items = [arguments[0]] * len(value) if variable else list(arguments)
                if len(items) == len(value):
                    pairs = enumerate(zip(items, value, strict=True))
                    return [_checked_value(root, item, each, f"{path}[{i}]", origin) for i, (item, each) in pairs]
        elif kind is not None:
            if isinstance(value, Mapping):
                return {
                    str(key): _checked_value(root, arguments[1], item, f"{path}.{key}", origin)
                    for key, item in value.items()
                }
        elif (converted := _scalar(member, value)) is not None:
            return converted
    raise ConfigError(
        f"{origin}: {path} is {shown(value)}, but it must be {describe(annotation)}{_advice(annotation, value)}"
    )


def _checked_plain(value: object, path: str, origin: str) -> Any:
    """A value of no type of ours: null, text, a truth value, a finite number, or a list or mapping of such."""
    if isinstance(value, Mapping):
        return {str(key): _checked_plain(item, f"{path}.{key}", origin) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_checked_plain(item, f"{path}[{index}]", origin) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ConfigError(f"{origin}: {path} is {shown(value)}, but it must be {describe(Any)}")


def _scalar(member: type, value: object) -> bool | int | float | str | None:
    """The value as a bool, int, float or str; None where it is not one. No int is a bool and no number is text."""
    if member is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else None
    return value if type(value) is member else None  # type: ignore[return-value]


def _advice(annotation: Any, value: object) -> str:
    members = _members(annotation)
    if str in members and isinstance(value, bool | int | float):
        return ". Put it in quotes to make it text"
    choices = [str(choice) for member in members if _is_literal(member) for choice in typing.get_args(member)]
    near = difflib.get_close_matches(str(value), choices, 1)
    return f". Did you mean {near[0]}?" if near else ""


def _built_value(annotation: Any, value: Any, default: Any, path: str) -> Any:
    if value is None:
        return None
    for member in _members(annotation):
        if dataclasses.is_dataclass(member):
            section = typing.cast(type, member)
            return built(section, value, default if isinstance(default, section) else None, path)
        kind, arguments = typing.get_origin(member), typing.get_args(member)
        if kind in (tuple, list) and isinstance(value, list):
            items = [arguments[0]] * len(value) if kind is list or arguments[-1] is Ellipsis else list(arguments)
            pairs = enumerate(zip(items, value, strict=True))
            return kind(_built_value(item, each, dataclasses.MISSING, f"{path}[{i}]") for i, (item, each) in pairs)
        if kind is not None and not _is_literal(member) and issubclass(kind, Mapping) and isinstance(value, Mapping):
            return {
                key: _built_value(arguments[1], each, dataclasses.MISSING, f"{path}.{key}") for key, each in value.items()
            }
    return value


def _located(cls: type, path: str, message: str) -> str:
    """A dataclass's own message, the key at its start spelled in full.

    Dataclasses do not know where in the run they stand; they call a field `eps`, `optimizer.eps` or all of it.
    """
    match = re.match(r"\w+(?:\.\w+)*", message)
    named = match[0].split(".") if match else []
    parts = path.split(".") if path else []
    shared = next((n for n in range(len(named) - 1, 0, -1) if parts[-n:] == named[:n]), 0)
    if shared or (named and named[0] in {field.name for field in dataclasses.fields(cls)}):
        return ".".join(parts + named[shared:]) + message[len(".".join(named)) :]
    return f"{path}: {message}" if path else message


def _unknown(root: type, path: str, value: object, origin: str) -> typing.NoReturn:
    parent = path.rpartition(".")[0]
    paths = [key.path for key in keys(root)]
    siblings = [other for other in paths if other.rpartition(".")[0] == parent]
    near = nearest(path, paths)
    remedy = f"The nearest is {near}" if near else f"The keys here are {', '.join(siblings or paths)}"
    given = "" if isinstance(value, Mapping) else f" (given {shown(value)})"
    raise ConfigError(f"{origin}: {path}{given} is not a key. {remedy}")


def nearest(path: str, paths: list[str]) -> str | None:
    """The path most like `path`: a like name in the same section, else the same name elsewhere, else a like path."""
    parent, _, name = path.rpartition(".")
    siblings = {other.rpartition(".")[2]: other for other in paths if other.rpartition(".")[0] == parent}
    if like := difflib.get_close_matches(name, siblings, 1):
        return siblings[like[0]]
    namesakes = [other for other in paths if other.rpartition(".")[2] == name]
    if namesakes:
        return max(namesakes, key=lambda other: difflib.SequenceMatcher(None, path, other).ratio())
    if like := difflib.get_close_matches(path, paths, 1):
        return like[0]
    names = {other.rpartition(".")[2]: other for other in reversed(paths)}
    like = difflib.get_close_matches(name, names, 1, cutoff=0.75)
    return names[like[0]] if like else None
