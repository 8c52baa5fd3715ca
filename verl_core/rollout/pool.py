"""ReplicaPool: several rollout engines that look like one, and outlive the death of each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Self

from verl_core.config.errors import RunError
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.parts import Part, Progress
from verl_core.rollout.protocol import Completion, PauseMode, TokenRequest
from verl_core.rollout.replicas import Replica, Replicas
from verl_core.rollout.restarts import RestartBudget
from verl_core.rollout.router import Router, Seat


class ReplicaPool[R: Replica]:
    """`count` replicas that generate as one; weights reach them by `each` or `together`. Any number of threads may call
    it at the same time.

    Requests are dealt out by `Router`. When a replica is lost (EngineLost: its process died or hung), its open requests
    go on elsewhere from the tokens that it had told, and it is restarted in the background. Every request ends exactly
    once. With hf replicas, whose draws are keyed by seed and position, the tokens are those of an undisturbed run, up
    to rounding; vLLM may draw a different rest.

    Args:
        start: makes replica number i, ready to generate; called again to replace one.
        count: how many.
        refresh: gives a restarted replica the current weights and version; None: `start` does.
        budget: how many restarts are allowed.

    Raises:
        whatever `start` raises, for the first replica that cannot be started.
    """

    def __init__(
        self,
        start: Callable[[int], R],
        count: int,
        *,
        refresh: Callable[[R], None] | None = None,
        budget: RestartBudget = RestartBudget(),
    ):
        self._replicas = Replicas(start, count, refresh, budget)
        self._router = Router(count)
        self._lock = threading.Lock()
        self._calls: set[_Call[R]] = set()

    @property
    def restarts(self) -> int:
        """Replicas started again so far, failed starts included."""
        return self._replicas.restarts

    @property
    def outstanding(self) -> list[int]:
        """Tokens that may still be drawn on each replica."""
        return self._router.outstanding

    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        """Continues every request; completions come back in the order of the requests.

        Raises:
            RunError: no replica is left. Whatever else a replica raises about its requests.
        """
        call = _Call(self._replicas, self._router, requests)
        with self._lock:
            self._calls.add(call)
        try:
            return call.run()
        finally:
            with self._lock:
                self._calls.discard(call)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests wherever they are, also where they wait for a replica."""
        ids = set(request_ids)
        with self._lock:
            for call in self._calls:
                call.abort(ids)
        self._replicas.notify()
        self._replicas.tell(lambda replica: replica.abort(ids))

    def pause(self, mode: PauseMode) -> None:
        """Returns when every replica stands still. Requests of one that is lost meanwhile wait for `resume`; with mode
        abort they end."""
        if mode == "abort":
            with self._lock:
                for call in self._calls:
                    call.abort(None)
            self._replicas.notify()
        self._replicas.pause(mode)

    def resume(self) -> None:
        self._replicas.resume()

    def sleep(self) -> None:
        """Returns when no replica holds memory; one that is lost while the pool sleeps is restarted at `wake`."""
        self._replicas.sleep()

    def wake(self) -> None:
        self._replicas.wake()

    def each[T](self, do: Callable[[R], T]) -> list[T]:
        """Calls `do` with every running replica at once, and returns what it returned. None joins meanwhile: one that
        is being restarted gets `refresh` before or after. One that is lost is left out; other errors are raised."""
        return self._replicas.each(do)

    def together(self, do: Callable[[Mapping[int, R]], Mapping[int, EngineLost]]) -> None:
        """As `each`, for new weights that reach all replicas in one go: `do` gets the running ones by number, and
        returns those that were lost."""
        self._replicas.together(do)
        self._router.forget_all()

    def hold(self) -> None:
        """The weights are about to change: one that is lost joins again, with `refresh`, after the next `together`."""
        self._replicas.hold()

    def close(self) -> None:
        self._replicas.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(eq=False)
class _Share[R: Replica]:
    """What one replica was given of a call: the requests number `indices`."""

    number: int
    replica: R
    indices: list[int] = field(default_factory=list)
    seats: list[Seat] = field(default_factory=list)
    answer: Future[list[Completion]] = field(default_factory=Future)


