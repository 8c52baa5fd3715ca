r"""What a mathematical answer can be. `read` makes these from text, `equality` compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_core.rewards.mathematics.expression import Tree
from verl_core.rewards.mathematics.units import Unit


@dataclass(frozen=True)
class Scalar:
    """One expression. `text` is how it was written; `tree` what is left without unit, percent sign and base, or None
    where that cannot be read."""

    text: str
    tree: Tree | None
    unit: Unit | None = None
    percent: bool = False
    base: int | None = None


@dataclass(frozen=True)
class Text:
    """Words, or the letter of a choice."""

    text: str


@dataclass(frozen=True)
class Many:
    """kind "list": values without brackets, in any order; "set"; "tuple": in this order; "ratio": `3:2`."""

    kind: Literal["list", "set", "tuple", "ratio"]
    items: tuple[Value, ...]


@dataclass(frozen=True)
class Interval:
    """`closed`: whether the low and the high end belong to it."""

    low: Value
    high: Value
    closed: tuple[bool, bool]


@dataclass(frozen=True)
class Matrix:
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Clock:
    """A time such as 5:00 or 1:05:30. `half`: "a" before noon, "p" after it, None where that is not said."""

    parts: tuple[int, ...]
    half: str | None = None


@dataclass(frozen=True)
class Relation:
    """`left sign right`. With `value` the left side is only a name for it: `x = 5`, `f(x) = 2x`."""

    sign: Literal["=", "<", "<=", "!="]
    left: str
    right: str
    value: Value | None = None


Value = Scalar | Text | Many | Interval | Matrix | Clock | Relation
