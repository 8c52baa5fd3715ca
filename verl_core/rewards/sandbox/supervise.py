"""Watches one process from outside: feeds it, collects what it prints, and stops it at the limits."""

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from verl_core.rewards.sandbox.process_tree import LINGER_S, end, threads_of
from verl_core.rewards.sandbox.protocol import Limits, Outcome, Status

_PIECE = 65536
_MOST_THREADS = 256
_LOOK_S = 0.05  # between two looks at the threads


def supervise(
    process: subprocess.Popen[bytes],
    stdin: bytes,
    limits: Limits,
    started: float,
    company: Sequence[subprocess.Popen[bytes]] = (),
) -> Outcome:
    """The outcome of a process that has pipes for stdin, stdout and stderr and started at `started` (time.monotonic()).

    It is killed when it is late or prints more than it may, and when it, or one of `company`, has more threads than
    anybody needs: the kernel does not count those of root. Whatever way it ends, this returns when the last process
    that held its pipes is gone.
    """
    watch = _Watch(process, stdin, limits.output_kb * 1024)
    clock = _Clock(started + limits.seconds, (process, *company))
    try:
        stopped = watch.until(clock)
        if stopped is None:
            stopped = _wait(process, clock)
    finally:
        end(process)
        watch.discard(time.monotonic() + LINGER_S)
    seconds = time.monotonic() - started
    errors = watch.stderr.decode(errors="replace")
    if stopped:
        return Outcome(stopped, bytes(watch.stdout), errors, None, seconds)
    status: Status = "ok" if process.returncode == 0 else "failed"
    if status == "failed" and errors.rsplit("\n", 2)[-2:][0].startswith("MemoryError"):
        status = "memory"
    return Outcome(status, bytes(watch.stdout), errors, process.returncode, seconds)


class _Clock:
    """Says how long to wait, at most to the next look at the threads, and which limit is broken then."""

    def __init__(self, deadline: float, processes: Sequence[subprocess.Popen[bytes]]):
        self._deadline, self._processes = deadline, processes
        self._look = time.monotonic() + _LOOK_S

    def wait_s(self) -> float:
        return max(0.0, min(self._deadline, self._look) - time.monotonic())

    def broken(self) -> Status | None:
        now = time.monotonic()
        if now >= self._deadline:
            return "timeout"
        if now >= self._look:
            self._look = now + _LOOK_S
            if any(threads_of(process.pid) > _MOST_THREADS for process in self._processes):
                return "threads"
        return None


def _wait(process: subprocess.Popen[bytes], clock: _Clock) -> Status | None:
    """Waits for a process that has closed its pipes, but may go on."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(clock.wait_s())
            return None
        if stopped := clock.broken():
            return stopped


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

    def until(self, clock: _Clock) -> Status | None:
        """Moves bytes until the process has closed what it prints to; the limit that it broke before that, if any."""
        while not all(pipe.closed for pipe in self._kept):
            ready = self._open.select(clock.wait_s())
            for key, _ in ready:
                self._feed() if key.fileobj is self._stdin else self._read(key.fileobj)  # type: ignore[arg-type]
            if self._room < 0:
                return "output"
            if stopped := clock.broken():
                return stopped
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
