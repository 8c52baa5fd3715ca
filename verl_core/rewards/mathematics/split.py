r"""Takes a text apart outside its brackets: at commas, relation signs, `\cup`, the rows and cells of a matrix."""

import re

from verl_core.rewards.mathematics.expression import Unreadable

_BRACKET = re.compile(r"\\begin\{\w*\}|\\end\{\w*\}|\\langle|\\rangle|\\.|[()\[\]{}]", re.DOTALL)
_OPENINGS = {"(": "round", "[": "round", "\\langle": "round", "{": "brace", "\\{": "set", "\\begin": "matrix"}
_CLOSINGS = {")": "round", "]": "round", "\\rangle": "round", "}": "brace", "\\}": "set", "\\end": "matrix"}
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?!\d)(?!,\d)")
_HIDDEN = "\x00"


def outside(text: str) -> str:
    """`text` with all that stands within brackets hidden, of the same length, so that a pattern finds what is outside.

    `(` and `[` may close each other, as in half-open intervals. Raises Unreadable where brackets do not balance.
    """
    open_brackets: list[str] = []
    pieces, shown = [], 0
    for found in _BRACKET.finditer(text):
        mark = _mark(found)
        if mark in _OPENINGS:
            if not open_brackets:
                pieces.append(text[shown : found.start()])
                shown = found.start()
            open_brackets.append(_OPENINGS[mark])
        elif mark in _CLOSINGS:
            if not open_brackets or open_brackets.pop() != _CLOSINGS[mark]:
                raise Unreadable("brackets do not balance")
            if not open_brackets:
                pieces.append(_HIDDEN * (found.end() - shown))
                shown = found.end()
    if open_brackets:
        raise Unreadable("a bracket is not closed")
    return "".join(pieces) + text[shown:]


def split(text: str, separator: re.Pattern[str], thousands: bool = False) -> list[str]:
    """The pieces between separators outside brackets, stripped; `thousands`: the comma of 1,234 separates nothing."""
    seen = outside(text)
    if thousands and "," in seen:
        seen = _THOUSANDS.sub(lambda number: number.group().replace(",", _HIDDEN), seen)
    pieces, start = [], 0
    for found in separator.finditer(seen):
        pieces.append(text[start : found.start()].strip())
        start = found.end()
    return [*pieces, text[start:].strip()]


def enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) where one pair of brackets holds the whole of a balanced text."""
    opening = next((mark for mark in _OPENINGS if text.startswith(mark) and mark != "\\begin"), None)
    if opening is None:
        return None
    depth = 0
    for found in _BRACKET.finditer(text):
        mark = _mark(found)
        depth += (mark in _OPENINGS) - (mark in _CLOSINGS)
        if depth == 0 and mark in _CLOSINGS:
            return (opening, text[len(opening) : found.start()].strip(), mark) if found.end() == len(text) else None
    return None


def _mark(found: re.Match[str]) -> str:
    """The bracket found; of an environment only the command."""
    mark = found.group()
    return mark.partition("{")[0] if mark.startswith(("\\begin", "\\end")) else mark
