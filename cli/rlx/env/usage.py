"""What environments take and who uses them: bytes that they have alone and share, processes that run in them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
ACTIVE = b"VIRTUAL_ENV="


class Size(NamedTuple):
    """Bytes on disk, each file once."""

    total: int
    own: int
    """Of files that have no name elsewhere: what removing the folders frees."""


def measure(folders: Iterable[Path]) -> Size:
    """Size of the folders taken as one. Files shared with uv's cache or other environments are hard links."""
    total = own = 0
    shared: dict[int, int] = {}  # inode -> names not met yet
    for stat in (stat for folder in folders for stat in _files(str(folder))):
        if stat.st_nlink == 1:
            total += stat.st_size
            own += stat.st_size
            continue
        left = shared.get(stat.st_ino, stat.st_nlink)
        total += stat.st_size if left == stat.st_nlink else 0
        own += stat.st_size if left == 1 else 0
        shared[stat.st_ino] = left - 1
    return Size(total, own)


def _files(top: str) -> Iterator[os.stat_result]:
    waiting = [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        yield entry.stat(follow_symlinks=False)
        except OSError:  # removed since it was listed, or not ours to read
            continue


def users(folder: Path) -> list[int]:
    """Ids of the processes of this user (of all users, for root) that run in the environment: its interpreter or a
    program of it, a library loaded from it, a shell with it active. Empty where there is no /proc."""
    inside = os.fsencode(folder.resolve()) + b"/"
    own = os.getpid()
    return sorted(pid for pid in _processes() if pid != own and _uses(PROC / str(pid), inside))


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.glob("[0-9]*"))


def _uses(process: Path, inside: bytes) -> bool:
    words = _read(process / "cmdline").split(b"\0")
    variables = _read(process / "environ").split(b"\0")
    active = [word.removeprefix(ACTIVE) for word in variables if word.startswith(ACTIVE)]
    return (
        any(_real_folder(word).startswith(inside) for word in words if word.startswith(b"/"))
        or any(os.path.realpath(folder) + b"/" == inside for folder in active)
        or _link(process / "exe").startswith(inside)
        or _link(process / "cwd").startswith(inside)
        or inside in _read(process / "maps")
    )


def _real_folder(path: bytes) -> bytes:
    """The folder of a file, with a slash at its end and without the symbolic links on the way to it. The file itself
    may be one: `bin/python` leads out of its environment."""
    return os.path.realpath(os.path.dirname(path)) + b"/"  # noqa: PTH120  (bytes)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # ended, or another user's
        return b""


def _link(path: Path) -> bytes:
    """What a link of /proc leads to, with a slash at its end as a folder has."""
    try:
        return os.fsencode(path.readlink()) + b"/"
    except OSError:
        return b""
