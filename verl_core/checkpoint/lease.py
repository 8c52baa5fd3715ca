"""Which run may write at a place of an object store. Stores have no locks: an object there names the run, which renews
it while it works, and who finds that of another looks first whether it is still renewed."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.owner import runs_here
from verl_core.config.errors import RlxError, UserError

log = logging.getLogger(__name__)

LEASE = "writer.json"
RENEW_S, SILENT_S = 15.0, 60.0
"""How often it is renewed, and for how long one of a run that has ended without a word is looked at."""
SETTLE_S = 1.0
"""After which two runs that wrote theirs at one moment see whose has stayed."""
_THIS_PROCESS = f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4().hex[:8]}"


class Lease:
    """That of `writer`, a run, at `folder`. It compares what it reads twice, and no clocks of two machines."""

    def __init__(
        self,
        folder: ObjectPath,
        writer: str = _THIS_PROCESS,
        renew_s: float = RENEW_S,
        silent_s: float = SILENT_S,
    ):
        self.folder, self.writer, self.renew_s, self.silent_s = folder, writer, renew_s, silent_s
        self._renewals = 0

    def take(self) -> None:
        """Makes the place this run's. Raises UserError while another run is at work there, RunError when the store
        cannot be written."""
        if (holder := self._holder()) is not None:
            self._require_silent(holder)
        self._write()
        sleep(SETTLE_S)
        if other := self.other():
            raise self._at_work(other)

    def other(self) -> str | None:
        """The run that has taken the place since; None: nobody has."""
        text = self._read()
        if text is None:
            return None
        writer = _fields(text).get("writer", f"{LEASE} is unreadable")
        return None if writer == self.writer else str(writer)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Around a run's work: the place stays this run's, and is free as soon as it ends."""
        ended = threading.Event()
        thread = threading.Thread(target=self._renew, args=(ended,), name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            try:
                if self.other() is None:
                    self._write(ended=True)
            except RlxError as error:  # who comes next looks for a while
                log.warning("%s", error.message)

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(self.renew_s):
            try:
                if other := self.other():
                    log.warning("%s has been taken over by %s; this run ends at its next save", self.folder, other)
                    return
                self._write()
            except RlxError as error:  # a save tells of a store that stays away
                log.info("%s", error.message)

    def _holder(self) -> str | None:
        """What another run has left there that may be at work; None: nobody is."""
        text = self._read()
        found = _fields(text) if text is not None else {"ended": True}
        if found.get("ended") is True or found.get("writer") == self.writer or _died_here(found):
            return None
        return text

    def _require_silent(self, holder: str) -> None:
        writer = _fields(holder).get("writer", "unknown")
        log.warning(
            "a run has not said that it ended at %s (%s); looking for %.0f s whether one is at work there",
            self.folder,
            writer,
            self.silent_s,
        )
        began = monotonic()
        while monotonic() - began < self.silent_s:
            sleep(min(self.silent_s, 5.0) / 5)
            if self._read() != holder:
                if self._holder() is None:  # it ended
                    return
                raise self._at_work(self.other() or writer)

    def _at_work(self, writer: str) -> UserError:
        return UserError(
            f"another run is at work at {self.folder}: {writer}",
            "end it, or give this one a trainer.experiment_name or a trainer.checkpoint_url of its own",
        )

    def _read(self) -> str | None:
        try:
            return (self.folder / LEASE).read_text()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            return ""

    def _write(self, ended: bool = False) -> None:
        self._renewals += 1
        told = {"writer": self.writer, "machine": _machine(), "pid": os.getpid()}
        text = json.dumps(told | {"renewals": self._renewals, "ended": ended})
        (ObjectPath(self.folder.url) / LEASE).write_text(text + "\n")


def _fields(text: str) -> dict[str, Any]:
    """None of what somebody has edited until it is no object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _died_here(found: dict[str, Any]) -> bool:
    """Whether its process was one of this machine and is no more."""
    pid = found.get("pid")
    return bool(_machine()) and found.get("machine") == _machine() and type(pid) is int and not runs_here(pid)


def _machine() -> str:
    """What processes share whose numbers can be compared: one start of one kernel, and in it one space of numbers.
    Empty where the system does not tell."""
    try:
        boot, numbers = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
        return f"{boot.read_text().strip()} {numbers.readlink()}"
    except OSError:
        return ""
