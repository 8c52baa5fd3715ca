"""The buffer between generation and training. Groups leave it in the order in which their prompts were dispatched,
never in the order in which they happened to finish: that is what makes a run repeatable."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from verl_core.batch import Trajectory
from verl_core.data.dataset import PromptRow


@dataclass
class Slot:
    """One dispatched prompt: pending while `group` is empty and `error` is None."""

    row: PromptRow
    step: int  # the step it was dispatched in
    group: list[Trajectory] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def finished(self) -> bool:
        return bool(self.group)


class ReplayBuffer:
    """Slots by prompt uid, oldest dispatch first."""

    def __init__(self) -> None:
        self._slots: OrderedDict[str, Slot] = OrderedDict()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._slots)

    def open(self, row: PromptRow, step: int) -> Slot:
        """Reserves the prompt's place in the order. Raises ValueError for a uid that is already waiting."""
        if row.uid in self._slots:
            raise ValueError(f"prompt {row.uid} is already in the buffer")
        self._slots[row.uid] = Slot(row, step)
        return self._slots[row.uid]

    def put(self, uid: str, group: list[Trajectory]) -> None:
        self._slots[uid].group = group
        self._changed.set()

    def fail(self, uid: str, error: BaseException) -> None:
        """The group will not come; `take` raises the error when its turn comes."""
        self._slots[uid].error = error
        self._changed.set()

    async def take(self, count: int) -> list[list[Trajectory]]:
        """The `count` oldest groups, each exactly once, waiting until all of them are finished. Raises the error of a
        failed one, and ValueError when fewer than `count` are dispatched (nothing would ever come)."""
        if len(self._slots) < count:
            raise ValueError(f"{count} groups asked for, {len(self._slots)} dispatched")
        slots = await self._finished(count)
        for slot in slots:
            self.drop(slot.row.uid)
        return [slot.group for slot in slots]

    async def settled(self) -> list[Slot]:
        """Every slot, oldest first, as soon as all of them are finished. Raises the error of a failed one."""
        return await self._finished(len(self._slots))

    async def _finished(self, count: int) -> list[Slot]:
        while True:
            oldest = list(islice(self._slots.values(), count))
            for slot in oldest:
                if slot.error is not None:
                    raise slot.error
            if all(slot.finished for slot in oldest):
                return oldest
            self._changed.clear()
            await self._changed.wait()

    def drop(self, uid: str) -> None:
        """Forgets a prompt and its group."""
        del self._slots[uid]

    def state(self) -> list[dict[str, Any]]:
        """JSON: what is waiting, in order; a pending slot keeps its prompt so that it can be dispatched again."""
        return [
            {"row": asdict(s.row), "step": s.step, "group": [asdict(t) for t in s.group]} for s in self._slots.values()
        ]

    def load_state(self, state: list[dict[str, Any]]) -> list[Slot]:
        """Restores every place in the order, finished groups in theirs; returns the slots whose groups must be made
        again."""
        again = []
        for item in state:
            row = PromptRow(**{**item["row"], "ids": tuple(item["row"]["ids"])})
            slot = self.open(row, item["step"])
            if item["group"]:
                self.put(row.uid, [Trajectory.of(t) for t in item["group"]])
            else:
                again.append(slot)
        return again
