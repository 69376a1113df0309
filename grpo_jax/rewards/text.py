"""What several rewards ask of a text."""

import re

# Format characters and variation selectors (Unicode categories Cf and part of Mn), and fillers that are blank.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]+"
)


def without_invisible(text: str) -> str:
    """`text` without the characters that show nothing: zero-width ones, marks of direction, variation selectors."""
    return _INVISIBLE.sub("", text)
