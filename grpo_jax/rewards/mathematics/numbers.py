"""Numbers written out, read exactly, with the unit beside them."""

import dataclasses
import re
from fractions import Fraction

from grpo_jax.rewards.mathematics import notation
from grpo_jax.rewards.mathematics.units import split_currency, split_unit

MAX_DIGITS = 256
MAX_EXPONENT = 300
"""Of a power of ten in scientific notation."""

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+(?![0-9 /\\])|[0-9]+)"
_DECIMAL = re.compile(rf"([-+]?) ?({_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)")
_SCIENTIFIC = re.compile(
    r"([-+]?)([1-9](?:\.[0-9]+)?)"  # one digit before the point, or 46*10^0 would be a number
    r"(?:[eE]([-+]?[0-9]{1,3})| *\* *10 ?\^ ?(?:\{ ?([-+]?[0-9]{1,3}) ?\}|(-?[0-9]{1,3})))"
)
_PART = r"(?:\{ ?([-+]?[0-9]+) ?\}|([0-9]))"
_FRACTION = re.compile(
    r"([-+]?) ?(?:([0-9]+)(?: +|(?=\\)))?"  # sign, and the whole part of a mixed number
    rf"(?:([0-9]+) */ *([0-9]+)|\\frac ?{_PART} ?{_PART})"  # in either notation
)


@dataclasses.dataclass(frozen=True)
class Number:
    """An exact value.

    Attributes:
      value: the number.
      step: one unit of its last decimal place, None where it is written without a decimal point.
      unit: what stands beside it, by its one name; "" for nothing.
    """

    value: Fraction
    step: Fraction | None = None
    unit: str = ""

    def times(self, factor: "Number") -> "Number":
        """The product, of the unit of either."""
        return Number(self.value * factor.value, self.step, self.unit or factor.unit)


def parse_number(text: str) -> Fraction | None:
    """The exact value of a number written out in ASCII digits, None where `text` is anything else.

    A fraction that divides evenly is anything else: 10/2 is a division still to be done.
    """
    cleaned = notation.clean(text) if len(text) <= notation.MAX_LENGTH else None
    number = None if cleaned is None else read_number(cleaned)
    return None if number is None else number.value


def read_number(text: str) -> Number | None:
    """As `parse_number`, of a text in `notation`."""
    if len(text) > MAX_DIGITS:
        return None
    number = _read(text, "")
    if number is None:
        text, unit = split_unit(text)
        text, currency = split_currency(text)
        if not (unit or currency) or (currency and unit not in ("", currency) and not unit.startswith("per ")):
            return None
        number = _read(text, unit or currency)
    return number


def _step(digits: str) -> Fraction | None:
    _, point, decimals = digits.partition(".")
    return Fraction(1, 10 ** len(decimals)) if point else None


def _read(text: str, unit: str) -> Number | None:
    step = None
    if match := _DECIMAL.fullmatch(text):
        value, step = Fraction(match[2].replace(",", "").replace(" ", "")), _step(match[2])
    elif match := _FRACTION.fullmatch(text):
        top, bottom = (match[3], match[4]) if match[3] else (match[5] or match[6], match[7] or match[8])
        if int(bottom) == 0 or int(top) % int(bottom) == 0 or (match[2] and (top + bottom).lstrip("0123456789")):
            return None
        value = int(match[2] or 0) + Fraction(int(top), int(bottom))
    elif match := _SCIENTIFIC.fullmatch(text):
        exponent = int(match[3] or match[4] or match[5])
        if abs(exponent) > MAX_EXPONENT:
            return None
        value = Fraction(match[2]) * Fraction(10) ** exponent
        step = (_step(match[2]) or Fraction(1)) * Fraction(10) ** exponent if "." in match[2] or exponent < 0 else None
    else:
        return None
    return Number(-value if match[1] == "-" else value, step, unit)
