"""Where the code stands in a completion. Reads text only: nothing that a model wrote is parsed in this process."""

from __future__ import annotations

import re

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)
_PYTHON = ("python", "py", "python3", "py3")


def extract_code(completion: str, entry_point: str | None = None) -> str:
    """The code of a completion.

    Looked for in the last closed `<answer>` span, and where that holds nothing, or there is none, in the whole. There it is
    the last closed fenced block, of those that define the entry point where any do, and of those marked as Python where any
    are. Text without such a block is code as a whole.

    Args:
      completion: what the model wrote.
      entry_point: the name of what is tested, or an expression that begins with it.
    """
    answers = _ANSWER.findall(completion)
    text = answers[-1] if answers and answers[-1].strip() else completion
    blocks = _blocks(text)
    if not blocks:
        return text
    name = _root(entry_point)
    if name is not None:
        blocks = [block for block in blocks if defines(block[1], name)] or blocks
    blocks = [block for block in blocks if block[0] in _PYTHON] or blocks
    return blocks[-1][1]


def defines(code: str, entry_point: str | None) -> bool:
    """Whether a line of the code, not indented, gives the entry point its meaning."""
    name = _root(entry_point)
    if name is None:
        return False
    definition = rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*(?::[^=\n]*)?=(?!=)"
    return re.search(definition, code, re.MULTILINE) is not None


def variants(code: str, preamble: str, entry_point: str | None) -> list[list[str]]:
    """The ways to put preamble and code together, best first, of which the first that compiles is meant.

    Code that defines the entry point stands by itself after the preamble; other code continues the preamble's last line,
    as the body of the function that it began.
    """
    if not preamble:
        return [[code]]
    separate = [[preamble, code], [f"{preamble}\n    pass\n", code]]
    joined = [[preamble + code], [f"{preamble}\n{code}"]]
    return [*separate, *joined] if defines(code, entry_point) else [*joined, *separate]


def _root(entry_point: str | None) -> str | None:
    found = re.match(r"[^\W\d]\w*", entry_point or "")
    return found[0] if found else None


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of the closed fenced blocks."""
    blocks = []
    opened: tuple[str, str, int] | None = None
    for match in _FENCE.finditer(text):
        fence, language = match[1], match[2].lower()
        if opened is None:
            opened = (fence, language, match.end() + 1)
        elif not language and fence[0] == opened[0][0] and len(fence) >= len(opened[0]):
            blocks.append((opened[1], text[opened[2] : match.start()]))
            opened = None
        elif language:
            # A block that was never closed ends where the next begins; it is not closed, so it does not count.
            opened = (fence, language, match.end() + 1)
    return blocks
