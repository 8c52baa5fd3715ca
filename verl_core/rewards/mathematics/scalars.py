r"""Whether two single values are the same: numbers by exact value, expressions as functions, units and percent signs by
what they say."""

from collections.abc import Sequence
from fractions import Fraction

from verl_core.rewards.mathematics.expression import DEGREE_IN_RADIANS, Tree, Unreadable
from verl_core.rewards.mathematics.identity import abridges, identical, value
from verl_core.rewards.mathematics.symbolic import same_symbolically
from verl_core.rewards.mathematics.text import tight
from verl_core.rewards.mathematics.units import DEGREE, Unit
from verl_core.rewards.mathematics.values import Scalar, Value

ENOUGH_DIGITS = 6  # significant ones, for a decimal to stand for 1/3 or pi


def same_scalar(gold: Scalar, answer: Scalar) -> bool:
    """Whether the answer is the gold value. A unit or percent sign may be left out on either side; where both have a
    unit, 100 cm are 1 m and 5 cm are not 5 m; 50% is 50 (percent) and 0.5."""
    if tight(gold.text) == tight(answer.text):
        return True
    if gold.tree is None or answer.tree is None:
        return same_symbolically(gold.text, answer.text)
    if gold.base and answer.base and gold.base != answer.base:
        return False
    if gold.percent != answer.percent:
        return _same_percentage(gold, answer)
    if gold.unit and answer.unit and gold.unit != answer.unit:
        if gold.unit.dimension != answer.unit.dimension:
            return False
        return _same(_scaled(gold.tree, gold.unit), _scaled(answer.tree, answer.unit))
    if gold.unit != answer.unit and DEGREE in (gold.unit, answer.unit) and _same(_radians(gold), _radians(answer)):
        return True
    return _same(gold.tree, answer.tree, (gold.text, answer.text))


def same_ratio(gold: Sequence[Value], answer: Sequence[Value] | Scalar) -> bool:
    """`3:2` is `6:4` and 3/2. Zeros have to stand at the same places."""
    one: Tree = ("num", Fraction(1), 0)
    ours = _terms(gold)
    theirs = [answer.tree, one] if isinstance(answer, Scalar) else _terms(answer)
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a is not None and b is not None]
    if not len(gold) == len(theirs) == len(pairs):
        return False
    zeros = [(_is_zero(a), _is_zero(b)) for a, b in pairs]
    if any(a != b for a, b in zeros) or all(a for a, _ in zeros):
        return False
    first_a, first_b = next(pair for pair, (zero, _) in zip(pairs, zeros, strict=True) if not zero)
    return all(_same(("product", [a, first_b]), ("product", [first_a, b])) for a, b in pairs)


def _terms(ratio: Sequence[Value]) -> list[Tree | None]:
    """Of a ratio of lengths, say, all in one unit."""
    scalars = [item for item in ratio if isinstance(item, Scalar)]
    dimensions = {item.unit.dimension if item.unit else None for item in scalars}
    scaled = len(dimensions) == 1 and None not in dimensions
    return [_scaled(item.tree, item.unit) if scaled and item.tree and item.unit else item.tree for item in scalars]


def _is_zero(tree: Tree) -> bool:
    return _same(tree, ("num", Fraction(0), 0))


def _same_percentage(gold: Scalar, answer: Scalar) -> bool:
    assert gold.tree is not None and answer.tree is not None
    if gold.percent:
        return _same(gold.tree, answer.tree) or _same(_hundredth(gold.tree), answer.tree)
    if _same(gold.tree, _hundredth(answer.tree)):
        return True
    return _exceeds_one(answer.tree) and _same(gold.tree, answer.tree)  # "what percent": the gold 35 for 35%


def _same(gold: Tree, answer: Tree, texts: tuple[str, str] | None = None) -> bool:
    try:
        if _is_rounding(answer, gold) or _is_rounding(gold, answer):
            return True
        verdict = identical(gold, answer)
    except Unreadable:
        return False
    if verdict is None and texts is not None:
        return same_symbolically(*texts)
    return verdict is True


def _is_rounding(decimal: Tree, exact: Tree) -> bool:
    """Whether `decimal` is a decimal literal with ENOUGH_DIGITS, and what `exact`, which has no finite decimals, rounds
    or is cut to."""
    sign, literal = _literal(decimal)
    if literal is None or _literal(exact)[1] is not None:
        return False
    step = Fraction(1, 10 ** literal[2])
    if literal[1] / step < 10 ** (ENOUGH_DIGITS - 1):
        return False
    number: Fraction = sign * literal[1]
    try:
        wanted = value(exact)
    except (KeyError, ZeroDivisionError):  # it has variables, or is nowhere defined
        return False
    endless = _is_endless(wanted) if isinstance(wanted, Fraction) else True
    return endless and abridges(number, wanted, step)


def _literal(tree: Tree) -> tuple[int, Tree | None]:
    """(sign, the number) of a decimal literal that may have a minus before it."""
    if tree[0] == "product" and len(tree[1]) == 2 and tree[1][0] == ("num", Fraction(-1), 0):
        sign, tree = -1, tree[1][1]
    else:
        sign = 1
    return (sign, tree) if tree[0] == "num" and tree[2] else (sign, None)


def _is_endless(number: Fraction) -> bool:
    rest = number.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest > 1


def _exceeds_one(tree: Tree) -> bool:
    try:
        number = value(tree)
    except (KeyError, ZeroDivisionError, Unreadable):
        return False
    return isinstance(number, Fraction) and abs(number) > 1


def _hundredth(tree: Tree) -> Tree:
    return ("product", [tree, ("num", Fraction(1, 100), 0)])


def _radians(angle: Scalar) -> Tree:
    assert angle.tree is not None
    return ("product", [angle.tree, DEGREE_IN_RADIANS]) if angle.unit == DEGREE else angle.tree


def _scaled(tree: Tree, unit: Unit) -> Tree:
    return ("product", [tree, ("num", unit.scale, 0)])
