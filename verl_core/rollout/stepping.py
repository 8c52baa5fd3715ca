"""A thread that steps an engine: rows of many callers in one batch, and everything else between two steps.

The engine lives in that thread alone: it is made there, every step and every job runs there, so nothing in it needs a
lock. Callers wait on an event each; nobody polls.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from verl_core.config.errors import RlxError, RunError
from verl_core.rollout.protocol import PauseMode
from verl_core.rollout.rows import Row


class Stepper(Protocol):
    """What a StepLoop drives. A row is known by a key of the loop's own."""

    def add(self, key: str, row: Row) -> None:
        """Takes a row in. What it raises reaches the caller of that row and no other."""
        ...

    def drop(self, keys: Iterable[str]) -> None:
        """Forgets these rows; unknown keys are ignored."""
        ...

    def step(self) -> list[str]:
        """One step of the batch; pushes what was drawn into the rows and returns the keys of those that ended."""
        ...

    def settle(self) -> list[str]:
        """Waits for steps that are under way, without starting one; returns the keys of rows that ended."""
        ...

    def close(self) -> None: ...


class _Call:
    """Rows handed in together: done when the last one has ended, or with an error."""

    def __init__(self, rows: Sequence[Row], stepped: Callable[[], None] | None):
        self.rows = rows
        self.stepped = stepped or _nothing
        self.left = len(rows)
        self.done = threading.Event()
        self.error: BaseException | None = None


