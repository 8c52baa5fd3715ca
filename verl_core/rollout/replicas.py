"""N engines that are kept running: one that is lost is replaced in the background, within a budget."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from verl_core.config.errors import RlxError, RunError
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.parts import OnParts
from verl_core.rollout.protocol import Completion, PauseMode, TokenRequest
from verl_core.rollout.restarts import RestartBudget, Restarts

log = logging.getLogger(__name__)


class Replica(Protocol):
    """A RolloutEngine that can die: then every call raises EngineLost. A ChildEngine is one."""

    def generate(self, requests: Sequence[TokenRequest], on_parts: OnParts | None = None) -> list[Completion]: ...

    def abort(self, request_ids: Iterable[str]) -> None: ...

    def pause(self, mode: PauseMode) -> None: ...

    def resume(self) -> None: ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class _Slot[R: Replica]:
    engine: R | None
    starting: bool = False
    given_up: bool = False


class Replicas[R: Replica]:
    """Starts `count` engines at once and keeps them running. All methods are thread-safe.

    Args:
        start: makes engine number i, which is ready when it returns.
        refresh: gives a restarted engine the current weights.
    """

    def __init__(
        self, start: Callable[[int], R], count: int, refresh: Callable[[R], None] | None, budget: RestartBudget
    ):
        self._start, self._refresh = start, refresh
        self._change = threading.Condition()
        self._steady = threading.Lock()  # held while all engines get something that a restarted one must not miss
        self._restarts = Restarts(budget)
        self._paused: PauseMode | None = None
        self._asleep = self._held = self._closing = False
        self._last: Exception | None = None  # why an engine was lost, or could not be started
        self._slots = [_Slot(engine) for engine in self._start_all(count)]

    def _start_all(self, count: int) -> list[R]:
        with ThreadPoolExecutor(count) as threads:
            starts = [threads.submit(self._start, number) for number in range(count)]
        failed = next((start.exception() for start in starts if start.exception() is not None), None)
        if failed is not None:
            for start in starts:
                if start.exception() is None:
                    start.result().close()
            raise failed
        return [start.result() for start in starts]

    @property
    def restarts(self) -> int:
        """Engines started again so far, failed starts included."""
        return self._restarts.total

    # --- which there are --------------------------------------------------------------------------------------------

    def ready(self, unless: Callable[[], bool] = lambda: False) -> dict[int, R]:
        """The engines that run, by number. Waits until there is one; gives none where `unless` holds (see `notify`).

        Raises RunError when none is left and none will come.
        """
        with self._change:
            while True:
                running = self._running()
                if unless():
                    return {}
                if running and not self._closing:
                    return running
                if self._closing or all(slot.given_up for slot in self._slots):
                    raise self._none_left()
                self._change.wait()

    def _none_left(self) -> RunError:
        if self._closing:
            return RunError("the rollout replicas were closed while requests were open")
        b, n = self._restarts.budget, len(self._slots)
        return RunError(
            f"no rollout replica is left of {n}, after {self.restarts} restarts (rollout.restarts: {b.count} within "
            f"{b.within_s:g} s); the last failure: {_line(self._last) if self._last else None}",
            getattr(self._last, "hint", None) or "look at what the replicas printed",
        )

    def notify(self) -> None:
        """What the `unless` of a waiting `ready` looks at has changed."""
        with self._change:
            self._change.notify_all()

    def _running(self) -> dict[int, R]:
        with self._change:
            return {number: slot.engine for number, slot in enumerate(self._slots) if slot.engine is not None}

    # --- what all of them are told ----------------------------------------------------------------------------------

    def each[T](self, do: Callable[[R], T]) -> list[T]:
        """Calls `do` with every running engine at once, and gives what it returned. An engine that is restarted
        meanwhile joins, with `refresh`, before or after. One that is lost is left out and replaced; what else is raised
        is raised here, when all have returned."""
        with self._steady:
            return self.tell(do)

    def together(self, do: Callable[[Mapping[int, R]], Mapping[int, EngineLost]]) -> None:
        """Calls `do` once with all running engines by number; those that it returns were lost, and are replaced. Ends
        what `hold` began."""
        with self._steady:
            running = self._running()
            for number, error in do(running).items():
                self.lost(number, running[number], error)
            with self._change:
                self._held = False
                self._change.notify_all()

    def hold(self) -> None:
        """From now on to the next `together` no engine gets `refresh`: what that would give it is being changed. Waits
        for one that is given it."""
        with self._steady:
            self._held = True

    def tell[T](self, do: Callable[[R], T]) -> list[T]:
        """As `each`, for what an engine that joins meanwhile may miss."""
        running = self._running()
        if not running:
            return []
        with ThreadPoolExecutor(len(running)) as threads:
            calls = {number: threads.submit(do, engine) for number, engine in running.items()}
        results, failed = [], None
        for number, call in calls.items():
            error = call.exception()
            if error is None:
                results.append(call.result())
            elif isinstance(error, EngineLost):
                self.lost(number, running[number], error)
            else:
                failed = failed or error
        if failed is not None:
            raise failed
        return results

    def pause(self, mode: PauseMode) -> None:
        with self._steady:
            self._paused = mode
        self.tell(lambda engine: engine.pause(mode))

    def resume(self) -> None:
        with self._steady:
            self._paused = None
        self.tell(lambda engine: engine.resume())

    def sleep(self) -> None:
        """Waits for engines that are being restarted: when it returns, no engine holds memory."""
        with self._change:
            self._asleep = True
            self._change.wait_for(lambda: not any(slot.starting for slot in self._slots))
        try:
            self.tell(lambda engine: engine.sleep())
        except BaseException:
            self._awake()
            raise

    def wake(self) -> None:
        """Engines that were lost meanwhile are started now: before, their memory was somebody else's."""
        self.tell(lambda engine: engine.wake())
        self._awake()

    def _awake(self) -> None:
        with self._change:
            self._asleep = False
            self._change.notify_all()

    def close(self) -> None:
        """Ends all engines; who waits in `ready` gets RunError. An engine that is being started ends when it is."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        self.tell(lambda engine: engine.close())

    # --- replacing one ----------------------------------------------------------------------------------------------

    def lost(self, number: int, engine: R, error: EngineLost) -> None:
        """Engine `number` is gone: replaces it in the background. Several callers may say so."""
        with self._change:
            slot = self._slots[number]
            if slot.engine is not engine:
                return
            slot.engine, self._last = None, error
            self._change.notify_all()
            if self._closing:
                return
        log.warning("rollout replica %d is lost: %s", number, _line(error))
        log.info("rollout replica %d, in full: %s", number, error)
        threading.Thread(target=self._replace, args=(number, engine), name=f"restart {number}", daemon=True).start()

    def _replace(self, number: int, old: R) -> None:
        with contextlib.suppress(RlxError):
            old.close()
        delay_s = 0.0
        while self._may_start(number, delay_s):
            try:
                self._join(number, self._start(number))
                log.info("rollout replica %d runs again", number)
                return
            except Exception as error:
                with self._change:
                    self._slots[number].starting, self._last = False, error
                    self._change.notify_all()
                    if self._closing:  # which may be why: nobody waits for it any more
                        return
                log.warning("rollout replica %d cannot be restarted: %s", number, _line(error))
                log.info("rollout replica %d, in full: %s", number, error)
                delay_s = 2 * delay_s or self._restarts.budget.delay_s

    def _may_start(self, number: int, delay_s: float) -> bool:
        """Waits until an engine may be started, with `given_up` while that is a matter of the budget; False where the
        pool is closed."""
        slot = self._slots[number]
        with self._change:
            self._change.wait_for(lambda: self._closing, delay_s)
            self._change.wait_for(lambda: self._closing or not self._asleep)
            while not self._closing and not self._restarts.affordable():
                slot.given_up = True
                self._change.notify_all()
                self._change.wait(self._restarts.until_affordable_s())
            if self._closing:
                return False
            slot.given_up = False
            self._restarts.spend()
            slot.starting = True
        return True

    def _join(self, number: int, engine: R) -> None:
        """Brings a new engine to the state of the others, and among them."""
        slot = self._slots[number]
        try:
            with self._steady_and_whole():
                if self._refresh is not None and not self._closing:
                    self._refresh(engine)
                if self._paused is not None:
                    engine.pause(self._paused)
                with self._change:
                    slot.starting = False
                    if not self._closing:
                        slot.engine = engine
                    self._change.notify_all()
        except BaseException:
            engine.close()
            raise
        if slot.engine is None:
            engine.close()

    @contextlib.contextmanager
    def _steady_and_whole(self) -> Iterator[None]:
        """`_steady`, at a time when nothing is held."""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closing or not self._held)
            with self._steady:
                if self._closing or not self._held:
                    yield
                    return


def _line(error: Exception) -> str:
    """Its first line: what an engine had printed stands below it."""
    return str(error).partition("\n")[0]
