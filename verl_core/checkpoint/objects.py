"""A folder on an object store: as much of pathlib's Path as checkpoints need, over fsspec.

Objects appear whole when they are closed and cannot be renamed. What is written is measured on its way, since reading
it back would bring every byte over the network once more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from verl_core.checkpoint.object_errors import worded
from verl_core.checkpoint.pieces import Measured, Piece, Sink
from verl_core.config.errors import UserError
from verl_core.config.urls import NO_CREDENTIALS, holds_credentials, is_url

_THREADS = 8
_AHEAD_BYTES = 256 << 20


class ObjectPath:
    """`url` without a slash at its end. `written`: the pieces written below the path that this one was made from by
    `/`, by their names below that. Each method raises RunError when the store refuses or cannot be reached, EnvError
    when the package for its protocol is missing, and, where said, FileNotFoundError."""

    def __init__(self, url: str, above: ObjectPath | None = None):
        self.url = url.rstrip("/")
        self.base: str = above.base if above else self.url
        self.written: dict[str, Piece] = above.written if above else {}

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{name}", self)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"ObjectPath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def exists(self) -> bool:
        with worded(self.url):
            try:
                self._files.info(self._key)
            except FileNotFoundError:
                return False
        return True

    is_file = exists

    def is_dir(self) -> bool:
        return bool(self.sizes())

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Nothing: a folder is the beginning of names."""

    def read_text(self, encoding: str = "utf-8") -> str:
        """Raises FileNotFoundError."""
        return self.read_bytes().decode(encoding)

    def read_bytes(self, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes from `start` to before `end`. Raises FileNotFoundError."""
        with worded(self.url):
            return bytes(self._files.cat_file(self._key, start=start, end=end))

    def read_blocks(self, block_bytes: int = 16 << 20) -> Iterator[bytes]:
        """Raises FileNotFoundError."""
        with worded(self.url):
            size = self._files.info(self._key)["size"]
        for start in range(0, size, block_bytes):
            yield self.read_bytes(start, min(size, start + block_bytes))

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        with self.writing() as file:
            file.write(text.encode(encoding))

    @contextlib.contextmanager
    def writing(self) -> Iterator[Measured]:
        """The object to write from its first byte to its last; it appears at the end, on an exception not at all."""
        with worded(self.url, writing=True):
            file = self._files.open(self._key, "wb")
        measure = Measured(_Worded(file, self.url))
        try:
            yield measure
            with worded(self.url, writing=True):
                file.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            file.closed = True  # closing it later would complete the object
            raise
        self.written[self.url.removeprefix(f"{self.base}/")] = measure.piece()

    def upload(self, folder: Path) -> None:
        """Writes the files below a local folder here, under their names."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = self / path.relative_to(folder).as_posix()
            with path.open("rb") as file, target.writing() as out:
                shutil.copyfileobj(file, out)

    def sizes(self) -> dict[str, int]:
        """Name -> bytes of every object below; none where there is nothing."""
        with worded(self.url):
            try:
                found: dict[str, Any] = self._files.find(self._key, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._key) + 1
        return {name[start:]: info["size"] for name, info in found.items() if name.startswith(f"{self._key}/")}

    def delete(self, names: list[str]) -> None:
        """Removes these objects below; one that is not there is none to remove. One by one: fsspec reads a list of them
        as patterns."""

        def remove(name: str) -> None:
            with worded(self.url), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._key}/{name}")

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(remove, names))

    @property
    def _files(self) -> Any:
        return _file_system(self.url)[0]

    @property
    def _key(self) -> str:
        return _file_system(self.url)[1].rstrip("/")


def _file_system(url: str) -> tuple[Any, str]:
    """Of fsspec, which keeps one for all paths of a protocol; no listing is taken from its memory."""
    import fsspec

    return fsspec.core.url_to_fs(url, use_listings_cache=False)


class _Worded:
    """The stream of an object, whose failures are told as the object's."""

    def __init__(self, file: Any, url: str):
        self.file, self.url = file, url

    def write(self, data: Any) -> int:
        with worded(self.url, writing=True):
            return int(self.file.write(data))


def read_blocks(path: Folder, block_bytes: int = 4 << 20) -> Iterator[bytes]:
    """The bytes of a file or an object."""
    if isinstance(path, ObjectPath):
        yield from path.read_blocks()
        return
    with path.open("rb") as file:
        while block := file.read(block_bytes):
            yield block


Folder = Path | ObjectPath
"""Where checkpoints are: on a disk or on an object store."""


def folder_of(place: str | Path | ObjectPath) -> Folder:
    """The folder at a path or a URL. Raises UserError for one with credentials, which messages would show."""
    if isinstance(place, str) and is_url(place):
        if holds_credentials(place):
            raise UserError(NO_CREDENTIALS, "leave them out of the URL")
        return ObjectPath(place)
    return Path(place) if isinstance(place, str) else place


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
