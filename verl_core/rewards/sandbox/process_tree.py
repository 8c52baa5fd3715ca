"""A process and what is below it, seen and ended from outside."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LINGER_S = 5.0  # for the kernel to take a killed sandbox apart
_THREADS = re.compile(r"^Threads:\s*(\d+)", re.MULTILINE)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process, if it has not ended, and waits for it.

    One that stands for a namespace of processes has one child, the namespace's init, and ends with it. So it is the
    init that is killed, which the kernel takes for gone only when nothing else is left in there.
    """
    if process.poll() is None:
        for child in _children(process.pid):
            with suppress(OSError, subprocess.TimeoutExpired), _handle(child) as handle:
                if child in _children(process.pid):  # the handle is of that very one
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    process.wait(LINGER_S)
    process.kill()
    process.wait()


def threads_of(pid: int) -> int:
    """Threads of a process and of all below it; 0 for one that has ended."""
    try:
        found = _THREADS.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return (int(found[1]) if found else 0) + sum(map(threads_of, _children(pid)))


def _children(pid: int) -> list[int]:
    """None where the kernel does not tell."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextmanager
def _handle(pid: int) -> Iterator[int]:
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)
