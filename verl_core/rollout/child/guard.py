"""The process between a parent and its engine: whatever way either of them ends, nothing of the engine is left.

An engine may start processes of its own, in sessions of their own, and a kill gives it no time to end them. So the
engine runs as the child of a small process that does nothing but wait, and becomes the parent of all orphans below it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def split(only_inside: int) -> None:
    """Forks. The inner process returns; the outer one becomes the guard and never does: it ends with the exit status of
    the inner one, which it kills on SIGTERM and when stdin, of which the parent holds the other end, is closed.

    Args:
        only_inside: a file descriptor that the guard must not hold, or its other end would not notice a death.
    """
    guard = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    inner = os.fork()
    if inner == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel's word that the engine does not outlive its guard
        if os.getppid() != guard:
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an engine that reads stdin finds nothing
        return
    os.close(only_inside)
    signal.signal(signal.SIGTERM, lambda *_: _kill(inner))
    threading.Thread(target=_kill_at_hang_up, args=(inner,), daemon=True).start()
    _, status = os.waitpid(inner, 0)
    _end_orphans()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)  # as a shell says it


def _kill_at_hang_up(pid: int) -> None:
    parent = select.poll()
    parent.register(0, 0)  # reports nothing but the end of the pipe
    parent.poll()
    _kill(pid)


def _end_orphans() -> None:
    """Kills what the engine had started, generation after generation, until no child is left."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                _kill(pid)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    own, found = os.getpid(), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state parent ...: the name may hold blanks and brackets
            if int(stat.read_text().rpartition(")")[2].split()[1]) == own:
                found.append(int(stat.parent.name))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
