"""Where the code stands in a completion. Reads text only: nothing that a model wrote is parsed in this process."""

from __future__ import annotations

import re

_DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]", re.MULTILINE)
_LONGEST_FENCE_LINE = 200
_PYTHON = ("python", "py", "python3", "py3")


def extract_code(completion: str, entry_point: str | None = None, *, unit_tests: bool = False) -> str:
    """The code of a completion.

    Looked for in the last closed `<answer>` span, and where that holds nothing, or there is none, in the whole. There it is
    the last closed fenced block, of those that define the entry point where any do, and of those marked as Python where any
    are. Text without such a block is code as a whole; an answer of a few words without one is said of a block before it.

    Args:
      completion: what the model wrote.
      entry_point: the name of what is tested, or an expression that begins with it.
      unit_tests: whether functions or classes are tested: then, without an entry point, a block that defines some is meant
        rather than one that uses them.
    """
    text = _answer(completion)
    # What is answered may be said of code that stands before it.
    blocks = _blocks(text) or (_blocks(completion) if text is not completion and not _looks_like_code(text) else [])
    if not blocks:
        return text.removeprefix("\ufeff")
    name = _root(entry_point)
    if name is not None:
        blocks = [block for block in blocks if defines(block[1], name)] or blocks
    blocks = [block for block in blocks if block[0] in _PYTHON] or blocks
    if name is None and unit_tests:
        blocks = [block for block in blocks if _DEFINITION.search(block[1])] or blocks
    return blocks[-1][1]


def _looks_like_code(text: str) -> bool:
    return any(mark in text for mark in ("=", "(", "import ", "return "))


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


def _answer(text: str) -> str:
    """What the last closed `<answer>` span encloses, or the whole where that holds nothing."""
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(close, 0))
    span = text[start + len("<answer>") : close] if start >= 0 else ""
    return span if span.strip() else text


def _fence(line: str) -> tuple[str, str] | None:
    """(marks, language) of a line that opens or closes a block, else None."""
    stripped = line.strip()
    if stripped[:3] not in ("```", "~~~") or len(line) > _LONGEST_FENCE_LINE:
        return None
    marks = stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]
    info = stripped[len(marks) :].strip()
    if "`" in info:
        return None
    return marks, info.partition(" ")[0].strip("{}.").lower()


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of the closed fenced blocks, in time that is linear in the text."""
    blocks: list[tuple[str, str]] = []
    marks, language, content, indent = "", "", [], ""
    for line in text.split("\n"):
        fence = _fence(line)
        if fence is None:
            content.append(line)
        elif marks and not fence[1] and fence[0][0] == marks[0] and len(fence[0]) >= len(marks):
            # A block within a list is indented as a whole.
            if all(each.startswith(indent) or not each.strip() for each in content):
                content = [each.removeprefix(indent) for each in content]
            blocks.append((language, "\n".join([*content, ""])))
            marks = ""
        elif not marks or fence[1]:
            # A block that was never closed ends where the next begins; it is not closed, so it does not count.
            marks, language = fence
            content, indent = [], line[: len(line) - len(line.lstrip())]
        else:
            content.append(line)
    return blocks
