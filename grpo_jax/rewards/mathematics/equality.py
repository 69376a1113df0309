"""Whether an answer equals the reference. What is not proved equal is different.

A reference that is a plain number takes only a plain number. Otherwise `12+34` or `10/2`, copied from the question,
would equal its own result, and a policy soon finds that it need not compute anything.
"""

import functools
from collections.abc import Callable

from grpo_jax.rewards.mathematics import choice, expression, guard, notation, screen
from grpo_jax.rewards.mathematics.config import MathConfig
from grpo_jax.rewards.mathematics.numbers import Number
from grpo_jax.rewards.mathematics.structure import ORDERED, UNORDERED, Node, read
from grpo_jax.rewards.mathematics.units import compatible

Equality = Callable[[str, str], bool]


def equal_final(answer: str, reference: str) -> bool:
    """Whether `answer` is `reference` in final form, by the default `MathConfig`.

    - The same text is equal, whatever it says, unless it is empty.
    - A reference that is a number (integer, decimal, fraction that does not divide evenly, mixed number, percentage,
      scientific notation; thousands separators, a currency and a unit allowed) equals an answer that is the same number,
      written in any of these ways.
    - Tuples, intervals, matrices and ratios are compared item by item, brackets included; sets, unions and bare lists in
      any order, one to one.
    - Equations are equal where their sides differ by a constant factor; `x = 5` and `5` are equal.
    - Anything else is compared by sympy, within bounds of length, depth, size and time; out of bounds is different.
    """
    return _equal(answer, reference, _DEFAULT, True)


def equal_value(answer: str, reference: str) -> bool:
    """As `equal_final`, but an answer may leave work undone: `6*7` equals `42`."""
    return _equal(answer, reference, _DEFAULT, False)


def equality(config: MathConfig) -> Equality:
    """`equal_final` by the rules of `config`."""

    def equal(answer: str, reference: str) -> bool:
        return _equal(answer, reference, config, True)

    return equal


EQUALITIES: dict[str, Equality] = {"final": equal_final, "value": equal_value}
"""Name to (answer, reference) -> bool."""

_DEFAULT = MathConfig()


def _equal(answer: str, reference: str, config: MathConfig, final: bool) -> bool:
    answer, reference = answer.strip(), reference.strip()
    if not answer or not reference:
        return False
    if answer == reference:
        return True
    if max(len(answer), len(reference)) > notation.MAX_LENGTH:
        return False
    return _equal_texts(answer, reference, config, final)


@functools.lru_cache(maxsize=4096)  # the samples of a group repeat each other
def _equal_texts(answer: str, reference: str, config: MathConfig, final: bool) -> bool:
    cleaned, cleaned_reference = notation.clean(answer), notation.clean(reference)
    if not cleaned or not cleaned_reference:
        return False
    if cleaned == cleaned_reference:
        return True
    letter = choice.choice(cleaned_reference)
    if letter is not None:
        return choice.choice(cleaned) == letter
    return _Comparison(config, final).same(read(cleaned), read(cleaned_reference))


