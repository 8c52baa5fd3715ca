"""Whether two expressions are the same function, by their values: exact fractions where they are rational, 50 digits
where they are not, at fixed points chosen from the names of the variables.

Two different rational functions agree at a random point with a chance of about degree / number of points (Schwartz
1980), so agreement at all points is taken for identity. Everything is bounded: a power whose value would need more than
MOST_BITS bits is Unreadable, so `9^{9^{9}}` costs nothing.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from typing import Any

from verl_core.rewards.mathematics.expression import Tree, Unreadable

MOST_BITS = 20_000
DIGITS = 50
LARGEST_FACTORIAL = 2_000
LARGEST_DEGREE = 100  # of a root
MOST_FACTORS = 20  # of a binomial coefficient that is a polynomial
_AGREE = 10.0 ** -(DIGITS - 12)  # relative; what is lost to cancellation
_NOTHING = 10.0 ** -(DIGITS - 5)  # what may be left of sin(pi)
_POINTS = 4  # the first half positive, the others of either sign


class Irrational(ValueError):
    """The value is no fraction that can be computed exactly."""


def identical(a: Tree, b: Tree) -> bool | None:
    """True or False where the values say it, False too where none exist; None where they agree only for positive
    variables.

    Raises Unreadable for values out of bounds.
    """
    names = sorted(variables(a) | variables(b))
    verdicts = [verdict for at in _points(names) if (verdict := _agree(a, b, at)) is not None]
    if all(verdicts):
        return bool(verdicts)
    return None if len(verdicts) == _POINTS and all(verdicts[: _POINTS // 2]) else False


def proportional(a: Tree, b: Tree) -> int | None:
    """The sign of the constant c with a = c b as functions; 0 when there is none, None when it cannot be told.

    `a = 0` and `b = 0` are the same equation when there is one. Raises Unreadable.
    """
    names = sorted(variables(a) | variables(b))
    ratios = []
    for at in _points(names):
        try:
            above, below = value(a, at), value(b, at)
            ratios.append(_mp(above) / _mp(below) if _mixed(above, below) else above / below)
        except ZeroDivisionError:
            continue
    if not ratios:
        return None
    if any(not _close(ratio, ratios[0]) for ratio in ratios):
        return 0
    return 1 if complex(ratios[0]).real > 0 else -1


def abridges(decimal: Fraction, exact: Any, step: Fraction) -> bool:
    """Whether a number with decimals down to `step` is a value (of `value`), rounded or cut."""
    beyond = (_mp(exact) - _mp(decimal)) * (1 if decimal > 0 else -1)  # more than what was cut to
    if _context().im(beyond):
        return False
    return bool(abs(beyond) <= _mp(step) / 2 or 0 <= beyond < _mp(step))


def variables(tree: Any) -> set[str]:
    """The names of its variables."""
    if isinstance(tree, tuple) and tree and tree[0] == "var":
        return {tree[1]}
    if isinstance(tree, tuple | list):
        return set().union(*(variables(part) for part in tree)) if tree else set()
    return set()


def value(tree: Tree, at: dict[str, Fraction] | None = None) -> Any:
    """The value at a point: a Fraction where it is rational by construction, else an mpmath number of DIGITS digits.

    Raises Unreadable when it is out of bounds, ZeroDivisionError where it is not defined.
    """
    at = at or {}
    try:
        return _exact(tree, at)
    except Irrational:
        pass
    try:
        return _numeric(tree, at)
    except Unreadable:
        raise
    except (ValueError, OverflowError) as e:  # mpmath's, at the edges of its functions
        raise Unreadable("no value") from e


def _agree(a: Tree, b: Tree, at: dict[str, Fraction]) -> bool | None:
    try:
        return _close(value(a, at), value(b, at))
    except ZeroDivisionError:
        return None


def _mixed(a: Any, b: Any) -> bool:
    return isinstance(a, Fraction) != isinstance(b, Fraction)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    a, b = _mp(a), _mp(b)
    if _context().isinf(a) or _context().isinf(b):
        return bool(a == b)
    return bool(abs(a - b) <= max(_AGREE * max(abs(a), abs(b)), _NOTHING))


def _points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    for k in range(_POINTS if names else 1):
        point = {}
        for i, name in enumerate(names):
            draw = int.from_bytes(blake2b(f"{k} {name}".encode(), digest_size=8).digest())
            sign = 1 if k < _POINTS // 2 or (i + k + draw) % 2 else -1
            point[name] = Fraction(sign * (draw % 9_001 + 1_009), draw // 9_001 % 7_001 + 2_003)
        if k == _POINTS - 1:
            point = {name: -abs(where) for name, where in point.items()}
        yield point


def _exact(tree: Tree, at: dict[str, Fraction]) -> Fraction:
    kind = tree[0]
    if kind == "num":
        return tree[1]
    if kind == "var":
        return at[tree[1]]
    if kind == "sum":
        return _bounded(sum((_exact(term, at) for term in tree[1]), Fraction(0)))
    if kind == "product":
        result = Fraction(1)
        for factor in tree[1]:
            result = _bounded(result * _exact(factor, at))
        return result
    if kind == "power":
        base, exponent = _exact(tree[1], at), _exact(tree[2], at)
        if exponent.denominator != 1:
            raise Irrational
        if base not in (0, 1, -1) and _bits(base) * abs(exponent) > MOST_BITS:
            raise Unreadable("a power that is too large")
        return base ** int(exponent)
    if kind == "call":
        return _exact_call(tree[1], [_exact(part, at) for part in tree[2:]])
    raise Irrational


def _exact_call(name: str, of: list[Fraction]) -> Fraction:
    if name == "abs":
        return abs(of[0])
    if name in ("floor", "ceil"):
        return Fraction(math.floor(of[0]) if name == "floor" else math.ceil(of[0]))
    if name in ("factorial", "binomial") and all(n.denominator == 1 and 0 <= n <= LARGEST_FACTORIAL for n in of):
        return Fraction(math.factorial(int(of[0])) if name == "factorial" else math.comb(int(of[0]), int(of[1])))
    if name == "binomial" and of[1].denominator == 1 and 0 <= of[1] <= MOST_FACTORS:
        # of a variable: a polynomial
        return math.prod(((of[0] - k) / (k + 1) for k in range(int(of[1]))), start=Fraction(1))
    if name in ("factorial", "binomial") and all(n.denominator == 1 for n in of):
        raise Unreadable("a factorial that is too large, or of a negative number")
    raise Irrational


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _bounded(number: Fraction) -> Fraction:
    if _bits(number) > 2 * MOST_BITS:
        raise Unreadable("a number that is too large")
    return number


@cache
def _context() -> Any:
    import mpmath  # here, not above: most answers never need it

    context = mpmath.MPContext()
    context.dps = DIGITS
    return context


def _mp(number: Any) -> Any:
    """A Fraction as an mpmath number."""
    return _context().mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else number


def _numeric(tree: Tree, at: dict[str, Fraction]) -> Any:
    mp, kind = _context(), tree[0]
    if kind in ("num", "var"):
        return _mp(tree[1] if kind == "num" else at[tree[1]])
    if kind == "const":
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.j, "inf": mp.inf}[tree[1]]
    if kind == "sum":
        return mp.fsum(_numeric(term, at) for term in tree[1])
    if kind == "product":
        return mp.fprod(_numeric(factor, at) for factor in tree[1])
    if kind == "power":
        base = _numeric(tree[1], at)
        odd = _odd_root(tree[2], at) if mp.im(base) == 0 and mp.re(base) < 0 else None
        if odd is not None:
            return _power(_root(base, odd.denominator), mp.mpf(odd.numerator))
        return _power(base, _numeric(tree[2], at))
    if kind == "root":
        return _root(_numeric(tree[1], at), _numeric(tree[2], at))
    return _numeric_call(tree[1], [_numeric(part, at) for part in tree[2:]])


def _odd_root(exponent: Tree, at: dict[str, Fraction]) -> Fraction | None:
    """The exponent where it takes a root of odd degree, which negative numbers have: (-8)^{1/3} = -2."""
    try:
        fraction = _exact(exponent, at)
    except Irrational:
        return None
    return fraction if 1 < fraction.denominator <= LARGEST_DEGREE and fraction.denominator % 2 else None


def _power(base: Any, exponent: Any) -> Any:
    mp = _context()
    if base == 0:
        return mp.mpf(0) ** exponent
    if mp.isinf(base) or mp.isinf(exponent) or abs(exponent * mp.log(base)) > MOST_BITS:
        raise Unreadable("a power that is too large")
    return base**exponent


def _root(radicand: Any, degree: Any) -> Any:
    mp = _context()
    if not mp.isint(degree) or not 2 <= degree <= LARGEST_DEGREE:
        raise Unreadable("a root of an unusual degree")
    if degree % 2 and mp.im(radicand) == 0 and mp.re(radicand) < 0:
        return -mp.root(-mp.re(radicand), int(degree))  # the real root, as in \\sqrt[3]{-8}
    return mp.root(radicand, int(degree))


def _numeric_call(name: str, of: list[Any]) -> Any:
    mp = _context()
    if any(mp.isinf(x) or abs(x) > 10**9 for x in of):
        raise Unreadable("a function of a number that is too large")
    if name == "exp" and abs(of[0]) > MOST_BITS:
        raise Unreadable("a power that is too large")
    if name in ("ln", "log", "lg") and of[0] == 0:
        raise ZeroDivisionError
    if name in ("factorial", "binomial"):
        raise Unreadable("a factorial of what is no number")
    if name == "log":
        return mp.log(of[0], of[1])
    names = {"abs": "fabs", "ceil": "ceil", "lg": "log10", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}
    return getattr(mp, names.get(name, name))(*of)
