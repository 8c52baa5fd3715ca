"""Numbers as people write them in a text: signs, currency, thousands, decimals, fractions. Compared by value, in one
canonical spelling, never as floats: they may be long. Every pattern is linear."""

import re
import unicodedata

DECORATION = r"[\s*_$£€\\]*"  # what may stand before a number: spaces, bold, currency, LaTeX's \$
SIGN = r"[-+\N{MINUS SIGN}]"

_COMMA = r",|\{,\}|\\,|[\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}]"  # between thousands
_DECIMALS = r"(?:\.\d+)?|\.\d+"
_TAIL = r"(?:/(?P<divisor>\d+))?"
# A plain space stands between thousands only where a number is expected: `#### 1 000`, not "in 20 300 people".
_EXPECTED = rf"[$£€]?(?P<digits>(?:\d{{1,3}}(?:(?:{_COMMA}| )\d{{3}})+(?!\d)|\d+){_DECIMALS}){_TAIL}"
_LOOSE = rf"[$£€]?(?P<digits>(?:\d{{1,3}}(?:(?:{_COMMA})\d{{3}})+(?!\d)|\d+){_DECIMALS}){_TAIL}"
_LEADING = re.compile(rf"{DECORATION}(?P<sign>{SIGN})?{_EXPECTED}")
_ANYWHERE = re.compile(rf"(?:(?<![\w)])(?P<sign>{SIGN}))?{_LOOSE}")
# A number that goes on as a calculation (5-3, 2*4, 10-3=7), a list (3,4; 3 4; 3 or 4), a range (5-6, 5 to 6), a time
# (5:30), a version (1.2.3), a power of ten (1e3, 5 million) or a mixed number is none.
_GOES_ON = re.compile(
    r"[ \t]*[-+*/^=x×÷⁄∕\N{MINUS SIGN}\N{EN DASH}][ \t]*[\d(.]|\*\*[ \t]*\d|[,.:/_'’]\d|[eE][-+]?\d|[kK]\b"
    r"|[²³¹⁰⁴-⁹¼-¾⅐-⅞]|[ \t]*\\(?:[dt]?frac|cdot|times|div)(?![a-zA-Z])"
    r"|[ \t]*(?:dozen|hundred|thousand|[mb]illion|and a half)\b"
    r"|(?:[,;]?[ \t]+(?:(?:or|and)[ \t]+)?|[ \t]+(?:to|times|plus|minus|over|mod)[ \t]+)[$-]?\d"
)

# "42 or 43" and "42, 43" settle on none; "42 (or 42.0)" does.
_ANOTHER = re.compile(
    rf"(?:[^\n\d]{{0,40}}\bor\b[^\n\d]{{0,40}}?|[ \t]*[,;][ \t]+|[ \t]*,?[ \t]+and[ \t]+)(?P<sign>{SIGN})?{_LOOSE}"
)


def leading_number(text: str) -> str | None:
    """The number that `text` starts with, in canonical form; None when it goes on as something else, or with another
    number to choose from."""
    found = _LEADING.match(text)
    if found is None or _GOES_ON.match(text, found.end()):
        return None
    number, another = _canonical(found), _ANOTHER.match(text, found.end())
    return None if another and _canonical(another) != number else number


def last_number(text: str) -> str | None:
    """The last number of `text`, in canonical form."""
    last = None
    for last in _ANYWHERE.finditer(text):  # noqa: B007 (the last match is wanted)
        pass
    return None if last is None else _canonical(last)


def _canonical(number: re.Match[str]) -> str:
    """The number with one spelling a value: no sign but -, no commas, no idle zeros, ASCII digits."""
    digits = "".join(
        str(unicodedata.decimal(c)) if c != "." else c for c in number["digits"] if c == "." or c.isdecimal()
    )
    whole, _, decimals = digits.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    value = f"{whole}.{decimals}" if decimals else whole
    sign = "-" if number["sign"] in ("-", "\N{MINUS SIGN}") and value != "0" else ""
    return f"{sign}{value}/{number['divisor']}" if number["divisor"] else f"{sign}{value}"
