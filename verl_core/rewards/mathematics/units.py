r"""Units behind a number: `10\text{ cm}^2`, `3 miles per hour`, `45^\circ`, `12 apples`."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    """What a number counts: a dimension such as ("length", 2), and how many of the dimension's base unit it is.

    A word without a known dimension ("apples") is its own dimension, with scale 1.
    """

    dimension: tuple[tuple[str, int], ...]
    scale: Fraction = Fraction(1)


DEGREE = Unit((("angle", 1),))

_TABLE = {
    "length": "m meter meters metre metres 1|km kilometer kilometers kilometre kilometres 1000"
    "|cm centimeter centimeters centimetre centimetres 1/100|mm millimeter millimeters 1/1000"
    "|in inch inches 0.0254|ft foot feet 0.3048|yd yard yards 0.9144|mi mile miles 1609.344",
    "mass": "g gram grams 1|kg kilogram kilograms kilo kilos 1000|mg milligram milligrams 1/1000"
    "|lb lbs pound pounds 453.59237|oz ounce ounces 28.349523125|ton tons 907184.74",
    "time": "s sec secs second seconds 1|min mins minute minutes 60|h hr hrs hour hours 3600|day days 86400"
    "|week weeks 604800|month months 2629800|yr year years 31557600",
    "volume": "L l liter liters litre litres 1|mL ml milliliter milliliters 1/1000|gal gallon gallons 3.785411784"
    "|quart quarts 0.946352946|pint pints 0.473176473|cup cups 0.2365882365",
    "money": "cent cents ¢ 1|dollar dollars USD usd buck bucks 100",
    "angle": "degree degrees deg 1|radian radians rad 57.29577951308232",
    "temperature C": "°C celsius 1",
    "temperature F": "°F fahrenheit 1",
}
_KNOWN = {
    name: (dimension, Fraction(scale))
    for dimension, units in _TABLE.items()
    for *names, scale in (unit.split() for unit in units.split("|"))
    for name in names
}
_NEUTRAL = frozenset(("unit", "units", "of", "the", "total", "exactly", "about"))
_SHORT = {"mph": "miles per hour", "kmh": "km per hour", "kph": "km per hour", "kmph": "km per hour"}
_POWER = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
_NAME = r"\\text\s?\{([^{}]*)\}"
_QUOTIENT = re.compile(rf"{_NAME}\s?/\s?{_NAME}|\\frac\s?\{{{_NAME}\}}\s?\{{{_NAME}\}}")  # m/s in two pieces
_UPRIGHT = re.compile(r"^(?P<body>.*?)\s?\\text\s?\{(?P<name>[^{}]*)\}(?:\^\{?(?P<power>[23])\}?)?$", re.DOTALL)
_DEGREES = re.compile(r"^(?P<body>.*?)\^\{?\s?\\circ\s?\}?\s?(?:\\text\s?\{)?(?P<scale>[CF]?)\}?$", re.DOTALL)
# Words behind a number that make it another one, or a choice, or deny it.
_NO_UNIT = re.compile(
    r"\d|^\s*(?:,|squared|cubed)|\b(?:or|and|nor|not|no|but|if|when|than|maybe|perhaps|rather|wrong|mod|pi|times|plus|minus"
    r"|over|root|factorial|half|halves|(?:thir|quarter|fif|ten|hundred|thousand)(?:ds?|ths?)|dozens?|hundred|thousand"
    r"|million|billion|zero|one|two|three|four|five|six|seven|eight|nine|ten)\b",
    re.IGNORECASE,
)
_OF_AN_ANGLE = re.compile(r"\s*$|.*(?:sin|cos|tan|cot|sec|csc)", re.DOTALL)
_WORDS = re.compile(
    r"^(?P<body>.*[\d)}!i])(?P<gap>\s?)(?P<name>[a-zA-Z]+(?:[ /][a-zA-Z/]+){0,4})\.?(?:\^\{?(?P<power>[23])\}?)?$",
    re.DOTALL,
)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """A unified text without its unit, and the unit; None where there is none."""
    text = _QUOTIENT.sub(r"\\text{\1\3/\2\4}", text)
    if "\\circ" in text and (found := _DEGREES.match(text)) and not _OF_AN_ANGLE.match(found["body"]):
        dimension = f"temperature {found['scale']}" if found["scale"] else "angle"
        return found["body"].strip(), Unit(((dimension, 1),))
    if "\\text" in text and (found := _UPRIGHT.match(text)) and found["body"].strip():
        if _NO_UNIT.search(found["name"]):
            return text, None
        inner, unit = split_unit(found["body"].strip())  # 5 \text{ cubic} \text{ cm}
        return inner, _unit(found["name"], found["power"]) or unit
    if (found := _WORDS.match(text)) and _is_unit(found):
        return found["body"].strip(), _unit(found["name"], found["power"])
    return text, None


def _is_unit(words: re.Match[str]) -> bool:
    """Bare letters behind a number are a unit where no product of variables is written so: `5 cm`, `5cm`, `12 apples`;
    `5 m` with its space, but not `5m` or `5xy`."""
    name, apart = words["name"], bool(words["gap"])
    first = re.split("[ /]", name)[0]
    if _NO_UNIT.search(name):
        return False
    if first in _SHORT:
        return True
    if first in _KNOWN or name.split()[-1] in _KNOWN:
        return len(first) > 1 or (apart and words["power"] is None)
    return apart and len(name) >= 3


def _unit(name: str, power: str | None) -> Unit | None:
    """The unit that words name: `cm`, `square miles`, `miles per hour`, `km/h`. None when they name nothing."""
    factors: list[tuple[str, Fraction, int]] = []
    sign = raised = 1
    for word in re.findall(r"[a-zA-Z°¢]+|/", _SHORT.get(name.strip().lower(), name)):
        known = word if word in _KNOWN else word.lower()
        if known in ("/", "per"):
            sign = -1
        elif known in ("squared", "cubed") and factors:
            dimension, size, exponent = factors.pop()
            factors.append((dimension, size, exponent * _POWER[known]))
        elif known in _POWER:
            raised = _POWER[known]
        elif known in _KNOWN:
            factors.append((*_KNOWN[known], sign * raised))
            raised = 1
        elif known not in _NEUTRAL:
            factors.append((known.removesuffix("s"), Fraction(1), sign))
    if factors:
        dimension, size, exponent = factors.pop()
        factors.append((dimension, size, exponent * int(power or 1)))  # the power of m/s^2 is that of s
    exponents: dict[str, int] = {}
    for dimension, _, exponent in factors:
        exponents[dimension] = exponents.get(dimension, 0) + exponent
    scale = math.prod((size**exponent for _, size, exponent in factors), start=Fraction(1))
    return Unit(tuple(sorted(exponents.items())), scale) if exponents else None
