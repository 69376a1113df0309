"""Language and character set: whether a completion keeps to the scripts asked for. No model decides.

It tells scripts apart, and languages only as far as their scripts differ: English from Russian or Chinese, but not from
French. DeepSeek-R1 (arXiv:2501.12948) rewards the share of words in the target language against chains of thought that
mix languages; this is the same measure by letters and scripts.
"""

import dataclasses
import functools
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from grpo_jax.rewards.protocol import Reward, RewardInput
from grpo_jax.rewards.text import without_invisible

_GROUPS = {"japanese": ("han", "hiragana", "katakana"), "korean": ("hangul", "han")}
SCRIPTS = (
    *("arabic", "armenian", "bengali", "bopomofo", "cyrillic", "devanagari", "ethiopic", "georgian", "greek", "gujarati"),
    *("gurmukhi", "han", "hangul", "hebrew", "hiragana", "kannada", "katakana", "khmer", "lao", "latin", "malayalam"),
    *("mathematical", "mongolian", "myanmar", "oriya", "sinhala", "tamil", "telugu", "thai", "tibetan"),
    *_GROUPS,
)
"""Names of scripts. Mathematical is that of letters such as 𝐀 and 𝒙; japanese and korean are the scripts of those languages
together."""

# How Unicode names the letters of a script, where it is not by the script's name.
_BY_NAME = {"CJK": "han", "KATAKANA-HIRAGANA": "katakana", "IDEOGRAPHIC": "han"}
# Letters of these look alike, so that a word of two of them is a disguise.
_CONFUSABLE = {"latin", "cyrillic", "greek", "armenian", "cherokee", "coptic", "mathematical", "fullwidth"}
# Greek letters are symbols of mathematics too, as in Δx: only these pass for Latin ones.
_GREEK_LOOKALIKES = frozenset("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϺϳοικνυχ")
_MOST_GREEK_SYMBOLS = 2

