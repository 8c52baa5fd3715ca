"""Where checkpoints are, on a disk or on an object store, and what who reads and writes pieces does with either."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.pieces import Sink
from verl_core.config.errors import UserError
from verl_core.config.urls import NO_CREDENTIALS, holds_credentials, is_url

_AHEAD_BYTES = 256 << 20

Folder = Path | ObjectPath
"""Where checkpoints are: on a disk or on an object store."""


def folder_of(place: str | Path | ObjectPath) -> Folder:
    """The folder at a path, `~` expanded, or at a URL. Raises UserError for one with credentials, which messages would
    show."""
    if isinstance(place, str) and is_url(place):
        if holds_credentials(place):
            raise UserError(NO_CREDENTIALS, "leave them out of the URL")
        return ObjectPath(place)
    return place if isinstance(place, ObjectPath) else Path(place).expanduser()


def names_in(folder: Folder) -> set[str]:
    """What lies directly in it."""
    if isinstance(folder, Path):
        return {path.name for path in folder.iterdir()}
    return {name.partition("/")[0] for name in folder.sizes()}


def read_blocks(path: Folder, block_bytes: int = 4 << 20) -> Iterator[bytes]:
    """The bytes of a file or an object."""
    if isinstance(path, ObjectPath):
        yield from path.read_blocks()
        return
    with path.open("rb") as file:
        while block := file.read(block_bytes):
            yield block


@contextlib.contextmanager
def writing(path: Folder) -> Iterator[Sink]:
    """A file or an object to write from its first byte to its last; durable at the end."""
    if isinstance(path, ObjectPath):
        with path.writing() as measured:
            yield measured
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, ThreadPoolExecutor(1) as pool:
        yield (ahead := _Ahead(file, pool))
        file.flush()
        ahead.settle()
        os.fsync(file.fileno())


class _Ahead:
    """A file whose bytes go to the disk while later ones are made, so that little is left to wait for at its end."""

    def __init__(self, file: BinaryIO, pool: ThreadPoolExecutor):
        self._file, self._pool = file, pool
        self._since = 0  # bytes written since the disk was asked for the last time
        self._flush: Future[None] | None = None

    def write(self, data: Any) -> int:
        written = self._file.write(data)
        self._since += written
        if self._since >= _AHEAD_BYTES and (self._flush is None or self._flush.done()):
            self.settle()
            self._since, self._flush = 0, self._pool.submit(os.fdatasync, self._file.fileno())
        return written

    def settle(self) -> None:
        """Raises what the disk said in the meantime: it says it once."""
        if self._flush is not None:
            self._flush.result()


@contextlib.contextmanager
def on_disk(folder: Folder) -> Iterator[Path]:
    """A folder of this machine to write small files into, which are `folder`'s at the end."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="rlx-") as temporary:
        yield Path(temporary)
        folder.upload(Path(temporary))
