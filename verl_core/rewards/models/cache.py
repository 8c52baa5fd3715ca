"""Judgements on disk, so that no answer is judged twice: one SQLite file, which several runs may share."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError

log = logging.getLogger(__name__)

WAIT_S = 30.0  # for another run that is writing
_TABLE = "CREATE TABLE IF NOT EXISTS judgements (key TEXT PRIMARY KEY, word TEXT NOT NULL) WITHOUT ROWID"
_AT_ONCE = 500  # keys in a query; SQLite takes 999 in its oldest builds


class JudgementCache:
    """Words of verdicts by key. Made, used and closed in a thread of its own. A file that cannot be read or written any
    more costs what it would have saved, and is told once.

    Raises UserError for a file that is no such cache or cannot be made.
    """

    def __init__(self, path: Path):
        self.path, self._told = path, False
        self._new: deque[tuple[str, str]] = deque()  # to be written
        self._thread = ThreadPoolExecutor(1, "judgements")
        try:
            self._thread.submit(self._open).result()
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            raise UserError(
                f"reward.judge.cache={path} cannot be used: {error}", "name another file, or move this one away"
            ) from error

    async def get(self, keys: Sequence[str]) -> dict[str, str]:
        """The words of those keys that are there."""
        return await self._do(self._get, list(keys)) or {}

    async def put(self, key: str, word: str) -> None:
        """What another run put there first stays."""
        self._new.append((key, word))
        await self._do(self._write)

    def close(self) -> None:
        """May be called twice."""
        try:
            self._thread.submit(self._connection.close)
        except RuntimeError:  # closed before
            return
        self._thread.shutdown()

    async def _do[T](self, what: Callable[..., T], *args: Any) -> T | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, what, *args)
        except sqlite3.Error as error:
            if not self._told:
                log.warning("judgements are not kept in %s any more: %s", self.path, error)
            self._told = True
            return None

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(self.path, timeout=WAIT_S)
        with self._connection:
            self._connection.execute(_TABLE)
        self._connection.execute("SELECT key, word FROM judgements LIMIT 1")

    def _get(self, keys: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(self._connection.execute(f"SELECT key, word FROM judgements WHERE key IN ({marks})", some))
        return found

    def _write(self) -> None:
        """All that is new, as waiting for the disk takes as long for many as for one."""
        rows = [self._new.popleft() for _ in range(len(self._new))]
        if rows:
            with self._connection:
                self._connection.executemany("INSERT OR IGNORE INTO judgements VALUES (?, ?)", rows)
