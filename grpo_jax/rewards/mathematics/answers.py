r"""Where the answer stands in a completion: one function per convention, in a table.

All of them take the last place that the convention knows, and give its text as it stands; an empty place is an empty
answer, never a reason to look elsewhere. Each is linear in the length of the completion.
"""

import re
from collections.abc import Callable

from grpo_jax.rewards.mathematics.notation import MAX_LENGTH, closing_brace

Extractor = Callable[[str], str | None]

MAX_BOXES = 16
"""Boxes joined into one list."""

# Digits are ASCII digits: \d would take any script's. A minus belongs to the number unless it subtracts, as in 10-5.
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+−])?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"(?:[eE][-+]?[0-9]+(?!\w)| ?(?:\\times|×|\*) ?10\^\{?-?[0-9]+\}?| [0-9]+/[0-9]+(?![0-9/])|/[0-9]+(?![0-9/]))?"
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{")
_JOIN = re.compile(r"(?:[\s$,;.]|\\[()\[\],; ]|\\q?quad\b|and\b|or\b|\\text ?\{ ?,? ?(?:and|or) ?\}|\*\*){0,24}")
_PHRASE = re.compile(r"\banswer\s{0,4}(?:is|=|:)\s{0,4}:?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_QUOTES = (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_ONE_NUMBER = re.compile(r"[^0-9\\^_{}=+*/<>]*?([-+−]?[$€£]?[0-9][0-9,]*(?:\.[0-9]+)?%?)((?: [A-Za-z]+){0,3})")
_REFUSED_WORDS = re.compile(
    r"\b(?:not?|nor|neither|either|or|and|between|about|around|approximately|roughly|maybe|perhaps|probably|possibly|at|least|most"
    r"|more|less|fewer|over|under|than|up|to|times|plus|minus|squared|cubed|factorial|halves|half|thirds?|quarters?|fourths?|fifths?"
    r"|pairs?|dozens?|scores?|gross|hundreds?|thousands?|millions?|billions?|trillions?|lakhs?|crores?|[kmb])\b",
    re.IGNORECASE,
)
_HEDGE = re.compile(r"[0-9](?:%|\$)?\s{0,4}(?:,|;|/|or\b|and\b|to\b|\|)\s{0,4}(?:maybe |perhaps |possibly )?[-+$€£]{0,2}$")


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
    boxes: list[tuple[int, int, int]] = []  # where the box starts, its content starts, and ends
    end = 0
    for match in _BOX.finditer(window):
        if match.start() < end:
            continue  # inside another
        close = closing_brace(window[: match.end() + 2 * MAX_LENGTH], match.end())
        if close < 0:
            boxes.append((match.start(), match.end(), -1))
        else:
            boxes.append((match.start(), match.end(), close))
            end = close
    if not boxes or boxes[-1][2] < 0:
        return None
    contents = [window[boxes[-1][1] : boxes[-1][2]]]
    separators = []
    for (_, start, close), (after, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=False):
        between = window[close + 1 : after]
        if close < 0 or len(contents) == MAX_BOXES or not _JOIN.fullmatch(between):
            break
        contents.append(window[start:close])
        separators.append("or" if "or" in between else "and")
    if len({content.strip() for content in contents}) == 1:
        return contents[0]
    return (" or " if set(separators) == {"or"} else ", ").join(reversed(contents))


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
    for opening, closing in _QUOTES:
        if rest.startswith(opening):
            close = rest.find(closing, len(opening))
            if close > 0 and not _JOIN_WORD.match(rest, close + len(closing)):
                return rest[len(opening) : close].strip()
    end = _SENTENCE_END.search(rest)
    sentence = (rest if end is None else rest[: end.start()]).strip()
    number = _ONE_NUMBER.fullmatch(sentence)
    return number[1] if number and not _REFUSED_WORDS.search(sentence) else sentence


_JOIN_WORD = re.compile(r"\s{0,4}(?:,|;|/|and\b|or\b|[-+*^=<>(0-9])")


def from_last_number(text: str) -> str | None:
    """The last number in the text, without its thousands separators; a fraction or a power of ten is one number."""
    match = _last_number(text)
    return None if match is None else match.group().replace(",", "")


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
    if found is not None or "\\boxed" in text or "\\fbox" in text:
        return found
    match = _last_number(text)
    if match is None:
        return None
    before, after = text[max(0, match.start() - 32) : match.start()], text[match.end() : match.end() + 1]
    if before.endswith(("^", "_", "{", "/", "*", "=-", "\\")) or before[-1:].isalpha() or after in tuple("^_!/*{"):
        return None
    return None if _HEDGE.search(before) else match.group().replace(",", "")


def _first_marked(text: str) -> str | None:
    for extract in (from_boxed, from_hash_mark, from_phrase):
        found = extract(text)
        if found is not None:
            return found
    return None


def _last_number(text: str) -> re.Match[str] | None:
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007
        pass
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
