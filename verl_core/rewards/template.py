"""The pool's end of a template: the process that has loaded the rules and forks scorers (`worker.py`)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import verl_core
from verl_core.config.errors import RlxError, UserError
from verl_core.rewards.frames import Channel, packed, receive, send
from verl_core.rewards.orders import FORK, LOAD, REAP, Ended, Loaded
from verl_core.rewards.registry import Setup

LOAD_LIMIT_S = 300.0  # a user's reward file may import a whole framework
END_S = 2.0


class Template:
    """A plain `python -m` child rather than a multiprocessing one: those import the parent's main module, hence torch.

    What it answers to `fork`, `load` and `reap` comes through `read`.
    """

    def __init__(self, setup: Setup):
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "verl_core.rewards.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,  # carries nothing: that it ends tells the children that this process has
                stdout=2,  # what a rule prints is talk; stdout belongs to the command
                start_new_session=True,
                env=_environment(),
            )
        self._where = setup.path or ""
        with contextlib.suppress(OSError):  # that it has gone shows when it is read
            send(ours, setup)
        self.channel = Channel(ours)
        self._forkable: bool | None = None  # unknown until its rules are loaded
        self.spent = False  # it has become a scorer
        self.gone = False
        self.loads: deque[Future[None] | None] = deque()

    @property
    def free(self) -> bool:
        """Whether a scorer can be forked from it."""
        return self._forkable is not None and not self.spent and not self.loads

    def wait(self) -> None:
        """Until its own rule is loaded. Raises UserError when it cannot be."""
        sock = self.channel.sock
        try:
            ready, _, _ = select.select([sock], [], [], LOAD_LIMIT_S)
            sock.setblocking(True)
            loaded = receive(sock) if ready else Loaded(TimeoutError(f"no answer within {LOAD_LIMIT_S:g} s"))
        except (EOFError, OSError):
            loaded = Loaded(ChildProcessError(f"the process ended with status {self._child.wait()}"))
        finally:
            sock.setblocking(False)
        try:
            self.note(loaded)
        except RlxError:
            self.close()
            raise

    def note(self, loaded: Loaded) -> None:
        """What came through `read`. Raises UserError when its own rule cannot be loaded."""
        if self._forkable is not None and self.loads and (future := self.loads.popleft()) is not None:
            if loaded.error is None:
                future.set_result(None)
            else:
                future.set_exception(self._refusal(loaded.error))
        elif self._forkable is None and loaded.error is not None:
            raise self._refusal(loaded.error)
        self._forkable = loaded.forkable

    def fork(self) -> socket.socket:
        """The pool's end of a new scorer's socket. Raises OSError when the template has gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.channel.sock, [FORK], [theirs.fileno()])
        self.spent = not self._forkable
        return ours

    def load(self, data_sources: list[str], future: Future[None] | None = None) -> None:
        """Loads the rules of these data sources, for scorers that are forked from then on; `future` tells of it."""
        self.loads.append(future)
        self._order(LOAD + packed(data_sources))

    def reap(self, pid: int) -> None:
        """Asks with which status a scorer has ended; until then its pid is not given to another process."""
        self._order(REAP + packed(pid))

    def read(self) -> tuple[list[Loaded | Ended], bool]:
        return self.channel.read()

    def _refusal(self, error: Exception) -> RlxError:
        if isinstance(error, RlxError):
            return error
        return UserError(
            f"the reward function {self._where} cannot be loaded: {error}",
            hint="look at what its module does when it is imported",
        )

    def close(self) -> int:
        """Ends it; scorers of it that are still there end then. Returns its status, negative for a signal."""
        self.gone = True
        self.channel.close()
        try:
            status = self._child.wait(END_S)
        except subprocess.TimeoutExpired:  # an import that hangs
            os.killpg(self._child.pid, signal.SIGKILL)
            status = self._child.wait()
        assert self._child.stdin is not None
        self._child.stdin.close()
        return status

    def _order(self, data: bytes) -> None:
        sock = self.channel.sock
        with contextlib.suppress(OSError):  # that it has gone shows when it is read
            sock.setblocking(True)  # a few bytes, which the socket has room for
            sock.sendall(data)
            sock.setblocking(False)


def _environment() -> dict[str, str]:
    """The child's environment: it finds rlx, and a rule's arithmetic stays on one core unless the user says else."""
    source = str(Path(verl_core.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"}
