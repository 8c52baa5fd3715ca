"""The lock beside a folder: one process makes, fills or removes it at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rlx import ui
from verl_core.config.errors import EnvError

_held: set[int] = set()


def inherited() -> tuple[int, ...]:
    """File descriptors that a child at work on the folder must keep open. Then the lock lasts as long as the child,
    which goes on when this process is killed."""
    return tuple(_held)


@contextmanager
def held(folder: Path, variable: str = "RLX_ENVS") -> Iterator[None]:
    """Hold `<folder>.lock`, waiting for whoever holds it; the kernel lets go of it when the process and the
    children that have inherited it end, however they end. EnvError, naming the
    variable that moves the folder, when the file cannot be made or locked."""
    while True:
        with _opened(folder, variable) as handle:
            if not _taken_at_once(handle, folder, variable):
                ui.talk(f"another rlx is making {folder.name}: waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_current(handle, folder):
                _held.add(handle.fileno())
                try:
                    yield
                finally:
                    _held.discard(handle.fileno())
                return


@contextmanager
def held_for_removal(folder: Path) -> Iterator[bool]:
    """Hold the lock and take its file away at the end; False, and nothing happens, when another process holds it."""
    with _opened(folder, "RLX_ENVS") as handle:
        if not _taken_at_once(handle, folder, "RLX_ENVS"):
            yield False
            return
        yield True
        _path(folder).unlink(missing_ok=True)


def _opened(folder: Path, variable: str) -> IO[str]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return _path(folder).open("w")
    except OSError as problem:
        raise EnvError(
            f"{folder.parent} cannot be written: {problem.strerror}",
            f"{variable}=/a/writable/folder moves it",
        ) from problem


def _taken_at_once(handle: IO[str], folder: Path, variable: str) -> bool:
    """Take the lock; False when somebody holds it. EnvError on a file system without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        raise EnvError(
            f"files in {folder.parent} cannot be locked: {problem.strerror}",
            f"{variable}=/a/folder/on/another/disk moves it",
        ) from problem
    return True


def _is_current(handle: IO[str], folder: Path) -> bool:
    """Whether the open file still is the one at its path: a removal takes it away, and then it locks nobody out."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), _path(folder).stat())
    except FileNotFoundError:
        return False


def _path(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")