_WORD = re.compile(r"[^\W\d_]+")
_TAG = re.compile(r"</?[A-Za-z_]{1,32}>")
_MARKUP = re.compile(r"```|`|\$\$|\$|\\[()\[\]]")
_CLOSERS = {"```": "```", "`": "`", "$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}


def _threshold(share: float, least: float) -> float:
    return float(share >= least)


def _share(share: float, least: float) -> float:
    return share


SCORES: dict[str, Callable[[float, float], float]] = {"threshold": _threshold, "share": _share}
"""How the share of letters in the allowed scripts becomes a reward: 1 from `min_share` on, or the share itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """The scripts that a completion is to keep to.

    Attributes:
      scripts: names of allowed scripts, see `SCRIPTS`.
      score: "threshold" is 1 where the share of letters in the allowed scripts is at least `min_share`, else 0; "share"
        is that share itself, the measure of DeepSeek-R1, by letters.
      min_share: that least share, in (0, 1], for "threshold"; null is 0.95. Null for "share", which has none.
      max_mixed_words: the most words that may mix letters of scripts that look alike, as Latin and Cyrillic; one more and
        the reward is 0. The letters of such a word count as not allowed in any case.
      neutral_markup: true leaves Latin letters inside $…$, code and tags out of the count: commands, names, keywords.
        Where Latin is not allowed, a text between such marks is then free to be Latin.
      weight: weight of this reward in the composite.
    """

    scripts: tuple[str, ...] = ("latin",)
    score: str = "threshold"
    min_share: float | None = None
    max_mixed_words: int = 0
    neutral_markup: bool = True
    weight: float = 0.2

    def __post_init__(self) -> None:
        unknown = [script for script in self.scripts if script not in SCRIPTS]
        if unknown or not self.scripts or isinstance(self.scripts, str):
            raise ValueError(f"scripts is {self.scripts!r}, but it must be at least one of {sorted(SCRIPTS)}")
        if self.score not in SCORES:
            raise ValueError(f"score is {self.score!r}, but it must be one of {sorted(SCORES)}")
        if self.min_share is not None:
            if self.score == "share":
                raise ValueError(
                    f"min_share is {self.min_share}, but it must be null where score is 'share', which has none"
                )
            if not 0 < self.min_share <= 1:
                raise ValueError(f"min_share is {self.min_share}, but it must lie in (0, 1]")
        if self.max_mixed_words < 0:
            raise ValueError(f"max_mixed_words is {self.max_mixed_words}, but it must be 0 or more")
        if not math.isfinite(self.weight):
            raise ValueError(f"weight is {self.weight}, but it must be a finite number")

    @property
    def allowed(self) -> frozenset[str]:
        """The scripts, groups spelled out."""
        return frozenset(script for name in self.scripts for script in _GROUPS.get(name, (name,)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LetterCounts:
    """What a text is written in.

    Attributes:
      allowed: letters in the allowed scripts.
      other: letters in other scripts, and those of mixed words.
      mixed_words: words that mix scripts which look alike.
    """

    allowed: int = 0
    other: int = 0
    mixed_words: int = 0

    @property
    def share(self) -> float:
        """Of the letters that count, those in the allowed scripts; NaN where there are none."""
        return self.allowed / total if (total := self.allowed + self.other) else math.nan


def language_reward(config: LanguageConfig | None = None) -> Reward:
    """A reward for keeping to the scripts of `config`; None is `LanguageConfig()`. It does not apply to a text in which no
    letter counts."""
    config = LanguageConfig() if config is None else config
    score, least = SCORES[config.score], 0.95 if config.min_share is None else config.min_share
    allowed = config.allowed

    def consistency(row: RewardInput) -> float | None:
        counts = count_letters(row.completion, allowed, neutral_markup=config.neutral_markup)
        if math.isnan(counts.share):
            return None
        return 0.0 if counts.mixed_words > config.max_mixed_words else score(counts.share, least)

    return consistency


def count_letters(text: str, allowed: frozenset[str], *, neutral_markup: bool = True) -> LetterCounts:
    """The letters of `text` by whether their script is among `allowed`. Digits, signs and punctuation do not count, nor do
    up to two Greek letters in a word, which are symbols. Linear in the length of the text."""
    inside = outside = mixed = 0
    for part, markup in _parts(without_invisible(text), neutral_markup):
        for match in _WORD.finditer(part):
            word = match.group()
            if word.isascii():
                if not markup:
                    inside, outside = (inside + len(word), outside) if "latin" in allowed else (inside, outside + len(word))
                continue
            scripts = [script_of(letter) for letter in word]
            if _is_mixed(word, scripts):
                mixed += 1
                outside += len(word)
                continue
            symbols = scripts.count("greek") <= _MOST_GREEK_SYMBOLS and "greek" not in allowed
            for script in scripts:
                if script is None or (markup and script == "latin") or (symbols and script == "greek"):
                    continue
                if script in allowed:
                    inside += 1
                else:
                    outside += 1
    return LetterCounts(allowed=inside, other=outside, mixed_words=mixed)


@functools.lru_cache(maxsize=65_536)
def script_of(letter: str) -> str | None:
    """The script of a letter by its Unicode name, in lower case; None for a sign that Unicode counts among letters."""
    # µ, ª, º, and letter-like symbols such as Ω for ohm
    if letter in "µªº" or "\u2100" <= letter <= "\u214f":
        return None
    if not unicodedata.category(letter).startswith("L"):
        return None
    first = unicodedata.name(letter, "UNKNOWN").split()[0]
    return _BY_NAME.get(first, first.lower())


def _is_mixed(word: str, scripts: Sequence[str | None]) -> bool:
    if len(set(scripts)) < 2:
        return False
    disguises = {
        script
        for letter, script in zip(word, scripts, strict=True)
        if script in _CONFUSABLE and (script != "greek" or letter in _GREEK_LOOKALIKES)
    }
    return len(disguises) > 1


def _parts(text: str, neutral_markup: bool) -> Iterator[tuple[str, bool]]:
    """The text in parts, each with whether it is mathematics, code or a tag."""
    if not neutral_markup:
        yield text, False
        return
    position, closer = 0, None
    for match in _MARKUP.finditer(text):
        mark = match.group()
        if closer is None and mark in _CLOSERS:
            yield from _around_tags(text[position : match.start()])
            position, closer = match.end(), _CLOSERS[mark]
        elif mark == closer:
            yield text[position : match.start()], True
            position, closer = match.end(), None
    # An opening mark that nothing closes is a dollar, or a formula that was cut off.
    yield from _around_tags(text[position:])


def _around_tags(text: str) -> Iterator[tuple[str, bool]]:
    return ((part, False) for part in _TAG.split(text))


def charset_reward(ranges: Sequence[tuple[int, int]]) -> Reward:
    """A reward of 1 where every character of the completion lies in one of `ranges`, (first, last) code points; else 0.

    Raises:
      ValueError: there is no range, or one that holds no code point.
    """
    if not ranges or any(not 0 <= first <= last <= 0x10FFFF for first, last in ranges):
        raise ValueError(
            f"ranges is {ranges!r}, but it must be at least one (first, last) with 0 <= first <= last <= 0x10FFFF"
        )
    allowed = re.compile("[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]*")

    def charset(row: RewardInput) -> float:
        return float(allowed.fullmatch(row.completion) is not None)

    return charset


ascii_only: Reward = charset_reward([(0x20, 0x7E), (0x09, 0x0A), (0x0D, 0x0D)])
"""1 where the completion holds printable ASCII, tabs and line ends alone."""
language_consistency: Reward = language_reward()
"""1 where 95 % of the letters are Latin and no word mixes scripts."""