class _Call[R: Replica]:
    """One generate call: dealt out, and what is lost dealt out again, until every request has ended."""

    def __init__(self, replicas: Replicas[R], router: Router, requests: Sequence[TokenRequest]):
        self._replicas, self._router = replicas, router
        self._progress = [Progress(request) for request in requests]
        self._aborted: set[str] = set()
        self._shares: SimpleQueue[_Share[R]] = SimpleQueue()  # that are over
        self._running: list[_Share[R]] = []

    def run(self) -> list[Completion]:
        failed: BaseException | None = self._deal_out(list(range(len(self._progress))))
        while self._running:
            share = self._shares.get()
            self._running.remove(share)
            error = share.answer.exception()
            if isinstance(error, EngineLost):
                self._router.forget(share.number)
                self._replicas.lost(share.number, share.replica, error)
                left = [i for i in share.indices if not self._progress[i].ended]
                error = None if failed else self._deal_out(left)
            if error is not None:
                self._end_the_others()
                failed = failed or error
        if failed is not None:
            raise failed
        return [progress.has for progress in self._progress]

    def abort(self, ids: set[str] | None) -> None:
        """Requests (None: all) are not to be given to a replica again. From any thread."""
        self._aborted |= {p.request.request_id for p in self._progress} if ids is None else ids

    def _deal_out(self, indices: list[int]) -> RunError | None:
        """Gives requests to the replicas there are, or says that there are none."""
        try:
            running = self._replicas.ready(unless=lambda: not self._wanted(indices))
        except RunError as error:
            return error
        wanted = self._wanted(indices) if running else []
        for i in set(indices) - set(wanted):
            self._progress[i].end("abort")
        requests = [self._progress[i].rest() for i in wanted]
        shares: dict[int, _Share[R]] = {}
        parts: dict[int, list[TokenRequest]] = {}
        seats = self._router.assign(requests, list(running)) if requests else []
        for i, request, seat in zip(wanted, requests, seats, strict=True):
            share = shares.setdefault(seat.replica, _Share(seat.replica, running[seat.replica]))
            share.indices.append(i)
            share.seats.append(seat)
            parts.setdefault(seat.replica, []).append(request)
        for number, share in shares.items():
            self._running.append(share)
            threading.Thread(target=self._serve, args=(share, parts[number]), daemon=True).start()
        return None

    def _wanted(self, indices: list[int]) -> list[int]:
        return [i for i in indices if self._progress[i].request.request_id not in self._aborted]

    def _serve(self, share: _Share[R], requests: list[TokenRequest]) -> None:
        def on_parts(parts: Sequence[Part]) -> None:
            for part in parts:
                self._progress[share.indices[part.index]].add(part)
                seat = share.seats[part.index]
                self._router.drawn(seat, len(part.ids) if part.finish is None else seat.tokens)
            # An abort that overtook its request on the way to the replica is said again.
            missed = {requests[part.index].request_id for part in parts if part.finish is None} & self._aborted
            if missed:
                _abort(share.replica, missed)

        try:
            answers = share.replica.generate(requests, on_parts=on_parts)
            for i, answer in zip(share.indices, answers, strict=True):
                self._progress[i].complete(answer)
            share.answer.set_result(answers)
        except BaseException as error:
            share.answer.set_exception(error)
        for seat in share.seats:
            self._router.release(seat)
        self._shares.put(share)

    def _end_the_others(self) -> None:
        """The call has failed: nobody waits for the rest of it."""
        self.abort(None)
        for share in self._running:
            _abort(share.replica, {self._progress[i].request.request_id for i in share.indices})


def _abort(replica: Replica, ids: set[str]) -> None:
    """Says so without waiting: the replica may need this thread to answer."""

    def say() -> None:
        with contextlib.suppress(RunError, CancelledError):  # it is lost, or its rank: its generate call says that too
            replica.abort(ids)

    threading.Thread(target=say, daemon=True).start()
