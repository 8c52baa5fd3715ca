"""What other threads may do to a running engine: abort requests, pause, resume, and change it between two steps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from verl_core.rollout.protocol import PauseMode


class Control:
    """A gate in front of every generation and every step of one. All methods are thread-safe."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._paused: PauseMode | None = None
        self._generating = False
        self._busy = False  # a step runs, or a thread holds the time between two steps
        self._wanted = 0  # threads that wait for the time between two steps; they go before the next step
        self._known: set[str] = set()  # requests of generations that run or wait to
        self._running: set[str] = set()
        self._aborted: set[str] = set()

    @contextmanager
    def generation(self, request_ids: Iterable[str]) -> Iterator[None]:
        """Around one generation: waits until the engine is neither paused nor generating."""
        ids = set(request_ids)
        with self._change:
            self._known |= ids
            self._change.wait_for(lambda: self._paused is None and not self._generating)
            self._generating, self._running = True, ids
        try:
            yield
        finally:
            with self._change:
                self._generating, self._running = False, set()
                self._known -= ids
                self._aborted -= ids
                self._change.notify_all()

    @contextmanager
    def step(self) -> Iterator[set[str]]:
        """Around one step: waits while paused with `keep`; gives the ids of requests that were aborted."""
        with self._change:
            self._change.wait_for(lambda: self._paused != "keep" and not self._wanted and not self._busy)
            self._busy = True
            aborted = set(self._aborted)
        try:
            yield aborted
        finally:
            with self._change:
                self._busy = False
                self._change.notify_all()

    @contextmanager
    def between_steps(self) -> Iterator[bool]:
        """Holds a running generation between two steps; gives whether there is one."""
        with self._change:
            self._wanted += 1
            self._change.wait_for(lambda: not self._busy)
            self._wanted -= 1
            self._busy = True
            generating = self._generating
        try:
            yield generating
        finally:
            with self._change:
                self._busy = False
                self._change.notify_all()

    def abort(self, request_ids: Iterable[str]) -> None:
        with self._change:
            self._aborted |= set(request_ids) & self._known

    def pause(self, mode: PauseMode) -> None:
        """Returns when the engine stands still: `abort` ends the running generation with what it has, `wait` lets it
        finish, `keep` freezes it between two steps. Generations that start later wait for `resume` in every mode."""
        with self._change:
            self._paused = mode
            if mode == "abort":
                self._aborted |= self._running
            self._change.notify_all()
            self._change.wait_for(lambda: not (self._busy if mode == "keep" else self._generating))

    def resume(self) -> None:
        with self._change:
            self._paused = None
            self._change.notify_all()
