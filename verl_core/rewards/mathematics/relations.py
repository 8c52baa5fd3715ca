r"""Reads equations and inequalities: `x = 5` names a value, `2x + y = 3` is an equation, `0 \le x < 1` an interval."""

import re
from collections.abc import Callable

from verl_core.rewards.mathematics.expression import Unreadable, expression
from verl_core.rewards.mathematics.identity import identical, variables
from verl_core.rewards.mathematics.split import outside
from verl_core.rewards.mathematics.units import split_unit
from verl_core.rewards.mathematics.values import Interval, Many, Relation, Scalar, Value

Read = Callable[[str], Value]

_SIGN = re.compile(r"\\(?:le|ge|ne|approx|in)(?![a-zA-Z])|[<>]=?|!?=")
_NAME = re.compile(
    r"[a-zA-Z](?:_\{?\w{1,9}\}?)?'*"  # x, x_1, f'
    r"|\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega|rho|sigma|tau|ell)"
    r"|[a-zA-Z]'?\s?\((?:[a-zA-Z0-9, |']|\\cap|\\cup){1,12}\)"  # f(x), P(A)
    r"|\([a-z](?:\s?,\s?[a-z]){1,3}\)"  # (x, y)
    r"|[A-Z]{2,4}|[a-zA-Z][a-z]{2,}(?: [a-zA-Z]+){0,5}|\\text\s?\{[^{}]*\}|\|[a-zA-Z]{1,2}\|"
    r"|m?\s?\\(?:angle|overline|triangle|vec|hat|bar)(?![a-zA-Z])[^=<>]{0,20}"
)
_SUM_OF_NAMES = re.compile(r"[a-zA-Z](?: ?\+ ?[a-zA-Z]){1,5}")
_RISING = {"<": False, "<=": True, "\\le": True}  # sign -> whether equality is allowed
_FALLING = {">": False, ">=": True, "\\ge": True}
_LOWEST, _HIGHEST = (Scalar(end, expression(end)) for end in ("-\\infty", "\\infty"))


def relation_signs(text: str) -> list[re.Match[str]]:
    """The relation signs outside brackets, in order."""
    return list(_SIGN.finditer(outside(text)))


def related(text: str, signs: list[re.Match[str]], read: Read) -> Value:
    """The value of a text with relation signs. Raises Unreadable."""
    edges = [0, *(edge for sign in signs for edge in sign.span()), len(text)]
    sides = [text[start:end].strip() for start, end in zip(edges[::2], edges[1::2], strict=True)]
    kinds = [sign.group() for sign in signs]
    if not sides[0] and kinds in (["="], ["\\approx"]):
        return read(sides[1])
    if not all(sides):
        raise Unreadable("a relation with nothing on one side")
    if kinds == ["\\in"] and _is_name(sides[0]):
        return read(sides[1])
    if set(kinds) <= {"=", "\\approx"}:
        exact = kinds.index("\\approx") + 1 if "\\approx" in kinds else len(sides)
        return _equated(sides[: exact if exact > 1 or not _is_name(sides[0]) else 2], read)
    if kinds in (["\\ne"], ["!="]):
        return _apart(sides[0], sides[1], read)
    if all(kind in _FALLING for kind in kinds):
        sides, closed = sides[::-1], [_FALLING[kind] for kind in reversed(kinds)]
    elif all(kind in _RISING for kind in kinds):
        closed = [_RISING[kind] for kind in kinds]
    else:
        raise Unreadable("relations of several kinds")
    return _ordered(sides, closed, read)


def _equated(sides: list[str], read: Read) -> Value:
    """`x = 5` and `5 = x` name 5; of `x = 2 + 3 = 5` the last side is the answer. Raises Unreadable where two sides are
    different numbers."""
    if len(sides) == 1:
        return read(sides[0])
    if len(sides) > 2:
        numbers = [expression(side) for side in sides if _is_constant(side)]
        if any(identical(number, numbers[0]) is False for number in numbers[1:]):
            raise Unreadable("different numbers are called equal")
    if _is_name(sides[0]):
        return Relation("=", sides[0], sides[-1], read(sides[-1]))
    if _is_name(sides[-1]):
        return Relation("=", sides[-1], sides[0], read(sides[0]))
    if len(sides) > 2:
        return read(sides[-1])
    return Relation("=", sides[0], sides[1])


def _ordered(sides: list[str], closed: list[bool], read: Read) -> Value:
    """Rising sides: an interval where a lone variable is bounded by constants, else the relation."""
    if len(sides) == 3 and _is_name(sides[1]):
        return Interval(read(sides[0]), read(sides[2]), (closed[0], closed[1]))
    if len(sides) != 2:
        raise Unreadable("a chain of relations")
    left, right = sides
    if _is_name(left) and _is_constant(right):
        return Interval(_LOWEST, read(right), (False, closed[0]))
    if _is_name(right) and _is_constant(left):
        return Interval(read(left), _HIGHEST, (closed[0], False))
    return Relation("<=" if closed[0] else "<", left, right)


def _apart(left: str, right: str, read: Read) -> Value:
    """`x \\ne 3` is all before and all behind 3."""
    if not (_is_name(left) and _is_constant(right)):
        return Relation("!=", left, right)
    point, ends = read(right), (False, False)
    return Many("set", (Interval(_LOWEST, point, ends), Interval(point, _HIGHEST, ends)))


def is_asked_for(text: str) -> bool:
    """Whether the left side of an answer says what the question asks for: `m + n = 42`."""
    return _SUM_OF_NAMES.fullmatch(text) is not None


def _is_name(text: str) -> bool:
    return text not in ("e", "i") and _NAME.fullmatch(text) is not None


def _is_constant(text: str) -> bool:
    try:
        return not variables(expression(split_unit(text)[0]))
    except Unreadable:
        return False
