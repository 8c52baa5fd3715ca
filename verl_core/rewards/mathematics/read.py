r"""Reads a text that `text.unified` made as one of `values`, from its outermost brackets, commas and signs inwards."""

import re
from functools import partial
from typing import Literal

from verl_core.rewards.mathematics.expression import LONGEST, Tree, Unreadable, expression
from verl_core.rewards.mathematics.identity import variables
from verl_core.rewards.mathematics.relations import related, relation_signs
from verl_core.rewards.mathematics.split import enclosed, split
from verl_core.rewards.mathematics.text import tight
from verl_core.rewards.mathematics.units import split_unit
from verl_core.rewards.mathematics.values import Clock, Interval, Many, Matrix, Scalar, Text, Value

DEEPEST = 8  # brackets within brackets

_RATIO_WORD = re.compile(r"(?<=\d)\s?\\text\s?\{\s?to\s?\}\s?(?=\d)|(?<=\d) to (?=\d)")
_LARGE = re.compile(r"(?<=\d)\s?(?:\\text\s?\{\s?)?(?P<word>hundred|thousand|million|billion)(?:\s?\})?(?![a-z])")
_ORDINAL = re.compile(r"(?<=\d)\s?(?:\^\s?\{?\s?)?(?:\\text\s?\{\s?)?(?:st|nd|rd|th)(?:\s?\}){0,2}$")
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9}
_BUILT = re.compile(r"[a-z](?:\s?\\in[^|:]{1,20})?\s?[|:]")  # \{x : ...\}
_AND = re.compile(r",?\s?\\text\s?\{\s?,?\s?(?:and|or)\s?\}\s?|,?\s(?:and|or)\s")
_COMMA = re.compile(r"[,;]")
_UNION = re.compile(r"\\cup(?![a-zA-Z])")
_COLON = re.compile(r":")
_CLOCK = re.compile(  # what only a time is written like: with a zero before or behind, or with its half of the day
    r"(?P<hour>\d{1,2})(?P<rest>(?:\:\d\d)*)(?P<half>\s?(?:\\text\s?\{\s?)?[aApP]\.?\s?[mM]\.?(?:\s?\})?)?"
)
_ROW = re.compile(r"\\\\")
_CELL = re.compile(r"&")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\{(?:[pbB]?matrix|array)\}(?:\{[lcr|]*\})?(?P<body>.*)\\end\{\w*\}", re.DOTALL)
_PERCENT = re.compile(r"\s?(?:%|\\text\s?\{\s?(?:percent|per cent|%)\s?\}|percent|per cent)$")
_BASED = re.compile(r"(?P<digits>[0-9A-F]+)_\{?(?:\\text\s?\{\s?)?(?P<base>\d{1,2}|[a-z]+)(?:\s?\})?\}?")
_UPRIGHT = re.compile(r"\\text\s?\{([^{}]*)\}")
_WORDS = re.compile(r"\(?[a-zA-Z][a-z']{2,}(?:[ -][a-zA-Z']+){0,12}\)?|\(?[A-Z]\)|[A-Z][.:]")
_NO_WORDS = frozenset(("pi", "sin", "cos", "tan", "log", "exp", "sqrt", "inf", "infinity", "infty"))
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {word: i for i, word in enumerate(_NUMBERS)}
_REALS = re.compile(r"\\mathbb\s?\{?R\}?|(?:the set of )?all real (?:numbers|values)(?: of x)?")
_EMPTY = re.compile(r"(?:the )?empty set|no (?:real |such )?(?:solutions?|numbers?)|\\emptyset|\\\{ ?\\\}")


def read(text: str, thousands: bool = True, depth: int = 0) -> Value:
    """The value of a unified text; a Scalar without a tree where nothing fits. `thousands`: 1,234 is one number."""
    text = text.strip()
    if len(text) > LONGEST or depth > DEEPEST:
        return Scalar(text, None)
    try:
        return _read(text, thousands, depth)
    except Unreadable:
        return Scalar(text, None)


