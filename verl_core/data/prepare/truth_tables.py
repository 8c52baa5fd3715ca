"""Claims about who is a knight, as trees; their truth in all 2^n islands of n people at once, and in English.

A truth table is an int of 2^n bits: bit i speaks of island i, in which person p is a knight when bit p of i is set.
"""

from collections.abc import Sequence
from functools import cache
from random import Random

Claim = tuple
"""("knight", p), ("knave", p), ("not", claim), ("and", claim, claim), ("or", claim, claim) or ("if", claim, claim)."""

_NEGATED = 0.15  # share of the compound claims that deny another


def draw_claim(random: Random, n: int, depth: int) -> Claim:
    """A claim about n people: of depth 1 about one person, of depth d made of one or two claims less deep."""
    if depth == 1:
        return random.choice(("knight", "knave")), random.randrange(n)
    if random.random() < _NEGATED:
        return "not", draw_claim(random, n, depth - 1)
    left = draw_claim(random, n, random.randint(1, depth - 1))
    right = draw_claim(random, n, random.randint(1, depth - 1))
    while right == left or _same_person(left, right):
        right = draw_claim(random, n, random.randint(1, depth - 1))
    return random.choice(("and", "or", "if")), left, right


def solutions(claims: Sequence[Claim]) -> list[tuple[bool, ...]]:
    """Every island in which person p is a knight exactly when claim p is true."""
    n = len(claims)
    every = (1 << (1 << n)) - 1
    fitting = every
    for person, claim in enumerate(claims):
        fitting &= every ^ _knight(person, n) ^ _table(claim, n)
    return [
        tuple(bool(island >> person & 1) for person in range(n)) for island in range(1 << n) if fitting >> island & 1
    ]


def spoken(claim: Claim, names: Sequence[str]) -> str:
    """The claim in words. Each connective begins with a word of its own, so that nesting has one reading."""
    kind, *parts = claim
    if kind in ("knight", "knave"):
        return f"{names[parts[0]]} is a {kind}"
    said = [spoken(part, names) for part in parts]
    pattern = {
        "not": "it is not true that {}",
        "and": "both {} and {}",
        "or": "at least one of these is true: {}, or {}",
        "if": "if {}, then {}",
    }
    return pattern[kind].format(*said)


@cache
def _knight(person: int, n: int) -> int:
    return sum(1 << island for island in range(1 << n) if island >> person & 1)


def _same_person(one: Claim, other: Claim) -> bool:
    """Whether both are about one person alone: joined, they would always hold, or never, or say but one of the two."""
    atoms = all(claim[0] in ("knight", "knave") for claim in (one, other))
    return atoms and one[1] == other[1]


def _table(claim: Claim, n: int) -> int:
    every = (1 << (1 << n)) - 1
    kind, *parts = claim
    if kind in ("knight", "knave"):
        knight = _knight(parts[0], n)
        return knight if kind == "knight" else every ^ knight
    tables = [_table(part, n) for part in parts]
    if kind == "not":
        return every ^ tables[0]
    left, right = tables
    return {"and": left & right, "or": left | right, "if": (every ^ left) | right}[kind]
