"""Multiple choice: the one letter that an answer names."""

import re

from grpo_jax.rewards.mathematics import words

_ALONE = re.compile(r"\(([A-J])\)[.:]?|([A-J])[.):]?")
_WITH_TEXT = re.compile(r"(?:\(([A-J])\)[.:]?|([A-J])[.):]) *(\S.{0,200})")
_TEXT = re.compile(r"\\text *\{([^{}\\]*)\}")
_ANOTHER = re.compile(
    r"\\and|\\or|(?<![A-Za-z])(?:[A-J]|[K-Z][).]|not|nor|neither|either|both|all|none)(?![A-Za-z])", re.IGNORECASE
)


def choice(text: str) -> str | None:
    """The letter of "B", "(B)", "B.", "B) 12" or "(B) 12" in `notation`; None for anything else, as "A or B" and "b"."""
    text = _TEXT.sub(lambda match: f" {match[1]} ", text).strip()
    if match := _ALONE.fullmatch(text):
        return match[1] or match[2]
    match = _WITH_TEXT.fullmatch(text)
    if match is None or _ANOTHER.search(match[3]) or words.NEGATION.search(match[3]):
        return None
    return match[1] or match[2]
