"""Tokens of a generation that still runs: what an engine tells on the way, and what is known when it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from verl_core.rollout.protocol import Completion, Finish, TokenRequest

if TYPE_CHECKING:
    from verl_core.rollout.child.errors import EngineLost

EVERY_TOKENS = 32
EVERY_S = 0.5


@dataclass
class Part:
    """The tokens that request number `index` of a generate call got since its last part. `finish` is set, and `extras`
    complete, in its final part."""

    index: int
    ids: list[int]
    logps: list[float]
    versions: list[int]
    finish: Finish | None
    extras: dict[str, Any] = field(default_factory=dict)


OnParts = Callable[[Sequence[Part]], None]  # called in the engine's thread: must be quick and must not raise


@dataclass
class Interrupted:
    """What is left of a generate call whose engine was lost, on its way to another process: the parts it had told, and
    why."""

    parts: list[Part]
    error: EngineLost


class Growing(Protocol):
    """A row of an engine's batch: its lists grow, `finish` is set at the end."""

    ids: list[int]
    logps: list[float]
    versions: list[int]
    finish: Any
    extras: dict[str, Any]


class Reporter:
    """Tells `on_parts` what is new in the rows, each 32 tokens or half a second, whichever comes first."""

    def __init__(self, rows: Sequence[Growing], on_parts: OnParts):
        self._rows, self._on_parts = rows, on_parts
        self._told = [0] * len(rows)  # tokens
        self._open = list(range(len(rows)))
        self._steps, self._since = 0, time.monotonic()

    def step(self) -> None:
        """To be called after each token."""
        self._steps += 1
        if self._steps >= EVERY_TOKENS or time.monotonic() - self._since >= EVERY_S:
            self._steps, self._since = 0, time.monotonic()
            if parts := self._news():
                self._on_parts(parts)

    def _news(self) -> list[Part]:
        parts, still_open = [], []
        for i in self._open:
            row, told = self._rows[i], self._told[i]
            if row.finish is None:
                still_open.append(i)
            if row.finish is not None or len(row.ids) > told:
                extras = dict(row.extras) if row.finish is not None else {}
                parts.append(Part(i, row.ids[told:], row.logps[told:], row.versions[told:], row.finish, extras))
                self._told[i] = len(row.ids)
        self._open = still_open
        return parts


class Progress:
    """What one request has so far, over all the engines that worked on it. It ends once, for good."""

    def __init__(self, request: TokenRequest):
        self.request = request
        self.has = Completion(request.request_id, [], [], [], "abort")
        self.ended = False
        self._before = 0  # tokens that earlier engines drew

    def rest(self) -> TokenRequest:
        """The request for what is missing, for one more engine. One with stop strings starts again: a stop string that
        spans the interruption would not be seen."""
        if self.request.sampling.stop:
            self.has = Completion(self.request.request_id, [], [], [], "abort")
        self._before = len(self.has.ids)
        return self.request.after(self.has)

    def add(self, part: Part) -> None:
        """Takes what the present engine tells on the way."""
        if self.ended:
            return
        self.has.ids += part.ids
        self.has.logps += part.logps
        self.has.versions += part.versions
        if part.finish is not None:
            self.end(part.finish, part.extras)

    def complete(self, answer: Completion) -> None:
        """Takes the present engine's whole answer; parts of it may have been added."""
        told = len(self.has.ids) - self._before
        self.add(Part(0, answer.ids[told:], answer.logps[told:], answer.versions[told:], answer.finish, answer.extras))

    def end(self, finish: Finish, extras: dict[str, Any] | None = None) -> None:
        self.has.finish, self.ended = finish, True
        self.has.extras |= extras or {}
