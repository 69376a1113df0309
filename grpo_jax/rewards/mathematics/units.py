"""Units: what may stand beside a number without being a part of it. A closed list, and any words in `\\text`."""

import re

_ALIASES = {
    "usd": "$ dollar dollars usd buck bucks",
    "cent": "cent cents ¢",
    "eur": "€ euro euros eur",
    "gbp": "£ pounds sterling gbp",
    "jpy": "¥ yen jpy",
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
# What \text beside a number may not say: that it is another number, or none for sure.
CHANGING_WORDS = re.compile(
    r"\b(?:not?|nor|never|neither|either|or|and|between|about|around|approximately|roughly|maybe|perhaps|probably|possibly"
    r"|at|least|most|more|less|fewer|over|under|than|up|to|times|plus|minus|squared|cubed|factorial|halves|half|thirds?"
    r"|quarters?|fourths?|fifths?|pairs?|dozens?|scores?|gross|tens|hundreds?|thousands?|millions?|billions?|trillions?"
    r"|lakhs?|crores?|[kmb]|mod|modulo|base|if|when|where|unless|else|otherwise|except|without|is|are|was|wrong|false"
    r"|sin|cos|tan|cot|sec|csc|log|exp|sqrt|lim|max|min|gcd|lcm|twice|double|triple|squares?|cubes?|roots?|negative)\b",
    re.IGNORECASE,
)
_ANY_WORDS = re.compile(r"[a-z]{3,20}(?: [a-z]{2,20}){0,2}|[a-z]{2}(?: [a-z]{2,20}){1,2}")
_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}

_TAIL = re.compile(
    r"(?:(%)|(\^\\circ)|\\text ?\{([^{}\\]{1,40})\}|(?<![A-Za-z\\^_{])([A-Za-z][A-Za-z ./]{0,38}))"
    r"(?:\^(?:\{([23])\}|([23])))?$"
)
_CURRENCY = re.compile(r"([-+]?) ?([$€£¥]) ?([-+]?)(?=[0-9.])")


def split_unit(text: str) -> tuple[str, str]:
    """(`text` without the unit that ends it, the unit's one name), or (`text`, "") where no known unit ends it.

    A unit of one letter counts only in `\\text`: "5m" can be a product. In `\\text` any few small words that do not change
    the number are a unit, as in "5 apples".
    """
    match = _TAIL.search(text)
    if match is None or not match.start():
        return text, ""
    power = match[5] or match[6]
    if match[1] or match[2]:
        unit = None if power else "percent" if match[1] else "degree"
    else:
        unit = _unit(match[3] or match[4], letters=match[3] is not None)
        if unit is None and match[3] is not None and not power:
            words = match[3].strip().removesuffix(".")
            unit = words.removesuffix("s") if _ANY_WORDS.fullmatch(words) and not CHANGING_WORDS.search(words) else None
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
