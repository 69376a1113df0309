r"""What kind of thing an answer is: a number, a list, an interval, a matrix, an equation, a word, an expression.

`read` takes a text apart at its brackets and signs into `Node`s; it evaluates nothing and computes nothing.
"""

import dataclasses
import re

from grpo_jax.rewards.mathematics import notation, words
from grpo_jax.rewards.mathematics.numbers import Number, read_number
from grpo_jax.rewards.mathematics.units import split_unit

MAX_ITEMS = 16
"""Of one container, and rows or columns of a matrix; more are read as no container at all."""
MAX_DEPTH = 6
"""Of containers in one another."""

UNORDERED = ("set", "union")
ORDERED = ("()", "[]", "[)", "(]", "ratio", "matrix")


@dataclasses.dataclass(frozen=True)
class Node:
    """One answer, or a part of one.

    Attributes:
      kind: "number" · "set" and "union" (items in any order) · "()", "[]", "[)", "(]" (tuple or interval) · "matrix"
        (rows, each a "()") · "ratio" · "equation" and "inequality" (two sides) · "infinity" · "based" (digits and base) ·
        "time" · "word" · "expression" (whatever else, read by expression.py or as its text).
      text: what is written, without blanks; for a word in small letters; for an equation the name on its left or "".
      items: the parts.
      number: of a number.
      unit: beside an expression.
      name: of the variable that an interval was written with, as in x > 2.
    """

    kind: str
    text: str
    items: tuple["Node", ...] = ()
    number: Number | None = None
    unit: str = ""
    name: str = ""


_SEPARATORS = frozenset((",", ";", r"\and", r"\or"))
_RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\in": "in"}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}

