r"""Where the answer stands in a completion: one function per convention, in a table.

All of them take the last place that the convention knows, and give its text as it stands; an empty place is an empty
answer, never a reason to look elsewhere. Each is linear in the length of the completion.
"""

import re
from collections.abc import Callable

from grpo_jax.rewards.mathematics.notation import MAX_LENGTH
from grpo_jax.rewards.mathematics.units import CHANGING_WORDS

Extractor = Callable[[str], str | None]

_TAIL = 1 << 15

MAX_BOXES = 16
"""Boxes joined into one list."""

# Digits are ASCII digits: \d would take any script's. A minus belongs to the number unless it subtracts, as in 10-5.
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+−])?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"(?:[eE][-+]?[0-9]+(?!\w)| ?(?:\\times|×|\*) ?10\^\{?-?[0-9]+\}?| [0-9]+/[0-9]+(?![0-9/])|(?:/[0-9]+)+)?"
)
_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)\s{0,8}\{|\\boxed\s{0,8}([0-9A-Za-z])(?![0-9A-Za-z])|\\.|[{}]",  # \boxed 5 is a box, too
    re.DOTALL,
)
_JOIN = re.compile(
    r"(?:[\s$,;.:/|&()—–-]|\\[()\[\],; ]|\\q?quad\b|(?:and|or|maybe|perhaps|possibly|else|also|vs)\b|\*\*"
    r"|\\text ?\{[ ,]{0,3}(?:and|or|maybe|perhaps|possibly|else|also)[ ,]{0,3}\}){0,24}"
)
_PHRASE = re.compile(r"\banswer(?:\*\*)?\s{0,4}(?:is|=|:)\s{0,4}:?(?:\*\*(?=\s))?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_QUOTES = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_LONE_NUMBER = re.compile(
    r"(?:(?:therefore|thus|hence|then|so|just|simply|exactly|equal to|a total of)[ ,:]{0,3}){0,2}"
    r"([-+−]?[$€£]?[0-9][0-9,]*(?:\.[0-9]+)?%?)((?: [A-Za-z]+){0,3})"
)
_NO_MORE = re.compile(r"[^0-9$\\=<>^*/+]*")
_HEDGE = re.compile(
    r"[0-9](?:%|\$)?\s{0,4}(?:,|;|/|and\b|to\b|\||-|–|—)\s{0,4}(?:maybe |perhaps |possibly )?[-+$€£]{0,2}$"
    r"|[0-9][^.!?\n0-9]{0,24}\bor\b[^.!?\n0-9]{0,24}$"
)


def from_tag(text: str) -> str | None:
    """What the last complete `<answer>…</answer>` encloses."""
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(close, 0))
    return None if start < 0 else text[start + len("<answer>") : close]


def from_boxed(text: str) -> str | None:
    r"""What the last `\boxed{…}` or `\fbox{…}` encloses, braces balanced; None where it is not closed.

    Boxes with nothing but a comma, "and" or "or" between them are one list: two different boxes side by side are two
    answers, not one.
    """
    last = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if last < 0:
        return None
    # A box, and what is between boxes, is short: beyond that length no answer is read anyway.
    window = text[max(0, last - MAX_BOXES * MAX_LENGTH) : last + 2 * MAX_LENGTH]
    boxes = _boxes(window)
    if not boxes:
        return None
    contents = [window[boxes[-1][1] : boxes[-1][2]]]
    separators = []
    for (_, start, close), (after, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=False):
        between = window[close:after].removeprefix("}")
        if len(contents) == MAX_BOXES or not _JOIN.fullmatch(between):
            break
        contents.append(window[start:close])
        separators.append("or" if "or" in between else "and")
    if len({content.strip() for content in contents}) == 1:
        return contents[0]
    return (" or " if set(separators) == {"or"} else ", ").join(reversed(contents))


