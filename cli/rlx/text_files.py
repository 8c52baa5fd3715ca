"""Text files that a user names: written whole or not at all, so that a full disk costs nobody what was there."""

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def taken(path: Path) -> bool:
    """Whether writing there needs leave: something is there, be it a symlink that leads nowhere. A stream (/dev/stdout,
    a pipe, a terminal) is there to be written. What cannot be looked at is for `write` to refuse."""
    return os.path.lexists(path) and not _is_stream(path)


def write(path: Path, text: str) -> None:
    """Write a draft beside the file and put it in its place; a symlink stays, and what it leads to is written. The mode
    of a file that was there stays. Raises OSError; then what was there is as it was."""
    if _is_stdout(path):
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    if _is_stream(path):
        path.write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(path))  # also of links in a circle, which Path.resolve refuses
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    draft = target.parent / f".rlx-{os.getpid()}.part"  # not the file's name and more, which may be too long
    try:
        draft.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def write_all(files: Mapping[Path, str]) -> None:
    """Write new files, each with its folders; one that ends with .sh becomes a program. Raises OSError; then no file
    and no folder is left that was not there before."""
    made: list[Path] = []
    try:
        for path, text in files.items():
            for folder in reversed([each for each in path.parents if not each.exists()]):
                folder.mkdir(exist_ok=True)
                made.append(folder)
            write(path, text)
            made.append(path)
            if path.suffix == ".sh":
                path.chmod(0o755)
    except BaseException:
        for each in reversed(made):
            with suppress(OSError):  # what somebody else put into a folder meanwhile keeps it
                each.rmdir() if each.is_dir() else each.unlink()
        raise


def _is_stream(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder."""
    regular = os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112, PTH113  (never raise, unlike Path's)
    return _is_stdout(path) or (os.path.exists(path) and not regular)  # noqa: PTH110


def _is_stdout(path: Path) -> bool:
    """Also where stdout is a file, which a draft must not replace: the command goes on printing to it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False
