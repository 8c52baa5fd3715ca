"""A folder that appears in its place when all of it has been written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_core.checkpoint.manifest import fsync
from verl_core.config.errors import RunError, UserError


def check_target(out: Path) -> None:
    """Raises UserError for a target that something is in the way of."""
    if out.is_symlink():
        raise UserError(f"{out} is a link", "choose another --out, or name the folder that the link is to")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty", "choose another --out, or remove it")
    parent = next(path for path in out.absolute().parents if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{out} cannot be made: {parent} is not a folder that can be written", "choose another --out")


@contextmanager
def new_folder(out: Path, need_bytes: int) -> Iterator[Path]:
    """An empty folder beside `out` to write into, that is moved there on success and removed on failure.

    Raises RunError when the disk has less room than `need_bytes`, or fails.
    """
    temporary = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        _check_space(out, need_bytes)
        temporary.mkdir()
        yield temporary
        if out.is_dir():
            out.rmdir()
        temporary.rename(out)
        fsync(out.parent)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(
            f"cannot write {out}: {error.strerror or error}", "free some space or choose another --out"
        ) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check_space(out: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(out.parent).free
    if need_bytes > free:
        raise RunError(
            f"{out} needs {need_bytes:,} bytes, its disk has {free:,} free ({need_bytes - free:,} missing)",
            "free some space, choose another --out, or use --dtype bf16",
        )
