"""Dataclasses of any shape that a room may use become keys, and trees become them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from grpo_jax.training import schema
from grpo_jax.training.schema import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf.

    Attributes:
      size: how large it is,
        in millimetres.
      colour: how it looks.
    """

    size: float
    colour: Literal["green", "red"] = "green"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"tree.leaf.size={self.size} must not be negative")
        if self.size > 100:
            raise ValueError(f"size is {self.size}, but it must be at most 100")
        if self.size == 13:
            raise ValueError("thirteen brings bad luck")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    """What trees share.

    Attributes:
        age: in years.
    """

    age: int | float = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tree(Base):
    """A tree.

    Args:
        leaf: the leaf.
        spare: another leaf.
        fruits: each a leaf, too.
        weights: by name.
        box: low and high.
    """

    leaf: Leaf = dataclasses.field(default_factory=lambda: Leaf(size=7.0))
    spare: Leaf | None = None
    fruits: tuple[Leaf, ...] = ()
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    box: tuple[int, int] = (0, 1)


def build(tree: dict) -> Tree:
    return schema.built(Tree, schema.checked(Tree, tree, "file"))


def test_docs_come_from_the_class_and_its_bases() -> None:
    docs = schema.field_docs(Tree)
    assert docs["age"] == "in years." and docs["spare"] == "another leaf."
    assert schema.field_docs(Leaf)["size"] == "how large it is, in millimetres."


def test_keys_reach_into_optional_sections() -> None:
    paths = {key.path: key for key in schema.keys(Tree)}
    assert paths["spare.size"].default is dataclasses.MISSING
    assert paths["leaf.size"].default == 7.0
    assert paths["spare"].section is Leaf and paths["age"].section is None


def test_trees_become_dataclasses_of_every_shape() -> None:
    tree = {"age": 2.5, "fruits": [{"size": 1}, {"size": 2, "colour": "red"}], "weights": {"a.b": 1}, "box": [3, 4]}
    expected = Tree(age=2.5, fruits=(Leaf(size=1.0), Leaf(size=2.0, colour="red")), weights={"a.b": 1.0}, box=(3, 4))
    assert build(tree) == expected
    assert build(schema.plain(expected)) == expected


def test_part_of_a_section_keeps_the_rest_of_its_default() -> None:
    assert build({"leaf": {"colour": "red"}}).leaf == Leaf(size=7.0, colour="red")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        # A dataclass may spell its field alone, or with some of the way to it, or not at all.
        (101, "leaf.size is 101.0, but it must be at most 100"),
        (13, "leaf: thirteen brings bad luck"),
    ],
)
def test_refusal_of_a_dataclass_names_the_whole_path(size: int, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build({"leaf": {"size": size}})
    assert str(error.value) == message


def test_refusal_that_already_has_part_of_the_path_does_not_repeat_it() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Garden:
        tree: Tree = dataclasses.field(default_factory=Tree)

    with pytest.raises(ConfigError) as error:
        schema.built(Garden, {"tree": {"leaf": {"size": -1.0}}})
    assert str(error.value) == "tree.leaf.size=-1.0 must not be negative"


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"box": [1, 2, 3]}, ["file: box", "a list of 2"]),
        ({"fruits": [{"sise": 1}]}, ["fruits[0].sise"]),
        ({"fruits": {"size": 1}}, ["fruits", "a list"]),
        ({"weights": [1]}, ["weights", "a mapping"]),
        ({"leaf": {"colour": "blue"}}, ["leaf.colour", "'blue'", "green, red"]),
        ({"age": "old"}, ["age", "a whole number or a finite number"]),
        ({"spare": 3}, ["spare", "section"]),
    ],
)
def test_wrong_type_is_named(tree: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build(tree)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("leaf.sise", "leaf.size"),
        ("colour", "leaf.colour"),
        ("tree.leaf.size", "leaf.size"),
        ("weight", "weights"),
        ("zzz", None),
    ],
)
def test_nearest_key(given: str, near: str | None) -> None:
    assert schema.nearest(given, [key.path for key in schema.keys(Tree)]) == near


def test_names_of_a_free_mapping_may_have_dots() -> None:
    annotation, parts = schema.located(Tree, "weights.a.b:c", "1", "command line")
    assert annotation is float and parts == ["weights", "a.b:c"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Free:
    """Options of somebody else's.

    Attributes:
      options: whatever they are.
    """

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def test_free_options_hold_lists_and_mappings_and_nothing_that_yaml_lacks() -> None:
    given = {"options": {"metadata": {"tests": "test"}, "datasets": [{"name": "a", "size": 3}, "b"], "none": None, "x": 0.5}}
    checked = schema.checked(Free, given, "here")
    assert schema.built(Free, checked).options == given["options"]
    assert schema.plain(schema.built(Free, checked)) == given
    with pytest.raises(ConfigError, match=r"here: options\.a\[1\]\.b is inf, but it must be null, true or false"):
        schema.checked(Free, {"options": {"a": [1, {"b": float("inf")}]}}, "here")
