"""One notation for what is written in many: math delimiters, spacing, bold, synonyms of LaTeX commands, unicode signs.

Nothing here says what a text means, and nothing that could change its value is dropped.
"""

import re

MAX_LENGTH = 1024
"""Characters of an answer or a reference; a longer one is equal to the same text only."""

_UNICODE = {
    "−": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": "/",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}",
    "π": r"\pi ",
    "θ": r"\theta ",
    "√": r"\sqrt ",
    "°": r"^\circ ",
    "±": r"\pm ",
    "²": "^2",
    "³": "^3",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}",
    "⅙": r"\frac{1}{6}",
    "⅛": r"\frac{1}{8}",
    "⅜": r"\frac{3}{8}",
    "⅝": r"\frac{5}{8}",
    "⅞": r"\frac{7}{8}",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "’": "'",
    "\u00a0": " ",
    "\u2009": " ",
    "\u202f": " ",
}
_TRANSLATION = str.maketrans(_UNICODE)
_FOREIGN = re.compile(r"[^\x20-\x7e€£¥]")  # look-alikes, invisible and control characters: none of them is notation

_COMMANDS = {
    **dict.fromkeys(("left", "right", "big", "Big", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "bigg", "Bigg"), ""),
    **dict.fromkeys(("displaystyle", "textstyle", "limits", "rm", "bf", "it", "!", "(", ")", "[", "]"), ""),
    **dict.fromkeys((",", ";", ":", " ", ">", "quad", "qquad", "thinspace", "enspace"), " "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "frac"), r"\frac"),
    **dict.fromkeys(("dbinom", "tbinom", "binom"), r"\binom"),
    **dict.fromkeys(("leq", "leqslant", "le"), r"\le "),
    **dict.fromkeys(("geq", "geqslant", "ge"), r"\ge "),
    **dict.fromkeys(("neq", "ne"), r"\ne "),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("varnothing", "emptyset"), r"\emptyset "),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(["text", "textbf", "textit", "textrm", "texttt", "textnormal", "mbox", "emph"], r"\text"),
    **dict.fromkeys(["mathrm", "mathbf", "mathit", "mathsf", "operatorname"], r"\text"),
    "lt": "<",
    "gt": ">",
    "div": "/",
    "degree": r"^\circ ",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "lbrack": "[",
    "rbrack": "]",
    "lparen": "(",
    "rparen": ")",
    "infin": r"\infty ",
    "pounds": "£",
    "euro": "€",
    "%": "%",
    "#": "#",
    "_": "_",
}
_ROOT = re.compile(r"√ *([0-9]+)")
_ROW_GAP = re.compile(r"(\\\\) *\[[0-9.]{1,6} ?(?:pt|em|ex|cm|mm)\]")
_ORNAMENTS = (
    (re.compile(r"\\(?:text)?color *\{[A-Za-z]{1,16}\} *(?=\{)"), ""),
    (re.compile(r"^\\underline *\{([^{}]*)\}$"), r"\1"),
    (re.compile(r"^\\text *\{ *(?:[Ff]inal )?[Aa]nswer: *\} *"), ""),
    (re.compile(r"^\\text *\{ *(?:[Oo]ption|[Cc]hoice) +(\(?[A-J]\)?) *\}$"), r"\1"),
    (re.compile(r"\\bar *(?:([0-9])|\{([0-9]{1,9})\})"), r"\\overline{\1\2}"),
)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")
_PAIRS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("`", "`"))
_BOX = re.compile(r"\\(?:boxed|fbox) *\{")
_NOTATED = re.compile(r"[\\$*{;~]|and|or")  # what any of the rules below begins with
_CONNECTIVE = re.compile(r"[,;]? *(?:\\text *\{ *(?:,? *)(and|or) *\}|(?<![\w\\{])(and|or)(?![\w}]))")
_CIRCLE = re.compile(r"\^ *(?:\{ *\\circ *\}|\\circ\b) *")


def clean(text: str) -> str | None:
    r"""`text` without what says nothing about its value, in one notation; None where it has a foreign character.

    `\text` stands for every upright or bold command, `\and` and `\or` for the words between items, "$" for a currency,
    `^\circ` for every sign of a degree.
    """
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _unwrap(text.translate(_TRANSLATION).replace("\n", " ").replace("\t", " ").replace("\r", " "))
    if _FOREIGN.search(text):
        return None
    if not _NOTATED.search(text):
        return text
    if text.count("$") - text.count("\\$") > 1:  # pairs of math delimiters; one alone is a currency
        text = re.sub(r"(?<!\\)\$", "", text)
    text = re.sub(r"\{ *, *\}|, *\\! *", ",", text).replace("**", "^")
    text = text.replace("\\$", "$")
    text = re.sub(r"(?<=\S)~", " ", text)  # at the beginning it says "about"
    text = _ROW_GAP.sub(r"\1", text)
    for pattern, replacement in _ORNAMENTS:
        text = pattern.sub(replacement, text)
    text = _COMMAND.sub(_command, text)
    text = _CONNECTIVE.sub(lambda match: rf" \{match[1] or match[2]} ", text)
    text = _CIRCLE.sub(r"^\\circ ", text)
    return text.strip()


def _command(match: re.Match[str]) -> str:
    return _COMMANDS.get(match[0][1:], match[0])


def _unwrap(text: str) -> str:
    for _ in range(8):
        before = text
        text = text.strip()
        if text.endswith(".") and not text.endswith(("..", r"\right.", r"\left.")):
            text = text[:-1].rstrip()
        for opening, closing in _PAIRS:
            inner = text[len(opening) : -len(closing)]
            if (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and not text.endswith("\\" + closing)
                and opening not in inner
                and closing not in inner
            ):
                text = inner
                break
        match = _BOX.match(text)
        if match and closing_brace(text, match.end()) == len(text) - 1:
            text = text[match.end() : -1]
        if text == before:
            break
    return text


def closing_brace(text: str, start: int) -> int:
    """Where the group ends whose first character is at `start`; -1 where it does not."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.start()
    return -1


_SCAN = re.compile(r"\\(?:begin|end)\{[a-z]+\}|\\[A-Za-z]+|\\.|.", re.DOTALL)
_OPEN = frozenset(("(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"))
_CLOSE = frozenset((")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"))


def split(text: str, separators: frozenset[str]) -> tuple[list[str], list[str]] | None:
    """(parts, separators between them) of `text`, cut where no bracket or environment is open; None where brackets do
    not balance. Kinds of brackets may mix, as in [0, 1)."""
    parts, found, depth, start = [], [], 0, 0
    for match in _SCAN.finditer(text):
        token = match[0]
        if token in separators and depth == 0:
            parts.append(text[start : match.start()].strip())
            found.append(token)
            start = match.end()
        elif token in _OPEN or token.startswith(r"\begin{"):
            depth += 1
        elif token in _CLOSE or token.startswith(r"\end{"):
            depth -= 1
            if depth < 0:
                return None
    return None if depth else ([*parts, text[start:].strip()], found)
