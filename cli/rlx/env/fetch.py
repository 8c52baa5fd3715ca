"""Fetching locked files into rlx's cache folder, each verified by the lock's SHA-256.

A file lies in `<cache>/wheels/<sha256>/<name>` once it is whole; until then `<name>.part` beside it, and the next
attempt, or the next command, goes on where that one ends.
"""

import hashlib
import http.client
import queue
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from rlx.env.locked_files import LockedFile
from verl_core.config.errors import EnvError
from verl_core.config.files import cache_dir

CONNECTIONS = 4
ATTEMPTS = 3
TIMEOUT_S = 30.0
"""Longest silence of a server."""
GRACE_S = 1.0
"""How long what is under way may take to end after an interrupt; a server that is silent is not waited for longer."""
CHUNK = 1 << 20  # bytes
RANGE_ENDS_THERE = 416  # HTTP: the file has no byte at the place asked for


class WrongHash(Exception):
    """What arrived is not what the lock says."""


class Stopped(Exception):
    """Another file has failed, or the command was interrupted."""


def wheels_dir() -> Path:
    """Where fetched files are kept. Safe to delete."""
    return cache_dir() / "wheels"


def place_of(file: LockedFile) -> Path:
    return wheels_dir() / file.sha256 / file.filename


def digest_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def kept(file: LockedFile) -> bool:
    """Whether the file is in the cache, whole. Reads all of it; a damaged one is removed."""
    path = place_of(file)
    if not path.is_file():
        return False
    if digest_of(path) == file.sha256:
        return True
    path.unlink()
    return False


def fetch(files: Sequence[LockedFile], on_bytes: Callable[[int, str], None]) -> None:
    """Put every file into the cache. `on_bytes(bytes, filename)` follows the work from several threads.

    Raises EnvError for the first file that cannot be had; what has arrived is kept.
    """
    waiting: queue.SimpleQueue[LockedFile] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    for file in files:
        waiting.put(file)

    def work() -> None:
        while not stop.is_set():
            try:
                _fetch_one(waiting.get_nowait(), on_bytes, stop)
            except queue.Empty:
                return
            except BaseException as problem:
                ended.put(problem)
            else:
                ended.put(None)

    # Daemons, for a server that is silent. One that is still at work when the interpreter ends can crash it (SIGSEGV).
    threads = [threading.Thread(target=work, name="fetch", daemon=True) for _ in range(min(CONNECTIONS, len(files)))]
    try:
        for thread in threads:
            thread.start()
        for _ in files:
            if (problem := ended.get()) is not None:
                raise problem
    finally:
        stop.set()
        until = time.monotonic() + GRACE_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))


def _fetch_one(file: LockedFile, on_bytes: Callable[[int, str], None], stop: threading.Event) -> None:
    target = place_of(file)
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    reason: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            _download(file, part, on_bytes, stop)
            part.replace(target)
            return
        except WrongHash as problem:
            part.unlink()
            reason = problem
        except (ConnectionError, TimeoutError, http.client.HTTPException, URLError) as problem:
            reason = problem
    host = urlsplit(file.url).netloc
    if isinstance(reason, WrongHash):
        raise EnvError(
            f"{file.filename} from {host} is not the file that the lock names: its SHA-256 is {reason}, the lock's is "
            f"{file.sha256}",
            "something between here and the index changes files (a proxy, a mirror); nothing was packed",
        )
    raise EnvError(
        f"{file.filename} cannot be fetched from {host}: {getattr(reason, 'reason', None) or reason}",
        "run the same command again when there is a network: what has arrived is kept",
    )


def _download(file: LockedFile, part: Path, on_bytes: Callable[[int, str], None], stop: threading.Event) -> None:
    """Bring `part` to its end and verify it."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(file.url, headers={"User-Agent": "rlx", "Range": f"bytes={have}-"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            goes_on = answer.status == http.client.PARTIAL_CONTENT  # else the server sends all of it again
            with part.open("ab" if goes_on else "wb") as stream:
                while chunk := answer.read1(CHUNK):
                    if stop.is_set():
                        raise Stopped
                    stream.write(chunk)
                    stream.flush()
                    on_bytes(len(chunk), file.filename)
            if answer.length:  # bytes that were announced and did not come
                raise ConnectionError("the connection ended early")
    except HTTPError as problem:
        if problem.code != RANGE_ENDS_THERE or not have:
            raise
    if (found := _digest_unless(stop, part)) != file.sha256:
        raise WrongHash(found)


def _digest_unless(stop: threading.Event, path: Path) -> str:
    """As `digest_of`. Raises Stopped."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            if stop.is_set():
                raise Stopped
            digest.update(block)
    return digest.hexdigest()
