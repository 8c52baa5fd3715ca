"""The pool's end of one scorer process: what it was given, how long its present score takes, and its end."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_core.rewards.frames import Channel
from verl_core.rewards.orders import READY, Started
from verl_core.rewards.template import LOAD_LIMIT_S, Template
from verl_core.rewards.verdict import ScoreRequest, Verdict

LOOKS = 10  # times that a slow process which has not had the processor is looked at before it counts as hung,
WAITS_S = 0.2  # if it has waited as long, too: on a machine with too much to do it may just not have had its turn
FAIR = 0.25  # share of its limit that an answer has to have had the processor for, to be at fault when it is late
BUSY = 0.8  # share of the time looked at that it has to have had the processor for, to count as hung at once


@dataclass(slots=True)
class Job:
    """The answers of one call, and where their verdicts go: a list for each answer, a verdict for each part."""

    requests: Sequence[ScoreRequest]
    verdicts: list[list[Verdict]]
    left: int
    future: Future[list[list[Verdict]]] = field(default_factory=Future)


@dataclass(slots=True)
class Task:
    """One answer of a job. Its verdicts so far stay when it moves to another process."""

    job: Job
    request: ScoreRequest
    verdicts: list[Verdict]


class Scorer:
    """Forked from a template. The clock of each score starts when the one before it is told."""

    def __init__(self, template: Template, timeout_s: float):
        self.template, self._timeout_s = template, timeout_s
        self.channel = Channel(template.fork())
        self.pid: int | None = None  # unknown until it says so
        self.tasks: deque[Task] = deque()
        self.since = time.monotonic()
        self._since_cpu, self._looks = 0.0, 0
        self.spent = False  # it ends, and its present answer is not to blame
        self.lent = False  # its place has been given to another one, because its answer takes very long
        self.idle_only = False  # it gets a processor only where nobody else wants it
        self._charged = 0.0  # processor time, seconds
        self._lists: deque[int] = deque()  # answers of each list that it has not said READY to

    @property
    def loading(self) -> bool:
        """Whether it loads rules, rather than scores."""
        return self.pid is None or bool(self._lists)

    @property
    def deadline(self) -> float:
        """On the monotonic clock; infinite for one that has nothing to do."""
        if not self.tasks:
            return float("inf")
        return self.since + (LOAD_LIMIT_S if self.loading else self._timeout_s)

    def slow_at(self, seconds: float) -> float:
        """When its score has taken, or has taken again, so many seconds; on the monotonic clock."""
        return self.since + seconds * (1 + self._looks)

    def hangs(self, seconds: float) -> bool:
        """Asked at `slow_at`: whether that looks like an answer that hangs, not like a machine with too much to do."""
        self._looks += 1
        return self._processor_time() - self._since_cpu > BUSY * seconds or (
            self._looks >= LOOKS and time.monotonic() - self.since > WAITS_S
        )

    def had_its_time(self) -> bool:
        """Asked of a late one: whether that is its own fault, rather than that others had the processor."""
        return self._processor_time() - self._since_cpu > FAIR * self._timeout_s or not self._waits_for_processor()

    def give(self, tasks: Sequence[Task]) -> None:
        """That it has gone shows when it is read."""
        self.since = time.monotonic()
        self.tasks.extend(tasks)
        self._lists.append(len(tasks))
        try:
            self.channel.send([(len(task.verdicts), _answer(task.request)) for task in tasks])
        except OSError:
            self.spent = True

    def go_on_giving(self) -> None:
        """There is room for more of what it was given. That it has gone shows when it is read."""
        with contextlib.suppress(OSError):
            self.channel.flush()

    def read(self) -> tuple[list[tuple[Any, ...]], bool]:
        """The scores that have come, and whether the process has gone."""
        values, gone = self.channel.read()
        scores = []
        for value in values:
            if isinstance(value, Started):
                self.pid = value.pid
            elif value == READY:
                self._lists.popleft()
            else:
                scores.append(value)
        if values:
            self.since, self._since_cpu, self._looks = time.monotonic(), self._processor_time(), 0
        return scores, gone

    def lend(self) -> list[Task]:
        """Lets the present answer go on; returns those behind it. The process is of no use afterwards."""
        self.lent = True
        self._charged = self._processor_time()
        rest = list(self.tasks)[1:]
        self.tasks = deque([self.tasks[0]])
        return rest

    def charge(self) -> float:
        """Processor time since it was lent, or was charged before; seconds."""
        before, self._charged = self._charged, self._processor_time()
        return self._charged - before if self._charged < math.inf else 0.0

    def yield_processor(self) -> None:
        """From now on it takes no processor from others. There is no way back without privileges."""
        self.idle_only = True
        if self.pid is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, self.pid, 19)  # for what it has started
                for thread in Path(f"/proc/{self.pid}/task").iterdir():
                    os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))

    def _processor_time(self) -> float:
        """Seconds, of all its threads; infinite when it has ended or cannot be asked."""
        try:
            assert self.pid is not None
            return time.clock_gettime((~self.pid << 3) | 2)  # the kernel's number for the clock of another process
        except OSError:
            return float("inf")

    def _waits_for_processor(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
        except OSError:
            return False

    def kill(self) -> None:
        """Ends the whole process group, also when the process itself has gone. The template still has its status."""
        self.channel.close()
        if self.pid is not None and not self.template.gone:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if not self.template.spent:
                self.template.reap(self.pid)


def _answer(request: ScoreRequest) -> tuple[str, str, Any, dict[str, Any]]:
    """What rules read of a request."""
    return request.data_source, request.solution, request.ground_truth, request.extra_info
