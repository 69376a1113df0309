"""Where the answer stands in a completion: one function per convention, in a table."""

import re
from collections.abc import Callable

Extractor = Callable[[str], str | None]

# Digits are ASCII digits: \d would take any script's. A minus belongs to the number unless it subtracts, as in 10-5.
_NUMBER = re.compile(r"(?:(?<![\w)])[-+])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")


def from_tag(text: str) -> str | None:
    """What the last complete `<answer>…</answer>` encloses."""
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(close, 0))
    return None if start < 0 else text[start + len("<answer>") : close]


def from_boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` encloses, braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    first = start + len("\\boxed{")
    depth = 1
    for index in range(first, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0:
            return text[first:index]
    return None


def from_hash_mark(text: str) -> str | None:
    """The rest of the line after the last "####" (GSM8K's own convention)."""
    _, mark, rest = text.rpartition("####")
    return rest.lstrip().partition("\n")[0] if mark else None


def from_last_number(text: str) -> str | None:
    """The last number in the text, without its thousands separators."""
    found = None
    for match in _NUMBER.finditer(text):
        found = match.group()
    return None if found is None else found.replace(",", "")


EXTRACTORS: dict[str, Extractor] = {
    "answer_tag": from_tag,
    "boxed": from_boxed,
    "hash_mark": from_hash_mark,
    "last_number": from_last_number,
}
"""Convention to (completion -> answer span, or None where it has none)."""