class StepLoop[S: Stepper]:
    """Runs rows on the stepper that `make` returns. All methods are thread-safe.

    Args:
        make: makes the stepper, in the loop's thread; what it raises, the constructor raises.
        name: the engine's, for messages.
    """

    def __init__(self, make: Callable[[], S], name: str):
        self._name = name
        self._change = threading.Condition()
        self._waiting = deque[_Call]()
        self._running: dict[str, tuple[Row, _Call]] = {}
        self._jobs = deque[tuple[Callable[[S], Any], Future[Any]]]()
        self._reporting: list[_Call] = []
        self._aborted = set[str]()
        self._paused: PauseMode | None = None
        self._closed = False
        self._steps = 0  # finished
        self._stepping = False
        self._error: BaseException | None = None
        self._keys = (str(i) for i in itertools.count())
        made: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, args=(make, made), name=f"{name}-steps", daemon=True)
        self._thread.start()
        made.result()

    def run(self, rows: Sequence[Row], stepped: Callable[[], None] | None = None) -> None:
        """Returns when every row has ended. `stepped` is called after each step meanwhile, in the loop's thread.

        Raises:
            RunError: the engine failed or was closed.
        """
        if not rows:
            return
        call = _Call(rows, stepped)
        with self._change:
            self._refuse_if_dead()
            self._waiting.append(call)
            self._change.notify_all()
        call.done.wait()
        if call.error is not None:
            raise call.error

    def between_steps(self, job: Callable[[S], Any]) -> Any:
        """Runs `job` in the loop's thread while no step is under way; returns or raises what it does."""
        answer: Future[Any] = Future()
        with self._change:
            self._refuse_if_dead()
            self._jobs.append((job, answer))
            self._change.notify_all()
        return answer.result()

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests, waiting ones too, before the next step; they keep what they have (finish=abort)."""
        with self._change:
            known = {row.request.request_id for row, _ in self._running.values()}
            known.update(row.request.request_id for call in self._waiting for row in call.rows)
            self._aborted |= known & set(request_ids)
            self._change.notify_all()

    def pause(self, mode: PauseMode) -> None:
        """Returns when the engine stands still: `abort` ends the running rows with what they have, `wait` lets them
        finish, `keep` freezes them between two steps. Later calls wait for `resume` in every mode.

        Raises:
            RunError: the engine failed or was closed.
        """
        with self._change:
            self._refuse_if_dead()
            self._paused = mode
            if mode == "abort":
                self._aborted |= {row.request.request_id for row, _ in self._running.values()}
            self._change.notify_all()
            if mode != "keep":
                self._change.wait_for(lambda: not self._running or self._paused is None or self._closed)
                self._refuse_if_dead()
        if mode == "keep":
            self.between_steps(lambda stepper: None)

    def resume(self) -> None:
        with self._change:
            self._paused = None
            self._change.notify_all()

    def health(self) -> None:
        """Blocks while the step that is under way does not end. Raises RunError when the engine has stopped."""
        with self._change:
            seen = self._steps
            self._change.wait_for(lambda: self._closed or not self._stepping or self._steps != seen)
            self._refuse_if_dead()

    @property
    def generating(self) -> bool:
        """Whether rows are running or frozen."""
        return bool(self._running)

    def close(self) -> None:
        """Ends the thread after the present step; callers that still wait get a RunError. Idempotent."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def _refuse_if_dead(self) -> None:
        if self._closed:
            raise self._stopped()

    def _stopped(self) -> RunError:
        """One for each caller: an exception that several threads raise collects all their tracebacks."""
        error = RunError(f"the {self._name} engine has stopped{_because(self._error)}")
        error.__cause__ = self._error
        return error

    def _work(self, make: Callable[[], S], made: Future[None]) -> None:
        try:
            stepper = make()
        except BaseException as error:
            self._closed = True
            made.set_exception(error)
            return
        made.set_result(None)
        try:
            while self._turn(stepper):
                pass
        except BaseException as error:
            self._error = error
        finally:
            self._end(stepper)

    def _turn(self, stepper: S) -> bool:
        """Does what has been asked for, then one step. False: the loop is closed."""
        with self._change:
            self._change.wait_for(self._something_to_do)
            if self._closed:
                return False
        if self._jobs:  # they stay in the queue meanwhile: should this fail, `_end` answers them
            self._ended(stepper.settle())
        while self._jobs:
            job, answer = self._jobs.popleft()
            try:
                answer.set_result(job(stepper))
            except BaseException as error:
                answer.set_exception(error)
        with self._change:  # one section, so that `pause` never misses a row between waiting and running
            self._abort(stepper)
            while self._waiting and self._paused is None:
                call = self._waiting.popleft()
                self._admit(stepper, call)
                if call.stepped is not _nothing:
                    self._reporting.append(call)
            self._stepping = bool(self._running) and self._paused != "keep"
        if self._stepping:
            self._ended(stepper.step())
            with self._change:
                self._stepping = False
                self._steps += 1
                self._change.notify_all()
            self._reporting = [call for call in self._reporting if not call.done.is_set()]
            for call in self._reporting:
                call.stepped()
        return True

    def _something_to_do(self) -> bool:
        stepping = bool(self._running) and self._paused != "keep"
        admitting = bool(self._waiting) and self._paused is None
        return bool(self._closed or self._jobs or self._aborted or stepping or admitting)

    def _abort(self, stepper: S) -> None:
        if not self._aborted:
            return
        keys = [key for key, (row, _) in self._running.items() if row.request.request_id in self._aborted]
        stepper.drop(keys)
        for key in keys:
            self._running[key][0].finish = "abort"
        self._ended(keys)
        for call in self._waiting:
            for row in call.rows:
                if row.finish is None and row.request.request_id in self._aborted:
                    row.finish = "abort"
                    self._one_less(call)
        self._aborted = set()

    def _admit(self, stepper: S, call: _Call) -> None:
        keys = list[str]()
        for row in call.rows:
            if row.finish is not None:  # aborted while it waited
                continue
            key = next(self._keys)
            try:
                stepper.add(key, row)
            except Exception as error:
                stepper.drop(keys)
                for added in keys:
                    del self._running[added]
                call.error = error
                call.done.set()
                return
            keys.append(key)
            self._running[key] = (row, call)

    def _ended(self, keys: Iterable[str]) -> None:
        with self._change:
            for key in keys:
                _, call = self._running.pop(key)
                self._one_less(call)
            if not self._running:
                self._change.notify_all()

    def _one_less(self, call: _Call) -> None:
        call.left -= 1
        if call.left == 0:
            call.done.set()

    def _end(self, stepper: S) -> None:
        with self._change:
            self._closed = True
            for call in {*self._waiting, *(call for _, call in self._running.values())}:
                call.error = self._stopped()
                call.done.set()
            for _, answer in self._jobs:
                answer.set_exception(self._stopped())
            self._running.clear()
            self._waiting.clear()
            self._jobs.clear()
            self._change.notify_all()
        stepper.close()


def _nothing() -> None:
    """What is called after a step where nobody wants to know."""


def _because(error: BaseException | None) -> str:
    """The cause in a word or two; the whole is the exception's cause."""
    if error is None:
        return ""
    return f": {error.message if isinstance(error, RlxError) else f'{type(error).__name__}: {error}'}"
