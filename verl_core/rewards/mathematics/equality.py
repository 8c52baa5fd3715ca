r"""Whether an answer says the same as the gold answer: by form first (a tuple has an order, a set has none, the ends of
an interval belong to it or not), then value by value."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

from verl_core.rewards.mathematics.equations import same_relation
from verl_core.rewards.mathematics.expression import LONGEST
from verl_core.rewards.mathematics.read import read
from verl_core.rewards.mathematics.relations import is_asked_for
from verl_core.rewards.mathematics.scalars import same_ratio, same_scalar
from verl_core.rewards.mathematics.text import tight, unified
from verl_core.rewards.mathematics.values import Clock, Interval, Many, Matrix, Relation, Scalar, Text, Value

LONGEST_CHOICE = 12  # characters, `\\text{(B)}`
MOST_ITEMS = 60  # of a set, as each is compared with each

_THOUSANDS = re.compile(r"\d,\d{3}")
_LETTER = re.compile(r"\s?(?:\\text\s?\{\s?)?\(?(?P<letter>[A-Z])(?:\)|[.:](?=\s))\s?\}?.*", re.DOTALL)
_OPTION = re.compile(r"(?:[Oo]ption|[Cc]hoice)\s?\(?([A-Z])(?![a-zA-Z])\)?")
_LABEL = re.compile(r"^(?:\\text\s?\{\s?\([A-Z]\)\s?\}|\([A-Z]\) )\s?(?=[^(]*[\d\\])")  # of an option: (B) 12
_LONE_LETTER = re.compile(r"(?<![a-zA-Z])[A-HJ](?![a-zA-Z])")
_NOT_WORD = re.compile(r"\\text(?![a-zA-Z])|[{}().,;:!?\"'_]")
_ONLY_WORDS = re.compile(r"[\w\s-]*")
_SYNONYMS = {"dne": "undefined", "does not exist": "undefined", "not defined": "undefined"}


def same_answer(gold: str, answer: str) -> bool:
    """Whether `answer` is right where `gold` is. Bounded in time, but for what goes to math-verify."""
    compare = _same_answer if len(gold) + len(answer) <= 2 * LONGEST else _same_answer.__wrapped__
    return compare(gold, answer)


@lru_cache(maxsize=8192)  # the samples of a prompt often end in the same answer
def _same_answer(gold: str, answer: str) -> bool:
    gold, answer = unified(gold), unified(answer)
    if tight(gold) == tight(answer):
        return bool(gold)
    if not answer:
        return False
    if _chosen(gold, answer):
        return True
    if len(answer) > LONGEST:
        return False
    answer = _LABEL.sub("", answer)
    return any(same(g, a) for g, a in product(_readings(gold), _readings(answer)))


def _chosen(gold: str, answer: str) -> bool:
    """Gold `B` and an answer such as `(B)`, `\\text{(B) } 12` or `B. twelve`."""
    wanted = _LETTER.fullmatch(gold + ")" if len(gold) == 1 else gold)
    given = _LETTER.fullmatch(_OPTION.sub(r"(\1)", answer))
    if wanted is None or given is None or len(gold) > LONGEST_CHOICE:
        return False
    return {given["letter"], *_LONE_LETTER.findall(answer)} == {wanted["letter"]}


@lru_cache(maxsize=4096)
def _readings(text: str) -> tuple[Value, ...]:
    """The value of a text, or two where `1,234` may be one number or two."""
    return (read(text), read(text, thousands=False)) if _THOUSANDS.search(text) else (read(text),)


def same(gold: Value, answer: Value) -> bool:
    """Whether two values are the same one. Not symmetric: an answer may leave out what the question says anyway, such
    as a unit, or `x =`."""
    match gold, answer:
        case Relation(), Relation():
            return same_relation(gold, answer, same)
        case Relation(value=value), _ if value is not None:
            return same(value, answer)
        case _, Relation(value=value) if value is not None:
            return same(gold, value)
        case Scalar(), Relation(sign="="):  # 2 + 3 = 5
            return same(gold, read(answer.right)) and (is_asked_for(answer.left) or same(gold, read(answer.left)))
        case Scalar(), Scalar():
            return same_scalar(gold, answer)
        case Text(), Text() | Scalar():
            return _same_words(gold.text, answer.text)
        case Scalar(), Text():
            return len(gold.text) > 1 and _same_words(gold.text, answer.text)
        case Interval(), Interval():
            return gold.closed == answer.closed and same(gold.low, answer.low) and same(gold.high, answer.high)
        case Interval(closed=(False, False)), Many(kind="tuple"):
            return _in_order((gold.low, gold.high), answer.items)
        case Many(kind="tuple"), Interval(closed=(False, False)):
            return _in_order(gold.items, (answer.low, answer.high))
        case Matrix(), Matrix():
            return len(gold.rows) == len(answer.rows) and all(map(_in_order, gold.rows, answer.rows))
        case Matrix(), Many(kind="tuple"):  # the components of a vector
            return len(gold.rows[0]) == 1 and _in_order([row[0] for row in gold.rows], answer.items)
        case Clock(), Clock() | Many(kind="ratio"):
            return _same_time(gold, answer)
        case Many(kind="ratio"), Clock():
            return _same_time(answer, gold)
        case Many(), Many():
            return _same_many(gold, answer)
        case Many(kind="ratio", items=(_, _)), Scalar():
            return same_ratio(gold.items, answer)
        case Scalar(), Many(kind="ratio", items=(_, _)):
            return same_ratio(answer.items, gold)
        case Many(kind="set", items=(only,)), _:
            return same(only, answer)
        case _, Many(kind="set", items=(only,)):
            return same(gold, only)
    return False


def _same_many(gold: Many, answer: Many) -> bool:
    kinds = {gold.kind, answer.kind}
    if kinds == {"ratio"}:
        return same_ratio(gold.items, answer.items)
    if "ratio" in kinds or kinds == {"set", "tuple"}:
        return False
    if "tuple" in kinds:
        return _in_order(_by_name(gold), _by_name(answer))
    if "set" in kinds:
        return _matched(_distinct(gold.items), _distinct(answer.items))
    return _matched(gold.items, answer.items)


def _same_time(clock: Clock, other: Clock | Many) -> bool:
    """5:30 may be a time beside one; before or after noon may be left out."""
    if isinstance(other, Clock):
        return clock.parts == other.parts and (clock.half == other.half or None in (clock.half, other.half))
    read = (item.tree for item in other.items if isinstance(item, Scalar))
    return list(clock.parts) == [tree[1] if tree and tree[0] == "num" else None for tree in read]


def _by_name(many: Many) -> Sequence[Value]:
    """The items; those of `y = 2, x = 1` in the order of their names, as a point's coordinates are."""
    named = [item for item in many.items if isinstance(item, Relation) and item.value is not None]
    if len(named) < len(many.items):
        return many.items
    return [item.value for item in sorted(named, key=lambda item: item.left) if item.value is not None]


