"""The engine's process seen from its parent: started, watched for its last words, ended with all it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import verl_core
from verl_core.config.errors import EnvError

_LAST_LINES = 12
_LAST_BYTES = 16384
_GRACE_S = 10.0  # for the guard to end everything
_LINGER_S = 2.0  # between the end of the socket and the end of the process


class HostProcess:
    """`python -m verl_core.rollout.child.host` in a session of its own, and our end of the socket to it.

    A plain child rather than a multiprocessing one: those import the parent's main module, and the parent may have a
    GPU that a fork would break.

    Args:
        python: the interpreter of the engine's environment.
        env: variables on top of this process's.
        log: where its stdout and stderr go; None: a file that ends with it.
    """

    def __init__(self, python: str | None, env: Mapping[str, str] | None, log: Path | None):
        if sys.platform != "linux":
            raise EnvError("rollout engines in processes of their own run on Linux only", "set rollout.engine=hf")
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        self._log = tempfile.TemporaryFile() if log is None else log.open("ab+")  # noqa: SIM115
        self._log_start = self._log.seek(0, os.SEEK_END)
        self.connection: Connection
        self.connection, theirs = Pipe()
        with theirs:
            self._popen = subprocess.Popen(
                [python or sys.executable, "-P", "-m", "verl_core.rollout.child.host", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,  # carries nothing: that it ends tells the guard that this process has
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=_variables(env or {}),
            )

    def last_words(self) -> list[str]:
        """The last lines that it printed."""
        self._log.seek(max(self._log_start, self._log.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = self._log.read().decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-_LAST_LINES:]

    def how_it_ended(self) -> str:
        """In words. Ends it where it does not do so by itself: its socket was closed already."""
        self.wait(_LINGER_S)
        code = self.end()
        if code <= 128:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(code - 128).name}"
        return f"ended with exit code {code}"

    def end(self) -> int:
        """Kills what is left of it; its exit code. May be called twice, by any thread."""
        try:
            self._popen.terminate()  # the guard's sign to kill
            code = self._popen.wait(_GRACE_S)
        except subprocess.TimeoutExpired:  # the guard itself is stopped
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            code = self._popen.wait()
        return code if code >= 0 else 128 - code

    def wait(self, seconds: float) -> bool:
        """Whether it ends by itself within `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)
        return self._popen.returncode is not None

    def close(self) -> None:
        """Ends it and frees what this process holds of it."""
        self.end()
        self.connection.close()
        self._log.close()
        assert self._popen.stdin is not None
        self._popen.stdin.close()


def _variables(env: Mapping[str, str]) -> dict[str, str]:
    """The process finds rlx, whatever environment its interpreter is of."""
    wanted = {**os.environ, **env}
    source = str(Path(verl_core.__file__).parents[1])
    wanted["PYTHONPATH"] = os.pathsep.join(filter(None, [source, wanted.get("PYTHONPATH", "")]))
    return {**wanted, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