def _read(text: str, thousands: bool, depth: int) -> Value:
    inner = partial(read, thousands=thousands, depth=depth + 1)
    text = _RATIO_WORD.sub(":", _AND.sub(", ", text))
    if (upright := _UPRIGHT.fullmatch(text)) and re.search(r"[\d,]", upright[1]):
        return inner(upright[1].strip())  # \text{A, B}, \text{6 ways}
    listed = [piece for piece in split(text, _COMMA, thousands) if piece]
    if len(listed) > 1:
        return Many("list", tuple(map(inner, listed)))
    if signs := relation_signs(text):
        return related(text, signs, inner)
    united = split(text, _UNION)
    if len(united) > 1:
        return _many("set", tuple(map(inner, united)))
    if _EMPTY.fullmatch(_plain(text).lower()):
        return Many("set", ())
    if _REALS.fullmatch(_plain(text)):
        return inner("(-\\infty,\\infty)")
    if brackets := enclosed(text):
        return _bracketed(*brackets, thousands=thousands, depth=depth)
    if matrix := _MATRIX.fullmatch(text):
        rows = [row for row in split(matrix["body"], _ROW) if row]
        return Matrix(tuple(tuple(map(inner, split(row, _CELL))) for row in rows))
    if _PLUS_MINUS.search(text):
        return Many("list", tuple(inner(_with_sign(text, sign)) for sign in "+-"))
    if clock := _clock(text):
        return clock
    ratio = split(text, _COLON)
    if len(ratio) > 1 and all(ratio):
        return Many("ratio", tuple(map(inner, ratio)))
    return Text(_plain(text)) if _is_words(text) else _scalar(text)


def _clock(text: str) -> Clock | None:
    """A time of day or a duration; `5:30` may as well be a ratio, and is left as one."""
    found = _CLOCK.fullmatch(text)
    if found is None or not (found["half"] or ":0" in found["rest"]):
        return None
    half = re.search("[ap]", found["half"].replace("\\text", "").lower()) if found["half"] else None
    parts = (found["hour"], *found["rest"].split(":")[1:])
    return Clock(tuple(map(int, parts if len(parts) > 1 else (*parts, "0"))), half and half.group())


def _with_sign(text: str, sign: str) -> str:
    """One of the two readings of \\pm; all signs of a text change together."""
    other = "-" if sign == "+" else "+"
    return _PLUS_MINUS.sub(lambda found: sign if found[1] == "pm" else other, text).removeprefix("+")


def _bracketed(opening: str, inside: str, closing: str, thousands: bool, depth: int) -> Value:
    inner = partial(read, thousands=thousands, depth=depth + 1)
    if opening == "\\{" and (built := _BUILT.match(inside)):
        return inner(inside[built.end() :])
    items = tuple(map(inner, filter(None, split(inside, _COMMA, thousands)))) if opening != "{" else ()
    if opening == "\\{":
        return _many("set", items)
    if len(items) == 2 and (opening == "[" or closing == "]"):
        return Interval(*items, (opening == "[", closing == "]"))
    if len(items) >= 2:
        return Many("tuple", items)
    if opening == "(" and re.fullmatch("[a-zA-Z]", inside):
        return Text(inside)  # the letter of a choice
    return inner(inside)


def _many(kind: Literal["list", "set"], items: tuple[Value, ...]) -> Many:
    """A list within, such as `\\pm 2`, adds its items."""
    nested = (item.items if isinstance(item, Many) and item.kind == "list" else (item,) for item in items)
    return Many(kind, tuple(part for parts in nested for part in parts))


def _scalar(text: str) -> Scalar:
    if (based := _BASED.fullmatch(tight(text))) and (base := _base(based["base"])):
        return Scalar(text, _tree(based["digits"]), base=base)
    if _plain(text).lower() in _BASES:
        return Scalar(text, _tree(str(_BASES[_plain(text).lower()])))
    if percent := _PERCENT.search(text):
        return Scalar(text, _tree(text[: percent.start()]), percent=True)
    text = _ORDINAL.sub("", text)
    body, unit = split_unit(_LARGE.sub(lambda found: rf"\cdot 10^{_ZEROS[found['word']]}", text))
    tree = _tree(body)
    if unit and "\\" not in text.removeprefix(body) and (tree is None or variables(tree)):
        return Scalar(text, _tree(text))  # the h of \pi r^2 h is no hour
    return Scalar(text, tree, unit)


def _base(text: str) -> int | None:
    return int(text) if text.isdigit() else _BASES.get(text)


def _tree(text: str) -> Tree | None:
    try:
        return expression(text)
    except Unreadable:
        return None


def _plain(text: str) -> str:
    """Words without the command that sets them upright."""
    return " ".join(_UPRIGHT.sub(r" \1 ", text).split()) if "\\text" in text else text


def _is_words(text: str) -> bool:
    plain = _plain(text)
    if plain.lower() in _NO_WORDS or plain.lower() in _BASES:
        return False
    return _WORDS.fullmatch(plain) is not None or (plain != text and not _UPRIGHT.sub("", text).strip(" ()"))
