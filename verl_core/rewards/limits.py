"""What one scorer process may use: processor time an answer, memory beyond what its rules need."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

PAGE = resource.getpagesize()


class CpuLimit:
    """Ends the process with SIGPROF when one score takes more processor time, of all its threads, than `seconds`; the
    kernel counts, so that a loop in C code is ended too. None: never."""

    def __init__(self, seconds: float | None):
        self._seconds = seconds
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def start(self) -> None:
        """A score begins."""
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def stop(self) -> None:
        """Nothing is being scored."""
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, 0)


def limit_memory(megabytes: int | None) -> None:
    """From here on the process may take so many MiB of address space more, whereupon Python raises MemoryError. Only
    the soft limit: a program that a rule starts sets its own."""
    if megabytes is None:
        return
    now = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
