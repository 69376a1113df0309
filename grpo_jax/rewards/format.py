"""Format: 1 where a completion has the structure asked for, 0 where it does not."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from grpo_jax.rewards.protocol import Reward, RewardInput
from grpo_jax.rewards.text import without_invisible

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_END_OF_BOX = re.compile(r"(?:[\s$.]|\\[)\]])*")

# Commands that take space and show nothing, and what is left of a formula without contents.
_EMPTY_LATEX = re.compile(r"\\(?:[,;:! ]|(?:quad|qquad|text|mathrm|mbox|phantom|hphantom|vphantom)(?![A-Za-z]))|[{}$]")


def format_reward(tags: Sequence[str] = ("think", "answer"), filled: Sequence[str] = ("answer",)) -> Reward:
    """A reward for `<think>…</think><answer>…</answer>` and its kin.

    Every opening and closing tag stands exactly once and in order, nothing but white space stands outside, and the
    sections in `filled` hold something visible. What looks like one of the tags counts as one more of it, see
    `count_tags`.

    Raises:
      ValueError: `tags` is empty or repeats a tag, or `filled` names another.
    """
    if not tags or len(set(tags)) < len(tags) or not set(filled) <= set(tags):
        raise ValueError(f"tags are distinct and at least one, and filled is among them; got {tags} and {filled}")
    once = {mark: 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")}

    def structure(row: RewardInput) -> float:
        text = row.completion
        if any(text.count(mark) != 1 for mark in once) or count_tags(text, tags) != once:
            return 0.0
        outside, position = [], 0
        for tag in tags:
            start, end = text.find(f"<{tag}>", position), text.find(f"</{tag}>", position)
            content = start + len(tag) + 2
            if start < 0 or end < content or (tag in filled and not _visible(text[content:end])):
                return 0.0
            outside.append(text[position:start])
            position = end + len(tag) + 3
        outside.append(text[position:])
        return float(not any(part.strip() for part in outside))

    return structure


def count_tags(text: str, tags: Sequence[str]) -> dict[str, int]:
    """How often each `<tag>` and `</tag>` stands in `text`, look-alikes included; a mark that is absent has no key.

    Look-alikes are the tag in other case, with white space or attributes in it, as `<tag/>`, in full-width characters,
    written by HTML entities, or with invisible characters in it. Linear in the length of the text.
    """
    names = "|".join(re.escape(tag.casefold()) for tag in tags)
    spelled = {tag.casefold(): tag for tag in tags}
    # Entities first: they may stand for a full-width or an invisible character.
    plain = without_invisible(unicodedata.normalize("NFKC", html.unescape(text))).casefold()
    counts: Counter[str] = Counter()
    # Possessive: white space that no name follows is not tried in every division.
    for match in re.finditer(rf"<\s*+(/?)\s*+({names})(?:[\s/][^<>]*)?>", plain):
        counts[f"<{match[1]}{spelled[match[2]]}>"] += 1
    return dict(counts)


def nothing_after_answer(row: RewardInput) -> float:
    """1 where the completion ends in one filled `<answer>…</answer>`, the only one, whatever stands before it."""
    text = row.completion.rstrip()
    if count_tags(text, ("answer",)) != {"<answer>": 1, "</answer>": 1} or not text.endswith("</answer>"):
        return 0.0
    _, opening, rest = text.partition("<answer>")
    return float(bool(opening) and _visible(rest.removesuffix("</answer>")))


def boxed_once(row: RewardInput) -> float:
    """1 where the completion holds exactly one `\\boxed{`."""
    return float(row.completion.count("\\boxed{") == 1)


def boxed_last(row: RewardInput) -> float:
    """1 where the completion ends in one filled `\\boxed{…}`, the only box, followed by nothing but white space, full
    stops and the end of its formula ("$", "\\)" or "\\]")."""
    text = row.completion
    boxes = list(_BOX.finditer(text))
    if len(boxes) != 1 or not text.startswith("\\boxed{", boxes[0].start()):
        return 0.0
    first = boxes[0].end() + 1
    depth, escaped = 1, False
    for index in range(first, len(text)):
        character = text[index]
        if escaped or character == "\\":
            escaped = not escaped
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return float(_visible(text[first:index]) and _END_OF_BOX.fullmatch(text, index + 1) is not None)
    return 0.0


def hash_mark_once(row: RewardInput) -> float:
    """1 where the completion ends in a line of its own that starts with "####" and goes on, the only one."""
    last = row.completion.rstrip().rpartition("\n")[2]
    alone = row.completion.count("####") == 1 and last.startswith("####") and not last.startswith("#####")
    return float(alone and _visible(last.removeprefix("####")))


def _visible(text: str) -> bool:
    """Whether a reader sees anything: a letter, digit, sign or symbol, and in LaTeX more than spacing and empty groups."""
    shown = _EMPTY_LATEX.sub("", without_invisible(text))
    return any(unicodedata.category(character)[0] in "LNPS" for character in shown)
