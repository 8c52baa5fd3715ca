"""Whose turn it is among sources with weights."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


class Turns:
    """Deals turns to sources so that after any number of them each has had its share of them, to within one turn.

    This is Tijdeman's rule (The chairman assignment problem, Discrete Mathematics 32, 1980): of the sources that are
    not ahead of their share, the one whose next turn is due first. After k turns source i has had x_i, with
    |x_i - k w_i / W| <= 1 - 1/(2n - 2) of n sources with the weights w_i, W their sum; so any window of k turns has
    them to within two. It needs nothing but the counts, and no chance: shares of a single mini-batch are right, too.
    """

    def __init__(self, weights: Sequence[float]):
        exact = [Fraction(str(weight)) for weight in weights]
        unit = lcm(*(weight.denominator for weight in exact))
        self._weights = [int(weight * unit) for weight in exact]
        self._total = sum(self._weights)

    def next(self, counts: Sequence[int]) -> int:
        """The source of the next turn, given how many each has had."""
        if len(counts) == 1:
            return 0
        turn, scale = sum(counts) + 1, 2 * len(counts) - 2
        due = [
            (Fraction(scale * (count + 1) - 1, weight), i)
            for i, (count, weight) in enumerate(zip(counts, self._weights, strict=True))
            if scale * (weight * turn - count * self._total) >= self._total
        ]
        return min(due)[1]
