"""Reading a judge's reply. Strict: its last line is the verdict in the asked form, or there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?")  # no other digits, signs or exponents


class NoVerdict(ValueError):
    """The reply holds no verdict that counts; the text says why, without a word of the reply."""


@dataclass(frozen=True)
class Numbers:
    """A number from `lowest` to `highest`, which become the rewards 0 and 1."""

    lowest: float
    highest: float

    @property
    def form(self) -> str:
        return f"a number from {self.lowest:g} to {self.highest:g} in digits"

    def reward(self, word: str) -> float:
        """Raises NoVerdict for what is no number, and for one outside the scale."""
        if not _NUMBER.fullmatch(word):
            raise NoVerdict("the judge's verdict is not a number")
        if not self.lowest <= (number := float(word)) <= self.highest:
            raise NoVerdict("the judge's number is outside the scale")
        return (number - self.lowest) / (self.highest - self.lowest)


@dataclass(frozen=True)
class Labels:
    """One of the words, each with its reward."""

    rewards: Mapping[str, float]

    @property
    def form(self) -> str:
        return f"one of the words {', '.join(self.rewards)}"

    def reward(self, word: str) -> float:
        """Raises NoVerdict for another word."""
        if word not in self.rewards:
            raise NoVerdict("the judge's verdict is none of the labels")
        return self.rewards[word]


def read(reply: str, nonce: str, choices: Numbers | Labels) -> tuple[float, str]:
    """The reward in a whole reply, and the word that gave it.

    The line must begin with the nonce, which nothing that was judged can know. Raises NoVerdict.
    """
    last = reply.rstrip().rpartition("\n")[2]
    head, _, word = last.partition(": ")
    if head != nonce:
        raise NoVerdict("the judge's last line is no verdict")
    return choices.reward(word), word