def _boxes(text: str) -> list[tuple[int, int, int]]:
    """(start, start of the content, end of the content) of the boxes that are in no other; none where the last one is
    never closed."""
    boxes: list[tuple[int, int, int]] = []
    open_groups: list[tuple[int, int] | None] = []  # None for braces that are no box's
    for match in _BOX_OR_BRACE.finditer(text):
        token = match[0]
        if token == "{":
            open_groups.append(None)
        elif token == "}":
            box = open_groups.pop() if open_groups else None
            if box is not None:
                while boxes and boxes[-1][0] > box[0]:
                    boxes.pop()
                boxes.append((*box, match.start()))
        elif match[1] is not None:
            boxes.append((match.start(), match.start(1), match.end()))
        elif token.endswith("{") and len(token) > 2:
            open_groups.append((match.start(), match.end()))
    unclosed = max((box[0] for box in open_groups if box is not None), default=-1)
    return boxes if boxes and boxes[-1][0] > unclosed else []


def from_hash_mark(text: str) -> str | None:
    """The rest of the line after the last "####" (GSM8K's own convention)."""
    _, mark, rest = text.rpartition("####")
    return rest.lstrip().partition("\n")[0] if mark else None


def from_phrase(text: str) -> str | None:
    """What follows the last "answer is", "Answer:" or "answer =", to the end of its sentence.

    A sentence with one number and otherwise plain words ("18 apples") is that number, unless a word changes it.
    """
    last = None
    for last in _PHRASE.finditer(text):  # noqa: B007
        pass
    if last is None:
        return None
    rest = text[last.end() : last.end() + 2 * MAX_LENGTH].lstrip()
    end = _SENTENCE_END.search(rest)
    sentence = (rest if end is None else rest[: end.start()]).strip()
    for opening, closing in _QUOTES:
        if rest.startswith(opening):
            close = rest.find(closing, len(opening))
            after = _SENTENCE_END.split(rest[close + len(closing) :], maxsplit=1)[0]
            if close > 0 and _NO_MORE.fullmatch(after) and not CHANGING_WORDS.search(after):
                return rest[len(opening) : close].strip()
    number = _LONE_NUMBER.fullmatch(sentence)
    return number[1] if number and not CHANGING_WORDS.search(number[2]) else sentence


def from_last_number(text: str) -> str | None:
    """The last number in the text, without its thousands separators; a fraction or a power of ten is one number."""
    match = _last_number(text)
    return None if match is None else _without_separators(match)


def from_math(text: str) -> str | None:
    r"""The answer by the first of these that the text has: the last complete `<answer>` span; the last `\boxed` (several,
    joined, are a list); the last "####"; the last "the answer is"; the final number.

    Within the span the same are looked for, but the final number: what has none of them is the answer as it stands. A
    final number that is one of several alternatives ("18 or 19"), or a part of something larger (2^10), is none.
    """
    span = from_tag(text)
    if span is not None:
        found = _first_marked(span)
        return span if found is None else found
    found = _first_marked(text)
    if found is not None or _has_box(text):
        return found
    match = _last_number(text)
    if match is None:
        return None
    before, after = text[max(0, match.start() - 32) : match.start()], text[match.end() : match.end() + 1]
    if before.endswith(("^", "_", "{", "/", "*", "=-", "\\")) or before[-1:].isalpha() or after in tuple("^_!/*{"):
        return None
    return None if _HEDGE.search(before) else _without_separators(match)


def _has_box(text: str) -> bool:
    return "\\boxed" in text or "\\fbox" in text


def _first_marked(text: str) -> str | None:
    for extract in (from_boxed,) if _has_box(text) else (from_hash_mark, from_phrase):
        found = extract(text)
        if found is not None:
            return found
    return None


def _without_separators(match: re.Match[str]) -> str:
    number = match.group().replace(",", "")
    return number.rpartition("/")[2] if number.count("/") > 1 else number  # a date ends in its year


def _last_number(text: str) -> re.Match[str] | None:
    # The tail is enough, unless it has none or begins within one.
    for start in (max(0, len(text) - _TAIL), 0):
        last = None
        for last in _NUMBER.finditer(text, start):  # noqa: B007
            pass
        if last is not None and last.start() > start + MAX_LENGTH:
            break
    if last is None:
        return None
    around = text[max(0, last.start() - 1) : last.start()] + text[last.end() : last.end() + 1]
    # Digits of another script beside it make it another number.
    return None if any(character.isnumeric() and not character.isascii() for character in around) else last


EXTRACTORS: dict[str, Extractor] = {
    "answer_tag": from_tag,
    "boxed": from_boxed,
    "hash_mark": from_hash_mark,
    "last_number": from_last_number,
    "math": from_math,
}
"""Convention to (completion -> answer span, or None where it has none)."""
