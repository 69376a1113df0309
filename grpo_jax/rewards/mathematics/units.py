"""Units: what may stand beside a number without being a part of it. A closed list, and any words in `\\text`."""

import re

from grpo_jax.rewards.mathematics import words as wording

_ALIASES = {
    "usd": "$ dollar dollars usd USD buck bucks",
    "cent": "cent cents ¢",
    "eur": "€ euro euros eur EUR",
    "gbp": "£ pounds sterling gbp GBP",
    "jpy": "¥ yen jpy JPY",
    "percent": "% percent",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "oz": "oz ounce ounces",
    "lb": "lb lbs pound pounds",
    "ton": "ton tons",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "l": "l L liter liters litre litres",
    "gallon": "gal gallon gallons",
    "quart": "quart quarts",
    "pint": "pint pints",
    "cup": "cup cups",
    "acre": "acre acres",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "unit": "unit units",
    "point": "point points pts",
    "person": "person people",
    "student": "student students",
    "way": "way ways",
    "item": "item items",
    "time": "time times",
    "mph": "mph",
    "kmh": "kph",
}
_UNITS = {alias: unit for unit, aliases in _ALIASES.items() for alias in aliases.split()}
_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}

_TAIL = re.compile(
    r"(?:(%|[€£¥])|(\^\\circ)|\\text ?\{([^{}\\]{1,40})\}|(?<![A-Za-z\\^_{])([A-Za-z][A-Za-z ./]{0,38}))"
    r"(?:\^(?:\{([23])\}|([23])))?$"
)
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z]")
_PLAIN = re.compile(r"[-+]?\$?[0-9][0-9,]*(?:\.[0-9]+)? +")
_CURRENCY = re.compile(r"([-+]?) ?([$€£¥]) ?([-+]?)(?=[0-9.])")


def split_unit(text: str) -> tuple[str, str]:
    """(`text` without the unit that ends it, the unit's one name), or (`text`, "") where no known unit ends it.

    A unit of one letter counts only in `\\text`: "5m" can be a product. Any few words that do not change the number are a
    unit, as in "5 apples": in `\\text`, or after a plain number.
    """
    match = _TAIL.search(text)
    if match is None or not match.start():
        return text, ""
    power = match[5] or match[6]
    if match[1] or match[2]:
        unit = None if power else _UNITS[match[1]] if match[1] else "degree"
    else:
        unit = _unit(match[3] or match[4], letters=match[3] is not None)
        if unit is None and not power:
            words = (match[3] or match[4]).strip().removesuffix(".")
            before = text[: match.start()].rstrip()
            if match[3] is not None:
                counted = wording.are_unit(words) and not _LETTER.search(before)  # x\text{ so what} counts nothing
            else:
                counted = wording.are_bare_unit(words) and _PLAIN.fullmatch(text[: match.start()]) is not None
            unit = words.removesuffix("s") if counted else None
        if unit is not None and power:
            unit += f"^{power}"
    rest = text[: match.start()].rstrip()
    return (text, "") if unit is None or not rest else (rest, unit)


def split_currency(text: str) -> tuple[str, str]:
    """(`text` without the sign of a currency before its first digit, the currency), or (`text`, "")."""
    match = _CURRENCY.match(text)
    if match is None or (match[1] and match[3]):
        return text, ""
    return match[1] + match[3] + text[match.end() :], _UNITS[match[2]]


def compatible(left: str, right: str) -> bool:
    """Whether two units can stand for the same: a unit left out says nothing, two given ones must be one."""
    return not left or not right or left == right


def is_unit(word: str) -> bool:
    """Whether `word` is the name of a known unit."""
    return word in _UNITS


def _unit(words: str, letters: bool) -> str | None:
    """The one name of "square inches", "m^2", "miles per hour" or "km/h"; None where a word is no unit."""
    sides = re.split(r" per |/", words.strip().removesuffix("."))
    if len(sides) > 2:
        return None
    names = []
    for side in sides:
        power, name = "", None
        for word in side.split():
            if word in _POWERS and not power:
                power = _POWERS[word]
            elif word in _UNITS and name is None and (letters or len(word) > 1 or len(sides) == 2):
                name = _UNITS[word]
            else:
                return None
        if name is None:
            return None
        names.append(name + power)
    return {"mi/h": "mph", "km/h": "kmh"}.get("/".join(names), "/".join(names))
