"""Factories for child processes, without torch: they start in a moment.

The clockwork engine draws token i of a sequence from the request's seed and i alone, as a real one does, at a set pace.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_core.config.errors import MachineError
from verl_core.rollout.parts import OnParts, Reporter
from verl_core.rollout.protocol import Completion, TokenRequest


@dataclass
class _Row:
    request: TokenRequest
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: Any = None
    extras: dict[str, Any] = field(default_factory=dict)


def token(seed: int, position: int) -> int:
    return (seed * 7919 + position * 104729) % 50_021


class Clockwork:
    """`token_s`: seconds a token. Keeps the protocol as far as tests use it."""

    def __init__(self, token_s: float):
        self.token_s = token_s
        self.version = 0
        self.calls: list[Any] = []
        self.aborted: set[str] = set()
        self.go = threading.Event()
        self.go.set()
        self.healthy = threading.Event()
        self.healthy.set()
        self.broken = threading.Event()

    def generate(self, requests: Sequence[TokenRequest], on_parts: OnParts | None = None) -> list[Completion]:
        rows = [_Row(request) for request in requests]
        if any(not row.request.ids for row in rows):
            raise ValueError("empty prompt")
        reporter = Reporter(rows, on_parts) if on_parts is not None else None
        while running := [row for row in rows if row.finish is None]:
            self.go.wait()
            time.sleep(self.token_s)
            if self.broken.is_set():
                raise ZeroDivisionError("broken")
            for row in running:
                position = len(row.request.ids) + len(row.ids)
                row.ids.append(token(row.request.seed, position))
                row.logps.append(-1.0 / (1 + position))
                row.versions.append(self.version)
                if len(row.ids) >= row.request.sampling.max_tokens:
                    row.finish = "length"
                elif row.request.request_id in self.aborted:
                    row.finish = "abort"
            if reporter is not None:
                reporter.step()
        return [
            Completion(r.request.request_id, r.ids, r.logps, r.versions, r.finish, {"pid": os.getpid()}) for r in rows
        ]

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted |= set(request_ids)

    def pause(self, mode: str) -> None:
        self.calls.append(["pause", mode])
        self.go.clear()

    def resume(self) -> None:
        self.calls.append(["resume"])
        self.go.set()

    def sleep(self) -> None:
        self.calls.append(["sleep"])

    def wake(self) -> None:
        self.calls.append(["wake"])

    def set_version(self, version: int) -> None:
        self.version = version

    def seen(self) -> list[Any]:
        return self.calls

    def health(self) -> None:
        self.healthy.wait()
        if self.broken.is_set():
            raise ZeroDivisionError("broken")

    # what only the tests ask for

    def echo(self, *values: Any, **named: Any) -> list[Any]:
        return [*values, named]

    def hang(self) -> None:
        self.healthy.clear()
        self.healthy.wait()

    def break_down(self) -> None:
        """What breaks the engine for everybody, and says why somewhat later."""
        self.broken.set()
        time.sleep(0.3)
        raise KeyError("the cause")

    def fail(self, kind: str) -> None:
        raise {"key": KeyError("a name"), "machine": MachineError("no", "go"), "other": ZeroDivisionError("by zero")}[
            kind
        ]

    def spawn(self) -> list[int]:
        """Processes that do not end by themselves, the second an orphan in a session of its own."""
        sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
        first = subprocess.Popen(sleeper)
        nested = (
            "import subprocess, sys\n"
            "print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, start_new_session=True).pid)"
        )
        second = subprocess.run([sys.executable, "-c", nested, *sleeper], stdout=subprocess.PIPE, check=True, text=True)
        return [first.pid, int(second.stdout)]


def clockwork(token_s: float = 0.0) -> Clockwork:
    return Clockwork(token_s)


def lacks_a_package() -> None:
    import package_that_no_environment_has  # noqa: F401


def refuses() -> None:
    raise MachineError("no GPU is free", "free one")


def breaks() -> None:
    print("loading shard 3 of 4", file=sys.stderr)
    raise ValueError("shard 3 is cut")


def exits() -> None:
    print("CUDA error: device lost", file=sys.stderr)
    os._exit(7)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def takes_long() -> None:
    print("compiling", file=sys.stderr)
    time.sleep(1000)


class Mirror:
    """Answers with what it was asked, as text."""

    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        return [Completion(r.request_id, [], [], [], "stop", {"seen": repr(r)}) for r in requests]


def mirror() -> Mirror:
    return Mirror()


class Forgetful:
    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        return [Completion(r.request_id, [], [], [], "stop") for r in requests[1:]]


def forgetful() -> Forgetful:
    return Forgetful()


class Unfinished:
    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        return [Completion(r.request_id, [], [], [], None) for r in requests]  # type: ignore[arg-type]


def unfinished() -> Unfinished:
    return Unfinished()


class Garbled:
    """Its process writes into the connection by itself."""

    def generate(self, requests: Sequence[TokenRequest]) -> list[Completion]:
        os.write(int(sys.argv[1]), b"\0\0\0\4abcd")
        time.sleep(1000)
        return []


def garbled() -> Garbled:
    return Garbled()
