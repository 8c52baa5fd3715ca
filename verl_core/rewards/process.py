"""The pool's end of one scorer process: what it was given, how long its present score takes, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from verl_core.rewards.frames import Channel
from verl_core.rewards.orders import READY, Started
from verl_core.rewards.template import LOAD_LIMIT_S, Template
from verl_core.rewards.verdict import ScoreRequest, Verdict

LOW_PRIORITY = 10  # nice value of a process whose answer looks as if it hung


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
        self.spent = False  # it ran out of memory with its last score, and ends
        self.lent = False  # its place has been given to another one, because its answer takes very long
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

    def give(self, tasks: Sequence[Task]) -> None:
        """Raises OSError when it has gone."""
        self.since = time.monotonic()
        self.tasks.extend(tasks)
        self._lists.append(len(tasks))
        self.channel.send([(len(task.verdicts), _answer(task.request)) for task in tasks])

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
            self.since = time.monotonic()
        return scores, gone

    def lend(self) -> list[Task]:
        """Lets the present answer go on with low priority; returns those behind it. The process is of no use after."""
        self.lent = True
        rest = list(self.tasks)[1:]
        self.tasks = deque([self.tasks[0]])
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PGRP, self.pid, LOW_PRIORITY)
        return rest

    def kill(self) -> None:
        """Ends the whole session, also when the process itself has gone. The template still has its status."""
        self.channel.close()
        if self.pid is not None and not self.template.gone:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.template.reap(self.pid)


def _answer(request: ScoreRequest) -> tuple[str, str, Any, dict[str, Any]]:
    """What rules read of a request."""
    return request.data_source, request.solution, request.ground_truth, request.extra_info