_LETTER = r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|sigma|rho|tau|pi))"
_SUBSCRIPT = r"(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9,]{1,8}\}))?"
_NAME = re.compile(
    rf"{_LETTER}{_SUBSCRIPT}'{{0,2}}(?:(?:\^\{{-1\}})?\((?:[a-z](?:,[a-z]){{0,2}}|-?[0-9]{{1,9}}|[A-Z])\))?"
    # that is x, x_1, f(x), f^{-1}(x), f(3), P(A)
    r"|[A-Ta-t](?:\+[A-Ta-t]){1,5}"  # m+n, which a question may ask for; x+y is an equation's side
    r"|(?:m? ?\\angle|\\overline)? ?\{?[A-Z]{1,4}\}?"  # AB, \angle ABC
    r"|(?i:(?:\\text\{)? ?(?:area|perimeter|circumference|volume|length|width|height|distance|radius|slope|speed|time|age"
    r"|cost|price|total|sum|difference|product|quotient|mean|median|mode|average|probability|value|result|answer) ?\}?)"
    r"|\([a-z](?:,[a-z]){1,3}\)"  # (x,y)
)
_TITLE = re.compile(r"\\text ?\{ ?([A-Za-z]{3,20}(?: [A-Za-z]{2,20}){0,3}) ?\}")
_VARIABLE = re.compile(rf"{_LETTER}{_SUBSCRIPT}")
_INFINITY = re.compile(r"([-+]?) ?(?:\\infty|infinity|inf|oo)")
_BASED = re.compile(r"\(?([0-9A-Fa-f]+)\)?_(?:\{ ?(?:\\text ?\{)? ?([0-9]{1,2}|[a-z]{3,7}) ?\}?\}|([0-9]))")
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "sixteen": 16}
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?: ?([ap])\.? ?m\.?)?", re.IGNORECASE)
_RATIO = re.compile(r"[0-9]{1,9}(?: ?: ?[0-9]{1,9}){1,4}")
_WORDS = re.compile(r"(?=.*[A-Za-z]{3})[A-Za-z']+(?:-[A-Za-z]{2,})*(?: [A-Za-z']+(?:-[A-Za-z]{2,})*)*")
_SHORT_WORDS = frozenset(("yes", "no", "odd", "one", "two", "six", "ten", "red"))
_WHOLE_TEXT = re.compile(r"\\text ?\{((?:[^{}\\]|\\and|\\or)*)\}")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix|array|smallmatrix)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}")
_ANGLE_FUNCTION = re.compile("sin|cos|tan|cot|sec|csc")
_BRACKETS = ((r"\{", r"\}"), ("{", "}"), (r"\langle", r"\rangle"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"))
_ALL_REALS = frozenset((r"\mathbb{R}", r"\mathbb R", r"\text{all real numbers}", "all real numbers"))


def read(text: str, depth: int = 0) -> Node:
    """The structure of `text`, which is in `notation`."""
    text = text.strip()
    number = read_number(text)
    if number is not None:
        return Node("number", text, number=number)
    if depth >= MAX_DEPTH or not text:
        return _expression(text)
    for reader in (_list, _whole_text, _matrix, _union, _relation, _plus_minus, _brackets, _special):
        node = reader(text, depth)
        if node is not None:
            return node
    return _expression(text)


def _expression(text: str) -> Node:
    rest, unit = split_unit(text)
    if unit == "degree" and _ANGLE_FUNCTION.search(rest):
        rest, unit = text, ""  # sin 30° is not sin 30
    return Node("expression", _squeezed(rest), unit=unit)


def _squeezed(text: str) -> str:
    # A blank after a command, or between two words or numbers, parts them.
    return re.sub(r"(?<![A-Za-z0-9.]) +| +(?![A-Za-z0-9.])", "", text.strip())


def _items(parts: list[str], depth: int) -> tuple[Node, ...] | None:
    if len(parts) > MAX_ITEMS or not all(parts):
        return None
    return tuple(read(part, depth + 1) for part in parts)


def _list(text: str, depth: int) -> Node | None:
    cut = notation.split(text, _SEPARATORS)
    if cut is None or len(cut[0]) < 2:
        return None
    parts, separators = cut
    # The comma of ", and" has already gone with its word; a list ends with no comma.
    items = _items(parts, depth)
    if items is None:
        return None
    if set(separators) == {r"\or"} and all(item.kind in ORDERED and item.name for item in items):
        return Node("union", text, items, name=items[0].name if len({item.name for item in items}) == 1 else "?")
    flat: list[Node] = []
    for item in items:
        # A pair of roots written with ± is two items of the list.
        flat.extend(item.items if item.kind == "set" and item.text == r"\pm" else (item,))
    return Node("set", text, tuple(flat))


def _whole_text(text: str, depth: int) -> Node | None:
    match = _WHOLE_TEXT.fullmatch(text)
    if match is None or not match[1].strip():
        return None
    if text in _ALL_REALS:
        return _special(text, depth)
    inner = match[1].strip().removesuffix(".")
    if _WORDS.fullmatch(inner) or inner.lower() in _SHORT_WORDS:
        return Node("word", " ".join(inner.lower().split()))
    return read(inner, depth + 1)


def _matrix(text: str, depth: int) -> Node | None:
    bare = text[1:-1].strip() if text[:1] in ("(", "[") and text[1:].lstrip().startswith(r"\begin{array}") else text
    before, begin, _ = bare.partition(r"\begin")
    match = _MATRIX.fullmatch(bare, len(before))
    if not begin or match is None or match[1] in ("vmatrix", "Vmatrix") or r"\begin" in match[2]:
        return None
    before = before.strip().removesuffix("*").strip()
    factor = read_number({"": "1", "-": "-1"}.get(before, before))
    if factor is None:
        return None
    rows = [row.strip() for row in match[2].split(r"\\")]
    if rows and not rows[-1]:
        rows.pop()
    if not 0 < len(rows) <= MAX_ITEMS:
        return None
    nodes = []
    for row in rows:
        items = _items([cell.strip() for cell in row.split("&")], depth)
        if items is None:
            return None
        nodes.append(Node("()", "", tuple(_times(item, factor) for item in items)))
    if len({len(node.items) for node in nodes}) != 1:
        return None
    return Node("matrix", _squeezed(text), tuple(nodes))


def _times(item: Node, factor: Number) -> Node:
    """An entry of a matrix, times the number before the matrix."""
    if factor.value == 1:
        return item
    if item.number is not None:
        return dataclasses.replace(item, number=item.number.times(factor))
    return _expression(f"({factor.value})*({item.text})" if item.kind == "expression" else "")


def _union(text: str, depth: int) -> Node | None:
    cut = notation.split(text, frozenset((r"\cup",)))
    if cut is None or len(cut[0]) < 2:
        return None
    items = _items(cut[0], depth)
    return None if items is None else Node("union", text, items)


def _relation(text: str, depth: int) -> Node | None:
    cut = notation.split(text, frozenset(_RELATIONS))
    if cut is None or len(cut[0]) < 2 or not all(cut[0]):
        return None
    sides, signs = cut[0], [_RELATIONS[sign] for sign in cut[1]]
    if signs == ["="]:
        left, right = sides
        if not is_name(left) and is_name(right):
            left, right = right, left
        # x = 2x + 1 gives x no value.
        name = _squeezed(left) if is_name(left) and not _mentions(right, _squeezed(left)) else ""
        return Node("equation", name, (read(left, depth + 1) if not name else _expression(left), read(right, depth + 1)))
    if signs == ["in"]:
        inner = read(sides[1], depth + 1)
        named = inner.kind in ORDERED + UNORDERED and _VARIABLE.fullmatch(_squeezed(sides[0]))
        return dataclasses.replace(inner, name=_squeezed(sides[0])) if named else None
    return _interval(sides, signs, depth) or _inequality(sides, signs, depth)


def _interval(sides: list[str], signs: list[str], depth: int) -> Node | None:
    """x > 2, 1 < x <= 3 and x != 2 as intervals, where one side is a letter alone and the others are without it."""
    if len(sides) > 3:
        return None
    if len(sides) == 2 and not _VARIABLE.fullmatch(_squeezed(sides[0])):
        sides, signs = sides[::-1], [_FLIPPED.get(signs[0], signs[0])]
    if len(sides) == 3 and set(signs) <= {">", ">="}:
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    name = _squeezed(sides[0] if len(sides) == 2 else sides[1])
    bounds = [side for side in sides if _squeezed(side) != name]
    if len(sides) == 2 and any(re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", bound) for bound in bounds):
        return None  # y > 2x + 1 is an inequality of two letters
    if not _VARIABLE.fullmatch(name) or len(bounds) != len(sides) - 1 or any(_mentions(bound, name) for bound in bounds):
        return None
    ends = [read(bound, depth + 1) for bound in bounds]
    low, high = Node("infinity", "-"), Node("infinity", "+")
    if len(sides) == 3:
        if not set(signs) <= {"<", "<="}:
            return None
        kind = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
        return Node(kind, "", tuple(ends), name=name)
    match signs[0]:
        case "<" | "<=":
            return Node("()" if signs[0] == "<" else "(]", "", (low, ends[0]), name=name)
        case ">" | ">=":
            return Node("()" if signs[0] == ">" else "[)", "", (ends[0], high), name=name)
        case "!=":
            return Node("union", "", (Node("()", "", (low, ends[0])), Node("()", "", (ends[0], high))), name=name)
    return None


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", text) is not None


def _inequality(sides: list[str], signs: list[str], depth: int) -> Node | None:
    """Two sides, the greater one first; the sign as the text."""
    if len(sides) != 2 or signs[0] not in _FLIPPED:
        return None
    if signs[0] in ("<", "<="):
        sides, signs = sides[::-1], [_FLIPPED[signs[0]]]
    return Node("inequality", signs[0], tuple(_expression(side) for side in sides))


def _plus_minus(text: str, depth: int) -> Node | None:
    if text.count(r"\pm") != 1 or r"\mp" in text:
        return None
    return Node("set", r"\pm", tuple(read(text.replace(r"\pm", sign).strip(" +"), depth + 1) for sign in "+-"))


def _brackets(text: str, depth: int) -> Node | None:
    for opening, closing in _BRACKETS:
        if not (text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing)):
            continue
        inner = text[len(opening) : -len(closing)].strip()
        cut = notation.split(inner, frozenset((",",)))
        if cut is None:
            continue
        if opening in (r"\{", "{"):
            if not inner:
                return Node("set", "") if opening == r"\{" else None
            if opening == "{" and len(cut[0]) == 1:
                return read(inner, depth + 1)
            items = _items(cut[0], depth)
            return None if items is None else Node("set", "", items)
        if len(cut[0]) < 2:
            return None
        items = _items(cut[0], depth)
        return None if items is None else Node("()" if opening == r"\langle" else opening + closing, "", items)
    return None


def _special(text: str, depth: int) -> Node | None:
    if match := _INFINITY.fullmatch(text):
        return Node("infinity", match[1] or "+")
    if text == r"\emptyset":
        return Node("set", "")
    if text in _ALL_REALS:
        return Node("()", "", (Node("infinity", "-"), Node("infinity", "+")))
    if match := _BASED.fullmatch(text):
        digits, written = match[1].lstrip("0").upper() or "0", match[2] or match[3]
        base = int(written) if written.isdigit() else _BASES.get(written, 0)
        if 2 <= base <= 16 and all(int(digit, 16) < base for digit in digits):
            return Node("based", f"{digits}_{base}")
    if match := _TIME.fullmatch(text):
        return Node("time", f"{int(match[1])}:{match[2]}{(match[3] or '').lower()}")
    if _RATIO.fullmatch(text):
        return Node("ratio", "", tuple(read(part, depth + 1) for part in text.split(":")))
    if text.lower() in _SHORT_WORDS or (len(text) > 3 and _WORDS.fullmatch(text)):
        return Node("word", " ".join(text.lower().split()))
    return None


def is_name(text: str) -> bool:
    """Whether `text` is what a value is given to: x, x_1, f(x), AB, Area, (x,y)."""
    squeezed = _squeezed(text)
    titled = _TITLE.fullmatch(squeezed)
    return _NAME.fullmatch(squeezed) is not None or (titled is not None and not words.CHANGING.search(titled[1]))
