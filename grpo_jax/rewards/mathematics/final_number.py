"""The final number of a text that names no answer, where what stands around it leaves it as it is."""

import re

from grpo_jax.rewards.mathematics import words
from grpo_jax.rewards.mathematics.notation import MAX_LENGTH
from grpo_jax.rewards.mathematics.units import is_unit

_TAIL = 1 << 15
_NEAR = 400
"""Characters on either side that are looked at."""

# Digits are ASCII digits: \d would take any script's. A minus belongs to the number unless it subtracts, as in 10-5.
NUMBER = re.compile(
    r"(?:(?<![\w)])[-+−–‑](?:\\?[$€£])?)?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.)])\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]+(?!\w)| ?(?:\\times|×|\*) ?10\^\{?-?[0-9]+\}?| [0-9]+/[0-9]+(?![0-9/])|(?:/[0-9]+)+)?"
)
SENTENCE_END = re.compile(r"[.!?](?=\s|$|\*\*)|\n")
_OPENINGS = re.compile(r"(?:\*\*|__|\\\(|\\\[|\\?\$|\$|€|£|\s){0,12}$")
_CLOSINGS = re.compile(r"(?:%|\*\*|__|\\\)|\\\]|\$|€|£| (?=[%*$\\€£])){0,8}")
_PROSE = re.compile(r"(?:[ ,]+[A-Za-z'’]+(?:-[A-Za-z]+)?){0,40}[ ,]*")
_CONCLUDES = re.compile(
    r"\b(?:so|therefore|thus|hence|total|altogether|makes?|leaves?|leaving|gives?|giving|equals?)\b|=", re.I
)
_ANNOTATION = re.compile(r"<<[^<>]{1,80}>>\s{0,4}$")  # GSM8K's: = <<3+15=18>>18
_WORD = re.compile(r"[A-Za-z'’]+")
_SUM_TO = re.compile(r"\b(?:comes?|came|equals?|adds? up|amounts?|sums?|is equal) to\b", re.IGNORECASE)
_WHOLE_OF = re.compile(r"\b(?:total|result|answer|amount|profit|cost|price|value|balance) of$", re.IGNORECASE)
_SHORT = frozenset(["a", "of", "in", "on", "at", "to", "by", "he", "we", "my", "it", "is", "as", "an", "so", "us", "per"])


def last_number(text: str) -> re.Match[str] | None:
    """The last number in the text."""
    # The tail is enough, unless it has none or begins within one.
    for start in (max(0, len(text) - _TAIL), 0):
        last = None
        for last in NUMBER.finditer(text, start):  # noqa: B007
            pass
        if last is not None and last.start() > start + MAX_LENGTH:
            break
    if last is None:
        return None
    around = text[max(0, last.start() - 1) : last.start()] + text[last.end() : last.end() + 1]
    # Digits of another script beside it make it another number.
    return None if any(character.isnumeric() and not character.isascii() for character in around) else last


def written(match: re.Match[str]) -> str:
    """A match of `NUMBER`, without thousands separators and currency."""
    number = re.sub(r"[,$€£\\](?!times)", "", match.group()).replace("–", "-").replace("‑", "-")
    return number.rpartition("/")[2] if number.count("/") > 1 else number  # a date ends in its year


def final_number(text: str) -> str | None:
    """The last number, where it is the end of a sum or stands in plain words of which none changes it; None otherwise.

    A number beside a sign of mathematics, a root, a bar, a letter, a bound, a negation or another number is none.
    """
    match = last_number(text)
    if match is None:
        return None
    before, after = text[max(0, match.start() - _NEAR) : match.start()], text[match.end() : match.end() + _NEAR]
    if before.endswith("(") and after.startswith(")") and match.group()[0] in "-−–‑":
        before, after = before[:-1], after[1:]  # (-18); ($18) may be a loss
    return written(match) if _free_before(before, match.group()) and _free_after(after) else None


def _free_before(text: str, number: str) -> bool:
    text = _ANNOTATION.sub("", text)
    lead = text[: _OPENINGS.search(text).start()]  # type: ignore[union-attr]  # it matches at the end at least
    if text[len(lead) :] == "" and lead[-1:] not in ("", "=", ":"):
        return False  # glued to something
    *earlier, sentence = SENTENCE_END.split(lead)
    if "\n" in text[len(lead) :]:
        earlier, sentence = [*earlier, sentence], ""
    line = next((part for part in reversed(earlier) if part.strip()), "").rstrip()
    if re.search("[0-9]", line) and _frame(line) == _frame(sentence + number):
        return False  # It is 17. It is 18.
    if not sentence.strip():
        return line[-1:] not in tuple("-+*/^<>~(,|&−×÷≈≠√\\") and not words.CHANGING.search(" ".join(line.split()[-1:]))
    sentence = sentence.rstrip()
    if sentence.endswith("="):
        return _is_result(sentence[:-1])
    if not (sentence[-1].isalpha() or sentence[-1] in ":,") or re.search(r"\\[A-Za-z]+$", sentence):
        return False
    if re.search(r"(?<![A-Za-z'])[B-Zb-z]$", sentence) or (sentence.endswith(" of") and not _WHOLE_OF.search(sentence)):
        return False
    if not sentence[-1].isascii():
        return False
    beside = _SUM_TO.sub("equals", re.sub(r"\bwould be\b", "is", sentence))
    digits = [match.end() for match in re.finditer("[0-9]", beside)]
    if digits and not _CONCLUDES.search(beside, digits[-1]):
        return False
    since = beside[digits[-1] if digits else 0 :]
    changing = re.sub(r"\b(?:is|are|was|were|be)\b", "", " ".join(_WORD.findall(since)[-3:]))
    return not words.DOUBT.search(since) and not words.CHANGING.search(changing)


def _frame(sentence: str) -> str:
    """A sentence without what its numbers and letters are."""
    return re.sub(r"[0-9]+|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[\s$*?]", lambda match: "0" * match[0].isalnum(), sentence)


def _is_result(left: str) -> bool:
    """Whether a number after `left` and "=" is what a calculation comes to."""
    if left.rstrip()[-1:] in tuple("<>!=:~≈≠-+*/^|") or "\\n" in left[-6:] or words.DOUBT.search(left):
        return False
    if re.fullmatch(r"\W*[0-9][0-9.,]*\W*", left):
        return False
    return not (re.search(r"(?<![A-Za-z])[A-Za-z]\s*$", left) and "=" in left)  # x = 17, y = 18


def _free_after(text: str) -> bool:
    rest = text[_CLOSINGS.match(text).end() :]  # type: ignore[union-attr]  # it matches nothing at least
    if re.match(r"[A-Za-z]", rest):
        unit = _WORD.match(rest)
        if unit is None or len(unit[0]) < 2 or not is_unit(unit[0]):
            return False
        rest = rest[unit.end() :]
    end = SENTENCE_END.search(rest)
    sentence, more = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
    if more.startswith("!") and not sentence.strip():
        return False  # 18 ! is a factorial
    if not _PROSE.fullmatch(sentence.rstrip().rstrip(",;:)*$")):
        return False
    first = _WORD.findall(sentence)[:2]
    if any(len(word) < 3 and word.lower() not in _SHORT and not is_unit(word) for word in first):
        return False
    return not words.CHANGING.search(re.sub(r"\b(?:is|are|was|were)\b", "", sentence)) and not words.DOUBT.search(more)
