"""Whether an answer equals the reference: exactly as rational numbers where both are written out, else by sympy.

A reference that is a plain number takes only a plain number. Otherwise `12+34` or `10/2`, copied from the question,
would equal its own result, and a policy soon finds that it need not compute anything.
"""

import functools
import re
from collections.abc import Callable
from fractions import Fraction

from grpo_jax.rewards import expression, sympy_process

Equality = Callable[[str, str], bool]

MAX_ITEMS = 16

_INTEGER = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_DECIMAL = re.compile(rf"([-+]?)\$?((?:{_INTEGER})(?:\.[0-9]*)?|\.[0-9]+)")
_FRACTION = re.compile(
    r"([-+]?)(?:([0-9]+)(?: +|(?=\\)))?"  # sign, and the whole part of a mixed number
    r"(?:([0-9]+) */ *([0-9]+)|\\[dt]?frac(?:\{([-+]?[0-9]+)\}\{([0-9]+)\}|([0-9])([0-9])))"  # in either notation
)
_SET_BRACKETS = (("\\{", "\\}"), ("{", "}"))
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox) *\{([^{}]*)\}")


def equal_final(answer: str, reference: str) -> bool:
    """Whether `answer` is `reference` in final form.

    - The same text is equal, whatever it says, unless it is empty.
    - A reference that is a number (integer, decimal, fraction that does not divide evenly, mixed number, percentage;
      thousands separators and a dollar sign allowed) equals an answer that is the same number, written in any of
      these ways.
    - Tuples and intervals are compared item by item, brackets included; sets and bare lists in any order, one to one.
    - Anything else is compared by sympy, within bounds of length, depth, size and time; out of bounds is unequal.
    """
    return _equal(answer, reference, _equal_final_item)


def equal_value(answer: str, reference: str) -> bool:
    """As `equal_final`, but an answer may leave work undone: `6*7` equals `42`."""
    return _equal(answer, reference, _equal_value_item)


EQUALITIES: dict[str, Equality] = {"final": equal_final, "value": equal_value}
"""Name to (answer, reference) -> bool."""


def parse_number(text: str) -> Fraction | None:
    """The exact value of a number written out in ASCII digits, None where `text` is anything else.

    A fraction that divides evenly is anything else.
    """
    if len(text) > expression.MAX_LENGTH:
        return None
    text = text.replace("−", "-").removesuffix("%").removesuffix("\\").rstrip()
    if match := _DECIMAL.fullmatch(text):
        value = Fraction(match[2].replace(",", ""))
    elif match := _FRACTION.fullmatch(text):
        top, bottom = next((match[i], int(match[i + 1])) for i in (3, 5, 7) if match[i] is not None)
        # 10/2 is a division still to be done.
        if bottom == 0 or int(top) % bottom == 0 or (match[2] is not None and top[0] in "+-"):
            return None
        value = int(match[2] or 0) + Fraction(int(top), bottom)
    else:
        return None
    return -value if match[1] == "-" else value


def _equal(answer: str, reference: str, equal_item: Equality) -> bool:
    answer, reference = answer.strip(), reference.strip()
    if not answer or not reference:
        return False
    if answer == reference:
        return True
    if max(len(answer), len(reference)) > expression.MAX_LENGTH:
        return False
    answer, reference = _clean(answer), _clean(reference)
    if not answer or not reference:
        return False
    return _equal_container(answer, reference, equal_item)


def _clean(text: str) -> str:
    """Without what says nothing about the value: math delimiters, spacing commands, degrees, a final period."""
    text = text.strip().removesuffix(".").strip("$").strip()
    text = re.sub(r"\\left\b|\\right\b|\\!|\^\{?\\circ\}?|°", "", text)
    text = re.sub(r"\\[,;: ]", " ", text).strip()
    if match := _TEXT.fullmatch(text):
        return match[1].strip()
    return text


def _equal_container(answer: str, reference: str, equal_item: Equality) -> bool:
    (kind, items), (reference_kind, reference_items) = _split(answer), _split(reference)
    if kind == reference_kind == "":
        return equal_item(answer, reference)
    if kind != reference_kind or len(items) != len(reference_items) or len(items) > MAX_ITEMS:
        return False
    if kind not in ("{}", ","):
        pairs = zip(items, reference_items, strict=True)
        return all(_equal_container(*pair, equal_item) for pair in pairs)
    # Unordered, yet a one-to-one match: neither a subset nor a repeated item equals the whole set.
    unmatched = list(reference_items)
    for item in items:
        same = (index for index, other in enumerate(unmatched) if _equal_container(item, other, equal_item))
        found = next(same, None)
        if found is None:
            return False
        del unmatched[found]
    return True


def _split(text: str) -> tuple[str, list[str]]:
    """(brackets, items) of a tuple, interval, set ("{}") or bare list (","); ("", []) of a single expression."""
    if parse_number(text) is not None:
        return "", []
    for opening, closing in _SET_BRACKETS:
        if text.startswith(opening) and text.endswith(closing):
            items = _top_level_items(text[len(opening) : -len(closing)])
            if items is not None:
                return "{}", items
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        items = _top_level_items(text[1:-1])
        if items is not None and len(items) > 1:
            return text[0] + text[-1], items
    items = _top_level_items(text)
    return ("", []) if items is None or len(items) < 2 else (",", items)


def _top_level_items(text: str) -> list[str] | None:
    """`text` split at commas outside brackets, None where brackets do not balance."""
    items, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return None
        if character == "," and depth == 0:
            items.append(text[start:index].strip())
            start = index + 1
    return None if depth else [*items, text[start:].strip()]


def _equal_final_item(answer: str, reference: str) -> bool:
    number = parse_number(reference)
    if number is not None:
        return parse_number(answer) == number
    return answer == reference or _equal_by_sympy(answer, reference)


def _equal_value_item(answer: str, reference: str) -> bool:
    numbers = parse_number(answer), parse_number(reference)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return answer == reference or _equal_by_sympy(answer, reference)


@functools.lru_cache(maxsize=4096)  # the samples of a group repeat each other
def _equal_by_sympy(answer: str, reference: str) -> bool:
    try:
        trees = expression.parse(answer), expression.parse(reference)
    except expression.Unparsable:
        return False
    return trees[0] == trees[1] or sympy_process.shared().equal(*trees)
