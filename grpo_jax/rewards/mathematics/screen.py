r"""What math-verify's LaTeX reader may see: a closed list of tokens, each bounded, of which none computes at length.

That reader evaluates while it reads, and drops or rewrites what it takes for slips, so it gets only what it reads
faithfully. Sums, integrals, limits, factorials, equations and everything that it knows besides do not pass.
"""

import re

MAX_LENGTH = 160
MAX_DEPTH = 8
MAX_POWERS = 6

_COMMANDS = frozenset(
    (
        *("frac", "sqrt", "pi", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "max", "min", "gcd", "lcm"),
        *("alpha", "beta", "gamma", "theta", "lambda", "mu", "phi", "omega", "sigma"),
        *("overline", "bar", "vec", "hat", "begin{pmatrix}", "end{pmatrix}", "begin{bmatrix}", "end{bmatrix}"),
    )
)
_READER_ONLY = re.compile(r"\\(?:overline|bar|vec|hat|max|min|gcd|lcm|begin)(?![A-Za-z])")
_TOKEN = re.compile(
    r"\\((?:begin|end)\{[a-z]+\}|[A-Za-z]+)"
    r"|(?<![0-9])[0-9]{1,9}(?![0-9]| +[0-9]| *\\frac)"  # decimals become floats; numbers side by side, sums
    r"|\^(?:[a-z2-9]|\{-?[0-9]{1,2}\}|\{[a-z]\})(?![0-9 ]*[\^!'])"  # no towers
    r"|(?<![A-Za-z])[A-Za-z]{1,2}(?![A-Za-z'])"
    r"|\\\\|[-+*/(){},& ]"
)


def passes(text: str) -> bool:
    """Whether the whole of `text` is made of known, bounded tokens, with brackets that balance."""
    if len(text) > MAX_LENGTH or text.count("^") > MAX_POWERS or "}^" in text or ")^" in text:
        return False
    position = depth = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match[1] is not None and match[1] not in _COMMANDS):
            return False
        position = match.end()
        depth += (match[0] in ("(", "{")) - (match[0] in (")", "}"))
        if not 0 <= depth <= MAX_DEPTH:
            return False
    return depth == 0


def needed(text: str) -> bool:
    """Whether `text` has a command that the grammar of expression.py does not know and that reader does."""
    return _READER_ONLY.search(text) is not None


def letters(text: str) -> frozenset[str]:
    """The letters of `text` outside commands. The reader takes capitals for small ones: two texts must agree in them."""
    return frozenset(re.sub(r"\\[A-Za-z]+", " ", text)) & frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
