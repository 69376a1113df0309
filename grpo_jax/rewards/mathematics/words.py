"""Words beside a number: which leave it as it is, and which make it another number, a bound, a guess or none.

Nouns are open-ended, so any short run of words is a unit unless one of them is in the list here.
"""

import re

_NUMBERS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen(?:ths?)?|(?:twen|thir|for|fif|six|seven"
    "|eigh|nine)ty|[a-z]+tieths?|third(?:s)?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|elevenths?"
    "|twel[fv]ths?|first|hal[fv]e?s?|quarters?|quarts? of|point|decimal|fraction|nil|naught|nought|once|twice|thrice"
    "|tens|hundred[a-z]*|thousand[a-z]*|[a-z]*illi(?:on|ard)[a-z]*|lakhs?|lacs?|crores?|myriads?|googol[a-z]*|dozens?|scores?"
    "|gross|grands?|pairs?|couples?|trios?|mio|mil|mln|mille?|permille?|promille|mld|mrd|bn|tn|trn|thou|kilo|mega|giga"
    "|percentage|bps?|basis|[kmbx]|pi|tau|infinit[a-z]*|imaginary|i"
)
_OPERATORS = (
    "plus|minus|add(?:s|ed|ing|ition)?|subtract[a-z]*|times|multipl[a-z]*|divid[a-z]*|divisors?|over|powers?|raised|squared?"
    "|squares|cube[ds]?|roots?|sqrt|cbrt|logs?|logarithms?|lg|ln|exp|exponent[a-z]*|sin|cos|tan|cot|sec|csc|lim|max|min|gcd"
    "|lcm|hcf|factorials?|prime|mod|modulo|modulus|remainders?|rem|carry|base|binary|octal|hex[a-z]*|radix|doubled?|triple[d]?"
    "|quadruple[d]?|quintuple[d]?|[a-z]*fold|halved|percent of|choose|negat[a-z]*|opposite|inverse|reciprocal"
    "|conjugate|complement|absolute|debts?|deficits?|owed|off|increased|decreased|reduced"
)
_BOUNDS = (
    "below|above|beyond|under|more|less|fewer|greater|larger|smaller|bigger|higher|lower|than|least|most|up|down|until|till"
    "|through|between|from|about|around|approx[a-z]*|roughly|nearly|almost|circa|ca|some|within|exceed[a-z]*|maximum|minimum"
    "|something|odd|ish|estimate[a-z]*|near|close"
)
_DOUBTS = (
    "nor|or|either|neither|both|but|however|though|although|instead|rather|alternat[a-z]*|other|others|another|else|otherwise"
    "|maybe|perhaps|possib[a-z]*|probabl[a-z]*|likely|unlikely|could|might|may|would|should|guess[a-z]*|unsure|uncertain|unless"
    "|unknown|if|when|where|whereas|versus|vs|against|also"
    "|except[a-z]*|excluding|without|unequal|differ[a-z]*|conflict[a-z]*|etc|so on"
)
_NEGATIONS = (
    "not|no|non|none|never|nope|nah|nay|isnt|isn't|isn|arent|aren't|aint|ain't|wasnt|wasn't|doesnt|doesn't|dont|don't|didnt"
    "|didn't|cant|can't|cannot|wont|won't|wrong[a-z]*|incorrect[a-z]*|false[a-z]*|untrue|invalid|impossible|reject[a-z]*"
    "|undefined|refute[a-z]*|disprov[a-z]*|discard[a-z]*|ignor[a-z]*|eliminat[a-z]*|exclude[a-z]*|mistake[a-z]*|errors?"
    "|erroneous|typos?|nonsense|bogus|fake|joke|unsolvable|unproven|fails?|failed|inaccurate|misleading|dis[a-z]*agree[a-z]*|bad"
)


def _any_of(*lists: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z'])(?:{'|'.join(lists)})(?![A-Za-z])", re.IGNORECASE)


CHANGING = _any_of(_NUMBERS, _OPERATORS, _BOUNDS, _DOUBTS, _NEGATIONS, "and|is|are|was|were|be")
"""What makes a number beside it another one, or none for sure."""
DOUBT = _any_of(_DOUBTS, _NEGATIONS)
"""What takes an answer back, or sets another beside it."""
NEGATION = _any_of(_NEGATIONS, "except[a-z]*|excluding|but|maybe|perhaps|unless|or")

_UNIT = re.compile(r"(?:per )?[A-Za-z]{3,20}(?: [A-Za-z]{2,20}){0,2}")
_BARE = re.compile(r"(?=[a-z]*[aeiouy])(?:[a-z]{3,19}s|[a-z]{5,20})(?: [a-z]{2,20}){0,2}")


def are_unit(words: str) -> bool:
    """Whether one to three words can be what a number counts."""
    return _UNIT.fullmatch(words) is not None and not CHANGING.search(words)


def are_bare_unit(words: str) -> bool:
    """As `are_unit`, where they stand in mathematics: a short word may be a product of letters there."""
    return _BARE.fullmatch(words) is not None and are_unit(words)