class _Comparison:
    """One answer against one reference: the rules, and the processor time that is left."""

    def __init__(self, config: MathConfig, final: bool) -> None:
        self.config = config
        self.final = final
        self.budget = guard.Budget(config.time_limit)

    def same(self, answer: Node, reference: Node) -> bool:
        kinds = answer.kind, reference.kind
        if "equation" in kinds:
            return self.same_equation(answer, reference)
        if reference.kind == "number":
            return self.same_number(answer, reference)
        if reference.kind in UNORDERED + ORDERED:
            return kinds[0] == kinds[1] and self.same_container(answer, reference)
        if kinds == ("inequality", "inequality"):
            return answer.text == reference.text and self.proved("relation", _difference(answer), _difference(reference))
        if reference.kind == "expression" and kinds[0] in ("expression", "number"):
            text = answer.text if answer.number is None else _plain(answer)
            return compatible(_unit(answer), reference.unit) and self.same_expression(text, reference.text)
        return kinds[0] == kinds[1] and answer.text == reference.text and bool(reference.text)

    def same_number(self, answer: Node, reference: Node) -> bool:
        right = reference.number
        assert right is not None
        if answer.kind == "number":
            assert answer.number is not None
            return compatible(answer.number.unit, right.unit) and self.near(answer.number, right)
        if self.final or answer.kind != "expression" or not compatible(answer.unit, right.unit):
            return False
        return self.same_expression(answer.text, _plain(reference))

    def near(self, answer: Number, reference: Number) -> bool:
        if answer.value == reference.value:
            return True
        steps = [number.step for number in (answer, reference) if number.step is not None]
        if not steps or reference.value.denominator == 1:
            return False
        # Less than one unit of the last place, too: 1234567.85 is no rounding of 1234567.86, however near.
        difference = abs(answer.value - reference.value)
        return difference <= self.config.tolerance * abs(reference.value) and difference < max(steps)

    def same_container(self, answer: Node, reference: Node) -> bool:
        if len(answer.items) != len(reference.items):
            return False
        if answer.name and reference.name and answer.name != reference.name:
            return False
        if reference.kind in ORDERED:
            return all(self.same(*pair) for pair in zip(answer.items, reference.items, strict=True))
        # x = 1, y = 2 is no list of the values 1 and 2 of one unknown.
        names, reference_names = (_names(side) for side in (answer, reference))
        if max(len(names), len(reference_names)) > 1 and names != reference_names:
            return False
        # Unordered, yet a one-to-one match: neither a subset nor a repeated item equals the whole set.
        unmatched = list(reference.items)
        for item in answer.items:
            found = next((index for index, other in enumerate(unmatched) if self.same(item, other)), None)
            if found is None:
                return False
            del unmatched[found]
        return True

    def same_equation(self, answer: Node, reference: Node) -> bool:
        if answer.kind != "equation":
            return bool(reference.text) and _in_order(reference.text) and self.same(answer, reference.items[1])
        if reference.kind != "equation":
            return bool(answer.text) and _in_order(answer.text) and self.same(answer.items[1], reference)
        if answer.text and answer.text == reference.text:
            return self.same(answer.items[1], reference.items[1])
        if "(" in answer.text + reference.text or (reference.text and reference.items[1].kind == "number"):
            return False  # f(x) is no product; 2x = 10 leaves the work of x = 5 undone
        return self.proved("equation", _difference(answer), _difference(reference))

    def same_expression(self, answer: str, reference: str) -> bool:
        if not answer or not reference:
            return False
        if answer == reference:
            return True
        trees = _parse(answer), _parse(reference)
        if trees[0] is not None and trees[1] is not None:
            return trees[0] == trees[1] or self.proved("equal", *trees)
        sides = answer, reference
        if any(map(screen.needed, sides)) and all(map(screen.passes, sides)) and len(set(map(screen.letters, sides))) == 1:
            return self.proved("latex", answer, reference)
        return False

    def proved(self, claim: str, answer: expression.Tree | str | None, reference: expression.Tree | str | None) -> bool:
        if answer is None or reference is None:
            return False
        return guard.shared().prove(claim, answer, reference, self.budget)


def _in_order(name: str) -> bool:
    """Whether a value alone can stand for `name` = value: (y, x) = (1, 2) is not (1, 2)."""
    letters = name.strip("()").split(",")
    return not name.startswith("(") or letters == sorted(letters)


def _names(node: Node) -> set[str]:
    """What the items of a list give values to; x_1 and x_2 are values of one unknown."""
    names = [item.text for item in node.items if item.kind == "equation"]
    bases = {name.partition("_")[0] for name in names}
    return bases if len(bases) == 1 and len(set(names)) == len(names) else set(names)


def _unit(node: Node) -> str:
    return node.unit if node.number is None else node.number.unit


def _plain(node: Node) -> str:
    """A number as the grammar of expressions reads it."""
    assert node.number is not None
    return f"({node.number.value})"


def _parse(text: str) -> expression.Tree | None:
    try:
        return expression.parse(text)
    except expression.Unparsable:
        return None


def _difference(node: Node) -> expression.Tree | None:
    """The left side of an equation or inequality minus its right side."""
    texts = [_plain(item) if item.kind == "number" else item.text for item in node.items]
    sides = [_parse(text) for text in texts]
    if None in sides or any(item.unit or item.kind not in ("number", "expression") for item in node.items):
        return None
    return ("add", sides[0], ("multiply", ("number", "-1"), sides[1]))
