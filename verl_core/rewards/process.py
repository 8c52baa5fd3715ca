"""The pool's end of one scorer process: started, fed, timed, and replaced when an answer makes it hang or die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import verl_core
from verl_core.config.errors import RunError, UserError
from verl_core.rewards.registry import Setup
from verl_core.rewards.verdict import TIMEOUT, ScoreRequest, Verdict, failed

LOAD_LIMIT_S = 300.0  # a user's reward file may import a whole framework


class ScorerProcess:
    """A plain `python -m` child rather than a multiprocessing one: those import the parent's main module, torch and
    all. It leads its own session, so that killing it takes along what a rule has started. One thread at a time."""

    def __init__(self, setup: Setup, timeout_s: float):
        self._setup, self._timeout_s = setup, timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._closed = False

    def start(self) -> None:
        """Starts the child and waits until it has loaded its rule. Raises UserError when it cannot."""
        ours, theirs = Pipe()
        with theirs:
            self._child = child = subprocess.Popen(
                [sys.executable, "-P", "-m", "verl_core.rewards.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,  # carries nothing: that it ends tells the child that this process has
                stdout=2,  # what a rule prints is talk; stdout belongs to the command
                start_new_session=True,
                env=_environment(),
            )
        self._pipe = ours
        self._refuse_if_closed()
        try:
            ours.send(self._setup)
            answer = ours.recv() if ours.poll(LOAD_LIMIT_S) else TimeoutError(f"no answer within {LOAD_LIMIT_S:g} s")
        except (EOFError, OSError):
            answer = ChildProcessError(f"the process ended with status {child.wait()}")
        if answer is not None:
            self._kill()
            if isinstance(answer, UserError):
                raise answer
            raise UserError(
                f"the reward function {self._setup.path or ''} cannot be loaded: {answer}",
                hint="look at what its module does when it is imported",
            )

    def score(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        """A verdict for each request. An answer that hangs or kills the child costs only itself.

        Raises RunError when the pool is closed meanwhile.
        """
        verdicts: list[Verdict] = []
        while len(verdicts) < len(requests):
            verdicts += self._score_until_failure(requests[len(verdicts) :])
            self._refuse_if_closed()
        return verdicts

    def close(self) -> None:
        """Kills the child; a `score` in another thread ends at once. May be called twice."""
        self._closed = True
        self._kill()

    def _score_until_failure(self, requests: Sequence[ScoreRequest]) -> list[Verdict]:
        if self._child is None or self._child.poll() is not None:
            self._kill()
            self.start()
        child, pipe = self._child, self._pipe
        assert child is not None and pipe is not None
        verdicts: list[Verdict] = []
        try:
            pipe.send(requests)
            for _ in requests:
                if not pipe.poll(self._timeout_s):
                    self._kill()
                    return [*verdicts, failed(f"{TIMEOUT} no score within {self._timeout_s:g} s")]
                verdicts.append(pipe.recv())
        except (EOFError, OSError):
            self._kill()
            return [*verdicts, failed(f"crash: the scorer process ended with status {child.returncode}")]
        return verdicts

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the whole session, also when the child itself has gone
            child.wait()
            assert child.stdin is not None
            child.stdin.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            self._kill()
            raise RunError("the scorer pool was closed while answers were being scored")


def _environment() -> dict[str, str]:
    """The child's environment: it finds rlx, and a rule's arithmetic stays on one core unless the user says else."""
    source = str(Path(verl_core.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"}
