"""How often replicas may be started again."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartBudget:
    """At most `count` restarts of all replicas together in any `within_s` seconds. While it is used up the replicas
    that are left do the work; where none is, that is an error. After a start that failed the next waits `delay_s`, and
    twice as long each time."""

    count: int = 3
    within_s: float = 3600.0
    delay_s: float = 1.0


class Restarts:
    """Keeps the account of a budget. For one thread at a time."""

    def __init__(self, budget: RestartBudget):
        self.budget = budget
        self.total = 0
        self._spent: deque[float] = deque()  # when, of those that count

    def affordable(self) -> bool:
        """Whether one more is within the budget now."""
        now = time.monotonic()
        while self._spent and now - self._spent[0] >= self.budget.within_s:
            self._spent.popleft()
        return len(self._spent) < self.budget.count

    def until_affordable_s(self) -> float | None:
        """Seconds until one more may be, where none is; None: never, the budget is of none."""
        return self._spent[0] + self.budget.within_s - time.monotonic() if self._spent else None

    def spend(self) -> None:
        self._spent.append(time.monotonic())
        self.total += 1
