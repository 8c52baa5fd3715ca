r"""Whether two equations or inequalities say the same: `2x + y = 3` and `y = 3 - 2x`, `x > y` and `y < x`."""

from collections.abc import Callable

from verl_core.rewards.mathematics.expression import Tree, Unreadable, expression, negative
from verl_core.rewards.mathematics.identity import proportional
from verl_core.rewards.mathematics.text import tight
from verl_core.rewards.mathematics.values import Relation, Value


def same_relation(gold: Relation, answer: Relation, same: Callable[[Value, Value], bool]) -> bool:
    """By value where both name the same thing, else by the difference of their sides: as functions those are multiples
    of each other, by a positive number for inequalities."""
    if gold.value is not None and answer.value is not None and _alike(gold.left, answer.left):
        return same(gold.value, answer.value)
    if gold.sign != answer.sign:
        return False
    try:
        ratio = proportional(_difference(gold), _difference(answer))
    except Unreadable:
        return False
    return ratio == 1 or (ratio == -1 and gold.sign in ("=", "!="))


def _alike(name: str, other: str) -> bool:
    """Whether two names may stand for one thing: the same symbol, or a word (`area = 5`) beside anything."""
    a_word = max(len(name), len(other)) > 2 and "(" not in name + other
    return a_word or tight(name) == tight(other)


def _difference(relation: Relation) -> Tree:
    return ("sum", [expression(relation.left), negative(expression(relation.right))])
