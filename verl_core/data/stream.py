"""One source's prompts, epoch after epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from verl_core.data.curriculum import Curriculum
from verl_core.data.sources import Part


class Stream:
    """The prompts of a part for ever, by epochs of its own: in the curriculum's order, else in `plain`'s. `epoch` and
    `position` are those of the next prompt, `drawn` counts all that were handed out."""

    def __init__(self, part: Part, seed: int, shuffle: bool):
        self.part, self._seed, self._shuffle = part, seed, shuffle
        self.curriculum: Curriculum | None = None
        self.epoch = self.position = self.drawn = 0
        self._order: Sequence[int] | None = None

    def plain(self, epoch: int) -> list[int]:
        """The files' order, or with `shuffle` a permutation keyed by (seed, source, epoch)."""
        order = list(range(len(self.part.positions)))
        if self._shuffle:
            whose = f"{self._seed}/{self.part.name}" if self.part.name else self._seed
            random.Random(f"rlx/data-order/{whose}/{epoch}").shuffle(order)
        return order

    @property
    def order(self) -> Sequence[int]:
        """This epoch's, settled when it is first asked for."""
        if self._order is None:
            self._order = self.curriculum.order(self.epoch) if self.curriculum else self.plain(self.epoch)
        return self._order

    def draw(self) -> tuple[int, int]:
        """(position in the data set, epoch) of the next prompt."""
        place = self.part.positions[self.order[self.position]], self.epoch
        self.position, self.drawn = self.position + 1, self.drawn + 1
        self.end_epoch(1)
        return place

    def end_epoch(self, needed: int) -> None:
        """Goes to the next epoch when this one has fewer than `needed` prompts left."""
        if self.position and len(self.order) - self.position < needed:
            self.epoch, self.position, self._order = self.epoch + 1, 0, None

    def state(self) -> dict[str, Any]:
        """JSON. A curriculum's order may follow from what it had heard when the epoch began, so it is kept."""
        place = {"epoch": self.epoch, "position": self.position, "drawn": self.drawn}
        if self.curriculum is None:
            return place
        order = None if self._order is None else list(self._order)
        return {**place, "order": order, "curriculum": self.curriculum.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.epoch, self.position, self.drawn = state["epoch"], state["position"], state["drawn"]
        self._order = state.get("order")
        if self.curriculum is not None:
            self.curriculum.load_state(state["curriculum"])
