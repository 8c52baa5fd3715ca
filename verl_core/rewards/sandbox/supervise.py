"""Watches one process from outside: feeds it, collects what it prints, and stops it at the limits."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from verl_core.rewards.sandbox.protocol import Limits, Outcome, Status

_PIECE = 65536
_LINGER_S = 5.0  # for the kernel to take a killed sandbox apart


def supervise(process: subprocess.Popen[bytes], stdin: bytes, limits: Limits, started: float) -> Outcome:
    """The outcome of a process that has pipes for stdin, stdout and stderr and started at `started` (time.monotonic()).

    It is killed when it is late or prints more than it may. Whatever way it ends, this returns when the last process
    that held its pipes is gone.
    """
    watch = _Watch(process, stdin, limits.output_kb * 1024)
    deadline = started + limits.seconds
    try:
        stopped = watch.until(deadline)
        if stopped is None:
            stopped = _wait(process, deadline)
    finally:
        end(process)
        watch.discard(time.monotonic() + _LINGER_S)
    seconds = time.monotonic() - started
    errors = watch.stderr.decode(errors="replace")
    if stopped:
        return Outcome(stopped, bytes(watch.stdout), errors, None, seconds)
    status: Status = "ok" if process.returncode == 0 else "failed"
    if status == "failed" and errors.rsplit("\n", 2)[-2:][0].startswith("MemoryError"):
        status = "memory"
    return Outcome(status, bytes(watch.stdout), errors, process.returncode, seconds)


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
                    process.wait(_LINGER_S)
    process.kill()
    process.wait()


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


def _wait(process: subprocess.Popen[bytes], deadline: float) -> Status | None:
    """Waits for a process that has closed its pipes, but may go on."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "timeout"
    return None


class _Watch:
    """The three pipes of a process, none of which ever blocks us: a program that opens its pipes through /proc can take
    the bytes or the room that we were told of. `room`: bytes that it may still print."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, room: int):
        assert process.stdin and process.stdout and process.stderr
        self.stdout, self.stderr = bytearray(), bytearray()
        self._room = room
        self._stdin, self._left = process.stdin, memoryview(stdin)
        self._kept: dict[IO[bytes], bytearray] = {process.stdout: self.stdout, process.stderr: self.stderr}
        self._open = selectors.DefaultSelector()
        for pipe in self._kept:
            self._add(pipe, selectors.EVENT_READ)
        self._add(self._stdin, selectors.EVENT_WRITE)

    def until(self, deadline: float) -> Status | None:
        """Moves bytes until the process has closed what it prints to; the limit that it broke before that, if any."""
        while not all(pipe.closed for pipe in self._kept):
            ready = self._open.select(max(0.0, deadline - time.monotonic()))
            for key, _ in ready:
                self._feed() if key.fileobj is self._stdin else self._read(key.fileobj)  # type: ignore[arg-type]
            if self._room < 0:
                return "output"
            if time.monotonic() >= deadline:
                return "timeout"
        return None

    def discard(self, deadline: float) -> None:
        """Reads on, keeping nothing, until the pipes are closed on the other side, and closes them here."""
        self._drop(self._stdin)
        while self._open.get_map() and time.monotonic() < deadline:
            for key, _ in self._open.select(max(0.0, deadline - time.monotonic())):
                with suppress(BlockingIOError):
                    if not os.read(key.fd, _PIECE):
                        self._drop(key.fileobj)  # type: ignore[arg-type]
        for pipe in self._kept:
            self._drop(pipe)
        self._open.close()

    def _add(self, pipe: IO[bytes], event: int) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._open.register(pipe, event)

    def _drop(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._open.unregister(pipe)
            pipe.close()

    def _feed(self) -> None:
        try:
            self._left = self._left[os.write(self._stdin.fileno(), self._left[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read
            self._left = self._left[:0]
        if not self._left:
            self._drop(self._stdin)

    def _read(self, pipe: IO[bytes]) -> None:
        try:
            piece = os.read(pipe.fileno(), _PIECE)
        except BlockingIOError:
            return
        if not piece:
            self._drop(pipe)
        self._kept[pipe] += piece[: max(0, self._room)]
        self._room -= len(piece)
