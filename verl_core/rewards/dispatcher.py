"""The thread that deals answers out to scorer processes, times every score, and replaces what hangs or dies."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from verl_core.config.errors import RunError
from verl_core.rewards.process import Job, Scorer, Task
from verl_core.rewards.registry import Setup
from verl_core.rewards.staff import LOST, Staff
from verl_core.rewards.suspects import Suspects
from verl_core.rewards.verdict import MEMORY, TIMEOUT, ScoreRequest, Verdict, failed
from verl_core.rewards.workload import Workload

CHARGE_S = 0.002  # what looks as if it hung is charged for its processor time at most so often
GATHER, GATHER_S = 32, 0.002  # verdicts of a process with more than so many answers are read together


@dataclass(slots=True)
class _Load:
    """Data sources whose rules are to be loaded."""

    data_sources: list[str]
    future: Future[None] = field(default_factory=Future)


class Dispatcher:
    """`submit`, `load`, `room` and `close` may be called from any thread; all else happens in the dispatcher's own.

    An answer that takes very long keeps its process up to its limit, and the process's place goes to another one, so
    that the answers behind it do not wait.
    """

    def __init__(self, setup: Setup, workers: int, timeout_s: float, max_queue: int):
        """Loads the rules. Raises UserError when they cannot be."""
        self._parts, self._workers, self._timeout_s, self._max_queue = len(setup.parts), workers, timeout_s, max_queue
        self._work, self._suspects = Workload(), Suspects(workers, timeout_s)
        self._selector = selectors.DefaultSelector()
        self._staff = Staff(setup, workers, self._selector)
        self._open: dict[int, Job] = {}  # by id: what callers wait for; one leaves when it is done or cancelled
        self._rooms: list[Future[None]] = []
        self._inbox: deque[Job | _Load | Future[None]] = deque()
        self._lock, self._closed = threading.Lock(), False
        self._failure: Exception = _closed()  # of what is put after the end
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="scorers", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[ScoreRequest]) -> Future[list[list[Verdict]]]:
        """For each request a verdict of each part."""
        job = Job(requests, [[] for _ in requests], len(requests))
        self._open[id(job)] = job
        job.future.add_done_callback(lambda _: self._open.pop(id(job)))
        self._put(job, job.future)
        return job.future

    def load(self, data_sources: list[str]) -> Future[None]:
        """Done when the rules of these data sources are loaded for processes to come; else the error."""
        load = _Load(data_sources)
        self._put(load, load.future)
        return load.future

    def room(self) -> Future[None]:
        """Done when fewer than `max_queue` answers wait for a process."""
        future = Future[None]()
        if len(self._work.waiting) < self._max_queue:
            future.set_result(None)
        else:
            self._put(future, future)
        return future

    def close(self) -> None:
        """Kills all processes, whatever the rules are doing; what is under way fails. May be called twice."""
        with self._lock:
            self._closed = True
        self._ring()
        self._thread.join()

    def _put(self, what: Job | _Load | Future[None], future: Future) -> None:
        with self._lock:
            if self._closed:
                future.set_exception(self._failure)
                return
            self._inbox.append(what)
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: the thread is going to wake up anyway; closed: it has ended
            self._bell.send(b".")

    def _run(self) -> None:
        try:
            while not self._closed:
                self._step()
        except Exception as e:
            self._failure = e
        with self._lock:
            self._closed = True
        self._staff.close()
        self._selector.close()
        self._ear.close()
        self._bell.close()
        self._listen()
        waiting = [job.future for job in list(self._open.values())] + self._rooms + self._staff.loads()
        for future in waiting:
            _settle(future, error=self._failure)

    def _step(self) -> None:
        if any(len(s.tasks) > GATHER for s in self._staff.scorers):
            time.sleep(GATHER_S)
        self._staff.await_sockets()
        for key, events in self._selector.select(self._patience()):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._ear.recv(4096)
            elif isinstance(key.data, Scorer):
                if events & selectors.EVENT_WRITE:
                    key.data.go_on_giving()
                if events & selectors.EVENT_READ:
                    self._collect(key.data)
            else:
                for task, reason in self._staff.hear(key.data):
                    self._told(task, failed(reason))
                self._bury()
        self._listen()
        self._watch()
        self._deal()
        if len(self._work.waiting) < self._max_queue:
            for future in self._rooms:
                _settle(future)
            self._rooms.clear()

    def _listen(self) -> None:
        """Takes in what other threads have put."""
        while self._inbox:
            what = self._inbox.popleft()
            if isinstance(what, _Load):
                self._staff.load(what.data_sources, what.future)
            elif isinstance(what, Job):
                self._work.waiting.extend(Task(what, r, v) for r, v in zip(what.requests, what.verdicts, strict=True))
                self._finish(what)
            else:
                self._rooms.append(what)

    def _patience(self) -> float | None:
        """Seconds until a score is late, or may be taken to hang."""
        times = [at for s in self._staff.scorers if s.tasks for at in (s.deadline, self._slow_at(s))]
        if charged := len(self._charged()):
            times.append(time.monotonic() + max(CHARGE_S, self._suspects.credit / charged))
        return max(0.0, min(times) - time.monotonic()) if times and min(times) < math.inf else None

    def _slow_at(self, scorer: Scorer) -> float:
        if scorer.lent or scorer.loading or not scorer.tasks or not (self._work.waiting or len(scorer.tasks) > 1):
            return math.inf
        if sum(s.lent for s in self._staff.scorers) >= self._suspects.at_once:
            return math.inf
        return scorer.slow_at(self._slow(scorer))

    def _slow(self, scorer: Scorer) -> float:
        return self._work.slow_after(scorer.tasks[0].request.data_source)

    def _collect(self, scorer: Scorer) -> None:
        """The verdicts that a process has sent, and its end."""
        scores, gone = scorer.read()
        for elapsed, processor_s, *fields in scores:
            if not scorer.tasks:  # it has gone on to answers that were taken away when its own took very long
                break
            task, verdict = scorer.tasks[0], Verdict(*fields)
            self._work.measured(task.request.data_source, elapsed, processor_s)
            self._suspects.verdict(processor_s, scorer.lent)
            if len(task.verdicts) + 1 == self._parts:
                scorer.tasks.popleft()
            scorer.spent = bool(verdict.error and verdict.error.startswith(MEMORY))
            self._told(task, verdict, back=False)
        if gone:
            blamed = scorer.tasks.popleft() if scorer.tasks and not scorer.spent and scorer.pid else None
            if blamed is not None:
                self._suspects.hung()
            self._remove(scorer, blamed)
        elif scorer.lent and not scorer.tasks:
            self._remove(scorer)

    def _told(self, task: Task, verdict: Verdict, back: bool = True) -> None:
        """The verdict of an answer's next part. `back`: its process is lost, others have to see to further parts."""
        task.verdicts.append(verdict)
        if len(task.verdicts) == self._parts:
            task.job.left -= 1
            self._finish(task.job)
        elif back:
            self._work.back([task])

    def _finish(self, job: Job) -> None:
        if not job.left:
            _settle(job.future, job.verdicts)

    def _watch(self) -> None:
        """Ends scores that are late, and takes the answers behind those that look as if they hung."""
        for scorer in list(self._staff.scorers):
            now = time.monotonic()
            if now >= min(scorer.deadline, self._slow_at(scorer)):
                self._collect(scorer)  # it may have been told by now
            if scorer not in self._staff.scorers:
                continue
            if now >= scorer.deadline:
                late = scorer.tasks.popleft()
                what = "its rule was not loaded" if scorer.loading else f"no score within {self._timeout_s:g} s"
                if scorer.had_its_time():
                    self._suspects.hung()
                self._remove(scorer)
                self._told(late, failed(f"{TIMEOUT} {what}"))
            elif now >= self._slow_at(scorer) and scorer.hangs(self._slow(scorer)):
                self._work.back(scorer.lend())
        for scorer in self._charged():
            self._suspects.credit -= scorer.charge()
            if self._suspects.credit <= 0:
                scorer.yield_processor()

    def _charged(self) -> list[Scorer]:
        """Processes that may take processor time from others, although their answers look as if they hung."""
        return [s for s in self._staff.scorers if s.lent and not s.idle_only]

    def _bury(self) -> None:
        """Scorers end with their template."""
        for scorer in [s for s in self._staff.scorers if s.template.gone]:
            present = [scorer.tasks.popleft()] if scorer.tasks else []
            self._remove(scorer)
            for task in present:
                self._told(task, failed(LOST))

    def _remove(self, scorer: Scorer, blamed: Task | None = None) -> None:
        """Kills a process. What it has not come to goes to others; `blamed` gets the reason of its end once it is
        known."""
        self._work.back(list(scorer.tasks))
        reason = self._staff.dismiss(scorer, blamed)
        if blamed is not None and reason is not None:
            self._told(blamed, failed(reason))

    def _deal(self) -> None:
        """Gives every free process something to do, and makes processes where there are too few."""
        waiting = self._work.waiting
        if not waiting:
            return
        free = [s for s in self._staff.scorers if not s.lent and not s.tasks]
        missing = self._workers - sum(not s.lent for s in self._staff.scorers)
        free += self._staff.hire(min(missing, len(waiting) - len(free)), self._timeout_s)
        share = math.ceil(len(waiting) / (2 * self._workers))  # several for each, so that slow answers even out
        for scorer in free:
            if tasks := self._work.take(share):
                scorer.give(tasks)


def _settle(future: Future, result: object = None, error: Exception | None = None) -> None:
    """Ends a future, unless its caller has cancelled it."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _closed() -> RunError:
    return RunError("the scorer pool was closed while answers were being scored")