def _in_order(gold: Sequence[Value], answer: Sequence[Value]) -> bool:
    return len(gold) == len(answer) and all(map(same, gold, answer))


def _distinct(items: Sequence[Value]) -> list[Value]:
    distinct: list[Value] = []
    for item in items[:MOST_ITEMS]:
        if not any(same(other, item) for other in distinct):
            distinct.append(item)
    return distinct


def _matched(gold: Sequence[Value], answer: Sequence[Value]) -> bool:
    """Whether every gold value has an answer of its own, in any order, and none is left."""
    if len(gold) != len(answer) or len(gold) > MOST_ITEMS:
        return False
    left = list(answer)
    for wanted in gold:
        found = next((i for i, given in enumerate(left) if same(wanted, given)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_words(gold: str, answer: str) -> bool:
    """Whether two texts say the same in words; what holds more than words says nothing here."""
    wanted, given = _words(gold), _words(answer)
    return bool(wanted) and wanted == given


def _words(text: str) -> str:
    """Words to compare: no case, no punctuation, no command that sets them upright. Empty where there is more."""
    bare = _NOT_WORD.sub(" ", text).casefold().split()
    words = " ".join(bare).removeprefix("an ").removeprefix("the ")
    return _SYNONYMS.get(words, words) if _ONLY_WORDS.fullmatch(words) else ""
