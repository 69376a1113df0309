r"""Where the answer stands in a completion: one function per convention, in a table.

All of them take the last place that the convention knows, and give its text as it stands; an empty place is an empty
answer, never a reason to look elsewhere. Each is linear in the length of the completion.
"""

import re
from collections.abc import Callable

from grpo_jax.rewards.mathematics import words
from grpo_jax.rewards.mathematics.final_number import SENTENCE_END, final_number, last_number, written
from grpo_jax.rewards.mathematics.notation import MAX_LENGTH
from grpo_jax.rewards.mathematics.units import is_unit

Extractor = Callable[[str], str | None]

MAX_BOXES = 16
"""Boxes joined into one list."""

_BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)\s{0,8}\{|\\boxed\s{0,8}([0-9A-Za-z])(?![0-9A-Za-z])|\\.|[{}]",  # \boxed 5 is a box, too
    re.DOTALL,
)
_JOIN = re.compile(
    r"(?:[\s$,;.:/|&()—–-]|\\[()\[\],; ]|\\q?quad\b|(?:and|or|maybe|perhaps|possibly|else|also|vs)\b|\*\*"
    r"|\\text ?\{[ ,]{0,3}(?:and|or|maybe|perhaps|possibly|else|also)[ ,]{0,3}\}){0,24}"
)
_BESIDE = re.compile(
    r"[^\\{}\n]{0,60}\b(?:or|and|also|else|alternatively|maybe|perhaps|possibly|otherwise|either|versus|vs|another|other|second|could|might)\b"
    r"[^\\{}\n]{0,60}",
    re.IGNORECASE,
)
_PHRASE = re.compile(r"\banswer(?:\*\*)?\s{0,4}(?:is|=|:)\s{0,4}:?(?:\*\*(?=\s))?", re.IGNORECASE)
_QUOTES = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_LONE_NUMBER = re.compile(
    r"(?:(?:therefore|thus|hence|then|so|just|simply|exactly|equal to|a total of)[ ,:]{0,3}){0,2}"
    r"([-+−]?[$€£]?[0-9][0-9,]*(?:\.[0-9]+)?%?)((?: [A-Za-z]+){0,3})"
)
_NO_MORE = re.compile(r"[^0-9$\\=<>^*/+;]*")
_TAKEN_BACK = re.compile(
    r"[\s.*$!?,;)]{0,12}\b(?:or|alternatively|maybe|perhaps|possibly|otherwise|else|either|but|actually|no|not|wait|rather"
    r"|instead|unless|and|also)\b",
    re.IGNORECASE,
)
_RESULT = re.compile(
    r"(?=[^=]{0,200}[0-9)}][^0-9=]{0,20}(?:[-+*/×÷·−^]|\\[a-z]))"
    r"(?:[0-9.,+*/() $€£%−×÷·^{}-]|\\(?:times|cdot|div|[dt]?frac|\$|,|left|right)){1,200}="
    r" *([^=]{1,100})"
)
_OPTION = re.compile(r"(?:option|choice) (\(?[A-J]\)?)", re.IGNORECASE)
_READS_AS_ANSWER = re.compile(
    r"\s*(?:\*\*)?\s*(?:[-+−–]?[0-9.$€£]|[-+−–]?\\|\(|[A-J]\)?(?:\s|$)|[-−–a-z]\s*(?:=|$)|[a-z]{2,12}(?:\(|\s*$))"
)
_END_MARKS = re.compile(r"(?:\s{0,8}<\|[^|<>\n]{1,40}\|>){1,64}\s*$")


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
        if len(contents) == MAX_BOXES or not (_JOIN.fullmatch(between) or _BESIDE.fullmatch(between)):
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

    A sentence with one number and otherwise plain words ("18 apples") is that number, unless a word changes it. What the
    next sentence takes back ("Or 19."), and what another phrase beside it says, belongs to the answer.
    """
    last = before = None
    for match in _PHRASE.finditer(text):
        last, before = match, last
    if last is None:
        return None
    answer = _sentence_after(text[last.end() : last.end() + 2 * MAX_LENGTH].lstrip())
    if before is not None and last.start() - before.end() < 160:
        between = text[before.end() : last.start()].strip()
        sentences = [part for part in SENTENCE_END.split(between) if part.strip()]
        if len(sentences) < 2 or (len(sentences) == 2 and len(sentences[1].split()) < 4):
            other = _sentence_after(between)
            if re.search(r"[0-9\\]|^\W*[A-J]\b", other) and other.strip(" .,;*$") != answer.strip(" .,;*$"):
                return f"{other}, {answer}"
    return answer


def _sentence_after(rest: str) -> str:
    end = SENTENCE_END.search(rest)
    sentence = (rest if end is None else rest[: end.start()]).strip()
    if sentence.endswith("**") and sentence.count("**") == 1:
        sentence = sentence[:-2].rstrip()  # **Answer: 18**
    if end is not None and _TAKEN_BACK.match(rest, end.start()):
        return rest[: end.start() + 64].strip()
    for opening, closing in _QUOTES:
        if rest.startswith(opening):
            close = rest.find(closing, len(opening))
            after, *more = SENTENCE_END.split(rest[close + len(closing) :], maxsplit=1)
            if more and _TAKEN_BACK.match(more[0]):
                return rest[: close + len(closing) + 64].strip()
            if close > 0 and _NO_MORE.fullmatch(after) and not words.CHANGING.search(after):
                inner = rest[len(opening) : close].strip()
                result = _RESULT.fullmatch(inner)
                return result[1] if result else inner
    if option := _OPTION.fullmatch(sentence):
        return option[1]
    number = _LONE_NUMBER.fullmatch(sentence)
    if number is None:
        return sentence
    counted = number[2].split()
    short = any(len(word) < 3 and word != "of" and not is_unit(word) for word in counted[:1])
    return sentence if short or words.CHANGING.search(number[2]) else number[1]


def from_last_number(text: str) -> str | None:
    """The last number in the text, without its thousands separators; a fraction or a power of ten is one number."""
    match = last_number(text)
    return None if match is None else written(match)


def from_math(text: str) -> str | None:
    r"""The answer by the first of these that the text has: the last complete `<answer>` span; the last `\boxed` (several,
    joined, are a list); the last "####" that an answer follows; the last "the answer is"; the final number.

    Within the span the same are looked for, but the final number: what has none of them is the answer as it stands. Two
    different spans or "####" side by side are two answers, not one. A final number that is one of several alternatives
    ("18 or 19"), or a part of something larger (2^10, minus 18), is none.
    """
    text = text[:-MAX_LENGTH] + _END_MARKS.sub("", text[-MAX_LENGTH:])
    span = _spans(text)
    if span is not None:
        found = _first_marked(span)
        return span if found is None else found
    found = _first_marked(text)
    return found if found is not None or _has_box(text) else final_number(text)


def _spans(text: str) -> str | None:
    """The last span, or the last two where another stands beside it."""
    last = from_tag(text)
    if last is None:
        return None
    close = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, close)
    between_start = text.rfind("</answer>", max(0, start - 200), start)
    if between_start < 0 or not _beside(text[between_start + len("</answer>") : start]):
        return last
    other = from_tag(text[: between_start + len("</answer>")])
    return last if other is None or other.strip() == last.strip() else f"{other}, {last}"


def _beside(between: str) -> bool:
    """Whether nothing but a few words stands between two answers."""
    if re.match(r"\W{0,8}(?:no|wait|correction|sorry)\b", between, re.IGNORECASE):
        return False
    return not between.strip() or (between.count("\n") < 2 and bool(_JOIN.fullmatch(between) or _BESIDE.fullmatch(between)))


def _marked(text: str) -> str | None:
    """The line after the last "####" that an answer follows, or the last two where they are on one line or adjacent ones."""
    if "####" not in text:
        return None
    rest = from_hash_mark(text)
    assert rest is not None
    if not rest.strip():
        return rest
    if not _READS_AS_ANSWER.match(rest):
        return None
    head = text.rpartition("####")[0]
    before = head.rpartition("####")[2][-MAX_LENGTH:]
    other = before.strip()
    beside = "####" in head and "\n" not in other and len(other) < 80 and before.count("\n") < 3
    if beside and _READS_AS_ANSWER.match(other) and other.rstrip(",; ") != rest.strip():
        return f"{other}, {rest}"
    return rest


def _has_box(text: str) -> bool:
    return "\\boxed" in text or "\\fbox" in text


def _first_marked(text: str) -> str | None:
    for extract in (from_boxed,) if _has_box(text) else (_marked, from_phrase):
        found = extract(text)
        if found is not None:
            return found
    return None


EXTRACTORS: dict[str, Extractor] = {
    "answer_tag": from_tag,
    "boxed": from_boxed,
    "hash_mark": from_hash_mark,
    "last_number": from_last_number,
    "math": from_math,
}
"""Convention to (completion -> answer span, or None where it has none)."""
