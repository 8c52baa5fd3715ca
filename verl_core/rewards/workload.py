"""How much a process is given at a time, and when an answer looks as if it hung: from how long scores took so far."""

from __future__ import annotations

from collections import deque

from verl_core.rewards.process import Task

CHUNK_S = 0.05  # what a process is given at a time takes about so long,
CHUNK = 256  # is at most so many answers,
CHUNK_TEXT = 1 << 20  # and at most so many characters
SLOW_S = 0.003  # no answer looks as if it hung before,
SLOW = 8.0  # nor before so many times what those of its data source took on average,
LONGEST = 1.25  # and so many times the most processor time that one of them took,
_FORGOTTEN = 1 / 5000  # of which each answer forgets this share
_MEMORY = 0.05  # weight of the newest score in the average


class Workload:
    """Answers that wait; for each data source the mean seconds of an answer, and the most processor time of late."""

    def __init__(self) -> None:
        self.waiting: deque[Task] = deque()
        self._mean: dict[str, float] = {}
        self._longest: dict[str, float] = {}

    def measured(self, data_source: str, seconds: float, processor_s: float) -> None:
        before = self._mean.get(data_source, seconds)
        self._mean[data_source] = before + _MEMORY * (seconds - before)
        longest = self._longest.get(data_source, 0.0)
        self._longest[data_source] = max(processor_s, longest * (1 - _FORGOTTEN))

    def slow_after(self, data_source: str) -> float:
        """Seconds; infinite as long as no answer of this data source is known."""
        mean = self._mean.get(data_source)
        return float("inf") if mean is None else max(SLOW_S, SLOW * mean, LONGEST * self._longest[data_source])

    def take(self, share: int) -> list[Task]:
        """The next answers for one process. `share`: at most so many, so that the others get some, too."""
        taken: list[Task] = []
        seconds, text = 0.0, 0
        while self.waiting and len(taken) < min(share, CHUNK):
            task = self.waiting[0]
            if task.job.future.cancelled():
                self.waiting.popleft()
                continue
            seconds += self._mean.get(task.request.data_source, CHUNK_S / 4)
            text += len(task.request.solution)
            if taken and (seconds > CHUNK_S or text > CHUNK_TEXT):
                break
            taken.append(self.waiting.popleft())
        return taken

    def back(self, tasks: list[Task]) -> None:
        """What a process did not come to is the next to be given out."""
        self.waiting.extendleft(reversed(tasks))
