"""Orders that follow from what the prompts are and how they were answered, in place of chance.

A curriculum of one's own is a class in a Python file, `data.curriculum.path`; `Curriculum` says what it has.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verl_core.config.errors import UserError
from verl_core.config.schema import CurriculumConfig
from verl_core.config.user_code import guarded, import_file
from verl_core.data.rows import RawRow

HINT = "see docs/data.md, Curricula"


@dataclass(frozen=True, slots=True)
class Visit:
    """How one prompt was answered. `position`: its place among the rows that the curriculum was given; `reward`: the
    mean training reward of its `answers`; `acc`: the mean of the task's own accuracy, None where the scorer tells
    none."""

    position: int
    reward: float
    acc: float | None
    answers: int

    @property
    def solved(self) -> bool:
        return (self.reward if self.acc is None else self.acc) >= 1


class Curriculum(Protocol):
    """Says in which order the prompts of one source are trained on.

    It is made as `Class(rows, seed)`: the source's rows in file order (`RawRow`: messages, data_source, ground_truth,
    extra_info), and data.seed. A mixture has one for each of its sources.
    """

    def order(self, epoch: int) -> Sequence[int]:
        """Positions among the rows, for one epoch from 0 on; some may be left out, none may come twice. Asked when the
        epoch's first prompt is drawn."""
        ...

    def update(self, step: int, visits: Sequence[Visit]) -> None:
        """Hears how the prompts of a step were answered, those that dynamic sampling drops included."""
        ...

    def state(self) -> Any:
        """JSON, for the checkpoint."""
        ...

    def load_state(self, state: Any) -> None:
        """What `state` gave."""
        ...


class Graded:
    """The easiest first, by `difficulty`; without what was solved in `drop_solved` visits in a row. Of equals the order
    is `plain`'s. When every prompt is solved all come again, as there is nothing else to train on."""

    def __init__(self, plain: Callable[[int], list[int]], difficulty: Sequence[float] | None, drop_solved: int):
        self._plain, self._difficulty, self._drop_solved = plain, difficulty, drop_solved
        self._streaks: dict[int, int] = {}

    def order(self, epoch: int) -> list[int]:
        order = self._plain(epoch)
        if self._difficulty is not None:
            order.sort(key=self._difficulty.__getitem__)
        if not self._drop_solved:
            return order
        return [i for i in order if self._streaks.get(i, 0) < self._drop_solved] or order

    def update(self, step: int, visits: Sequence[Visit]) -> None:
        for visit in visits:
            if visit.solved:
                self._streaks[visit.position] = self._streaks.get(visit.position, 0) + 1
            else:
                self._streaks.pop(visit.position, None)

    def state(self) -> dict[str, int]:
        return {str(position): streak for position, streak in self._streaks.items()}

    def load_state(self, state: dict[str, int]) -> None:
        self._streaks = {int(position): streak for position, streak in state.items()}


class UserCurriculum:
    """One of the user's own: its errors are UserErrors that name it, and so is an order that is none."""

    def __init__(self, made: Curriculum, name: str, rows: int):
        self._made, self._name, self._rows = made, name, rows

    def order(self, epoch: int) -> array[int]:
        order = self._call("order")(epoch)
        try:
            found = array("q", order)
        except (TypeError, OverflowError) as error:
            raise UserError(f"{self._name}.order({epoch}) returns no list of positions: {error}", HINT) from error
        if not found:
            raise UserError(f"{self._name}.order({epoch}) is empty", HINT)
        if outside := [i for i in found if not 0 <= i < self._rows]:
            raise UserError(f"{self._name}.order({epoch}) has {outside[0]}, which is not in 0..{self._rows - 1}", HINT)
        if len(set(found)) < len(found):
            raise UserError(f"{self._name}.order({epoch}) has a position twice", HINT)
        return found

    def update(self, step: int, visits: Sequence[Visit]) -> None:
        self._call("update")(step, visits)

    def state(self) -> Any:
        state = self._call("state")()
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise UserError(f"{self._name}.state() is no JSON, which a checkpoint holds: {error}", HINT) from error
        return state

    def load_state(self, state: Any) -> None:
        self._call("load_state")(state)

    def _call(self, method: str) -> Callable[..., Any]:
        return guarded(getattr(self._made, method), f"{self._name}.{method}", HINT)


def curriculum_class(cfg: CurriculumConfig) -> type[Curriculum]:
    """The class that data.curriculum.path and name mean. Raises UserError when it is not there or lacks a method."""
    file = Path(cfg.path or "").expanduser().resolve()
    if not file.is_file():
        raise UserError(f"no such curriculum file: {cfg.path}", "set data.curriculum.path to a Python file")
    found = getattr(import_file(file, "curriculum file"), cfg.name, None)
    if not isinstance(found, type):
        raise UserError(f"{file} has no class {cfg.name!r}", "set data.curriculum.name, or define it there")
    if absent := [name for name in ("order", "update", "state", "load_state") if not hasattr(found, name)]:
        raise UserError(f"{cfg.name!r} of {file} has no method {', '.join(absent)}", HINT)
    return found


def user_curriculum(cfg: CurriculumConfig, rows: Sequence[RawRow], seed: int) -> UserCurriculum:
    """The user's curriculum of these rows. Raises UserError when it cannot be made, or gives no state to keep."""
    name = f"{cfg.name!r} of {cfg.path}"
    made = guarded(curriculum_class(cfg), name, HINT)(rows, seed)  # type: ignore[call-arg]
    own = UserCurriculum(made, name, len(rows))
    own.state()  # now, not at the first checkpoint
    return own
