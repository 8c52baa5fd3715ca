"""Arithmetic that a model wrote: whole numbers, + - * / and parentheses, read by a parser of its own and worked out
exactly in fractions. Nothing is evaluated by Python."""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 1000
MAX_DEPTH = 50
MAX_DIGITS = 20

_SPELLINGS = str.maketrans(
    {
        **dict.fromkeys("×✕∗⋅·•＊", "*"),
        **dict.fromkeys("÷∕⁄／", "/"),
        **dict.fromkeys("−‒–—﹣－", "-"),
        **dict.fromkeys("＋", "+"),
        **dict.fromkeys("（[［", "("),
        **dict.fromkeys("）]］", ")"),
    }
)
_COMMANDS = {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\left": "", r"\right": "", r"\,": "", r"\ ": ""}
_FRACTION = r"\frac"
_TOKEN = re.compile(r"\s*(?:(\d+)|(\\[a-z]+|\\[, ])|([-+*/(){}]))")


class NotArithmetic(ValueError):
    """The text is no expression of this arithmetic, has no value, or is larger than any honest answer; the message is
    a short fixed phrase."""


@dataclass(frozen=True, slots=True)
class Worked:
    """An expression's exact value, and the numbers written in it, from left to right, without signs."""

    value: Fraction
    numbers: tuple[int, ...]


def plain(text: str) -> str:
    """The text with the operators' other signs (× ÷ −, full width) as ASCII; every character stays one character."""
    return text.translate(_SPELLINGS)


def work_out(text: str) -> Worked:
    r"""The value of an expression; \times, \cdot, \div, \frac{}{}, \left and \right are read as well.

    Powers, decimals, and products without a sign are not part of it. Raises NotArithmetic for anything else, for a
    division by zero, and for more than 1,000 characters, 50 levels of parentheses, or 20 digits a number.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotArithmetic("too long an expression")
    reader = _Reader(_tokens(plain(text)))
    value = reader.sum(0)
    if reader.next is not None:
        raise NotArithmetic("not an arithmetic expression")
    return Worked(value, tuple(reader.numbers))


def _tokens(text: str) -> list[str]:
    tokens, end, text = [], 0, text.rstrip()
    while end < len(text):
        found = _TOKEN.match(text, end)
        if found is None:
            raise NotArithmetic("not an arithmetic expression")
        end = found.end()
        word = found[found.lastindex or 0]
        if found.lastindex == 2:
            word = _FRACTION if word in (r"\dfrac", r"\tfrac", _FRACTION) else _COMMANDS.get(word, word)
        if word:
            tokens.append(word)
    return tokens


class _Reader:
    """Recursive descent, a method a rule; `depth` counts open parentheses, so that nothing recurses far."""

    def __init__(self, tokens: list[str]):
        self._rest = iter(tokens)
        self.numbers: list[int] = []
        self.next: str | None = None
        self._advance()

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.next in ("+", "-"):
            value = value + self._product(depth) if self._advance() == "+" else value - self._product(depth)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._factor(depth)
        while self.next in ("*", "/"):
            value = value * self._factor(depth) if self._advance() == "*" else _quotient(value, self._factor(depth))
        return value

    def _factor(self, depth: int) -> Fraction:
        sign = 1
        while self.next in ("+", "-"):
            sign = -sign if self._advance() == "-" else sign
        word = self._advance()
        if word is not None and word.isdigit():
            if len(word) > MAX_DIGITS:
                raise NotArithmetic("too large a number")
            self.numbers.append(int(word))
            return sign * Fraction(int(word))
        if word == "(":
            return sign * self._closed(")", depth)
        if word == _FRACTION:
            return sign * _quotient(self._braced(depth), self._braced(depth))
        raise NotArithmetic("not an arithmetic expression")

    def _braced(self, depth: int) -> Fraction:
        if self._advance() != "{":
            raise NotArithmetic("not an arithmetic expression")
        return self._closed("}", depth)

    def _closed(self, bracket: str, depth: int) -> Fraction:
        if depth == MAX_DEPTH:
            raise NotArithmetic("too deep an expression")
        value = self.sum(depth + 1)
        if self._advance() != bracket:
            raise NotArithmetic("not an arithmetic expression")
        return value

    def _advance(self) -> str | None:
        word, self.next = self.next, next(self._rest, None)
        return word


def _quotient(dividend: Fraction, divisor: Fraction) -> Fraction:
    if divisor == 0:
        raise NotArithmetic("division by zero")
    return dividend / divisor
