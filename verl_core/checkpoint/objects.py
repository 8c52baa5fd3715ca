"""A folder on an object store: as much of pathlib's Path as checkpoints need, over fsspec.

Objects appear whole when they are closed and cannot be renamed. What is written is measured on its way, since reading
it back would bring every byte over the network once more.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from verl_core.checkpoint.object_errors import no_bucket, worded
from verl_core.checkpoint.pieces import Measured, Piece
from verl_core.config.urls import url_extras

_THREADS = 8
_GCSFS = logging.getLogger("gcsfs")
"""It logs each failure with its traceback, which would go to stderr where nobody has set up logging."""


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
        """Name -> bytes of every object below; none where there is nothing. RunError also for a bucket that is not
        there."""
        with worded(self.url):
            try:
                found: dict[str, Any] = self._files.find(self._key, detail=True)
            except FileNotFoundError as error:  # of a store with buckets, which have no folders that could be missing
                if url_extras(self.url):
                    raise no_bucket(self.url) from error
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

    if not _GCSFS.handlers:
        _GCSFS.addHandler(logging.NullHandler())
    return fsspec.core.url_to_fs(url, use_listings_cache=False)


class _Worded:
    """The stream of an object, whose failures are told as the object's."""

    def __init__(self, file: Any, url: str):
        self.file, self.url = file, url

    def write(self, data: Any) -> int:
        with worded(self.url, writing=True):
            return int(self.file.write(data))
