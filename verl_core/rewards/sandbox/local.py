"""Sandboxes of this machine: how a program is started in one, or two that talk to each other."""

import math
import os
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

from verl_core.config.errors import EnvError
from verl_core.rewards.sandbox.inside import text
from verl_core.rewards.sandbox.interpreter import FLAGS
from verl_core.rewards.sandbox.process_tree import end
from verl_core.rewards.sandbox.protocol import Limits, Outcome
from verl_core.rewards.sandbox.seccomp import bpf_filter
from verl_core.rewards.sandbox.supervise import supervise

OPEN_FILES = 64
THREADS = 64
_READY = "print('ready')"
_PIPES = (subprocess.PIPE, subprocess.PIPE, subprocess.PIPE)


@dataclass(frozen=True)
class Place:
    """Where a command line is started: not where the program finds itself, if a back end shuts it in."""

    folder: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    own_session: bool = False


class LocalSandbox(ABC):
    """What the back ends of this machine share. A back end says how the interpreter is started in it."""

    parallel = 1  # there are as many scorer processes as this machine can bear
    counts_threads = False
    """Whether RLIMIT_NPROC counts this program's threads alone."""
    filter_from_inside = True
    """Whether the interpreter sets the filter of system calls itself, before it looks at the program."""

    @abstractmethod
    def command(self, python: Sequence[str], fds: Sequence[int], filter_fd: int, limits: Limits) -> list[str]:
        """The command line that runs the interpreter with the words `python`, and with `fds` open."""

    def place(self) -> AbstractContextManager[Place]:
        """Where the command line is started, for one program."""
        return nullcontext(Place())

    def run(self, program: str, stdin: bytes, limits: Limits) -> Outcome:
        return self._surely(lambda: self._run(program, stdin, limits))

    def converse(self, answering: str, asking: str, stdin: bytes, limits: Limits) -> Outcome:
        """Runs two programs at the same time, each in a sandbox of its own, joined by two pipes and nothing else.

        The pipes are the stdin and stdout of `answering`; `asking` finds the numbers of its ends in sys.argv[1] (to
        read) and sys.argv[2] (to write). The outcome is that of `asking`, and when it has ended, so has `answering`.
        Raises EnvError as `run` does.
        """
        return self._surely(lambda: self._converse(answering, asking, stdin, limits))

    def probe(self) -> None:
        """Raises EnvError with what the back end says when it cannot run the simplest program."""
        outcome = self._run(_READY, b"", Limits(seconds=30))
        if outcome.stdout != b"ready\n":
            raise _unusable(outcome)

    def _surely(self, attempt: Callable[[], Outcome]) -> Outcome:
        """The outcome of an attempt, or of another one where the back end failed in a way that does not last."""
        try:
            return attempt()
        except EnvError:
            self.probe()
        return attempt()

    def _run(self, program: str, stdin: bytes, limits: Limits) -> Outcome:
        """Raises EnvError where the program did not begin."""
        started = time.monotonic()
        with self._started(program, limits, _PIPES) as (process, begun):
            outcome = supervise(process, stdin, limits, started)
        if not begun and outcome.status != "timeout":
            raise _unusable(outcome)
        return outcome

    def _converse(self, answering: str, asking: str, stdin: bytes, limits: Limits) -> Outcome:
        """Raises EnvError where either program did not begin."""
        with ExitStack() as open_here:
            questions, ask = _pipe(open_here)
            answers, answer = _pipe(open_here)
            started = time.monotonic()
            with (
                self._started(answering, limits, (questions, answer, subprocess.DEVNULL)) as (other, answers_come),
                self._started(asking, limits, _PIPES, (answers, ask)) as (process, begun),
            ):
                open_here.close()  # so that either side's end is the end of the other's pipe
                outcome = supervise(process, stdin, limits, started, [other])
        if not (begun and answers_come) and outcome.status != "timeout":
            raise _unusable(outcome)
        return outcome

    @contextmanager
    def _started(
        self, program: str, limits: Limits, streams: tuple[int, int, int], argument_fds: tuple[int, ...] = ()
    ) -> Iterator[tuple[subprocess.Popen[bytes], bool]]:
        """A process that is killed at the end, and whether the program has begun in it; until then all that the process
        does is the back end's. The program finds `argument_fds` in sys.argv."""
        with ExitStack() as at_the_end:
            ours, theirs = map(at_the_end.enter_context, socket.socketpair())
            filter_fd = at_the_end.enter_context(_in_memory(bpf_filter()))
            fds = (theirs.fileno(), filter_fd, *argument_fds)
            inside = filter_fd if self.filter_from_inside else -1
            numbers = (theirs.fileno(), inside, *self._numbers(limits), *argument_fds)
            words = [*FLAGS, "-c", text("bootstrap"), *map(str, numbers)]
            place = at_the_end.enter_context(self.place())
            process = subprocess.Popen(
                self.command(words, fds, filter_fd, limits),
                pass_fds=fds,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                cwd=place.folder,
                env=place.environment,
                start_new_session=place.own_session,
            )
            at_the_end.callback(end, process)
            theirs.close()
            yield process, _hand_over(program, ours, limits)

    def _numbers(self, limits: Limits) -> tuple[int, ...]:
        """The limits as the interpreter takes them upon itself."""
        tasks = THREADS if self.counts_threads else 0
        return math.ceil(limits.seconds), limits.memory_mb << 20, limits.tmp_mb << 20, OPEN_FILES, tasks


def _hand_over(program: str, ours: socket.socket, limits: Limits) -> bool:
    """Gives the interpreter its program when it says that it would not outlive us; before that, it would. False where
    it did not say so in time."""
    ours.settimeout(limits.seconds)
    ready = False
    with ours, suppress(OSError):  # it is late or has ended: how, is seen by whoever watches it
        if ready := bool(ours.recv(1)):
            ours.sendall(b"p" + program.encode("utf-8", "surrogatepass"))
    return ready


def _unusable(outcome: Outcome) -> EnvError:
    what = outcome.stderr.strip() or f"{outcome.status}, exit code {outcome.exit_code}"
    return EnvError(f"the sandbox for programs cannot be used: {what}", hint="docs/rewards/code.md says what it needs")


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """An open file that has no name, at its beginning."""
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as f:
            f.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _pipe(stack: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        stack.callback(os.close, fd)
    return ends


def kernel_at_least(major: int, minor: int) -> bool:
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1].split("-")[0])) >= (major, minor)


def found(program: str, package: str) -> str:
    """The path of a program that a back end needs. Raises EnvError, naming the package, where it is missing."""
    if path := shutil.which(program):
        return path
    raise EnvError(
        f"no {program} on PATH",
        hint=f"install {package} (`apt-get install {package}`), or set reward.sandbox.type",
    )
