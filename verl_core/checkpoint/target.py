"""A folder that appears in its place when all of it has been written."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_core.checkpoint.inspect import step_of
from verl_core.checkpoint.manifest import MANIFEST, fsync
from verl_core.config.errors import RunError, UserError
from verl_core.config.process import NO_SPACE


def check_target(out: Path) -> None:
    """Raises UserError for a target that something is in the way of."""
    if out.name in ("", ".."):
        raise UserError(f"{out} is not the name of a folder to make", "choose another --out")
    try:
        if out.is_symlink():
            raise UserError(f"{out} is a link", "choose another --out, or name the folder that the link is to")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} exists and is not empty", "choose another --out, or remove it")
        if out.is_mount():
            raise UserError(f"{out} is where a disk is mounted, it cannot be replaced", f"--out {out / 'model'}")
        above = Path(os.path.realpath(out)).parents
        if checkpoint := next((path for path in above if step_of(path) >= 0 and (path / MANIFEST).is_file()), None):
            raise UserError(f"{out} lies in the checkpoint {checkpoint}, and would go with it", "choose another --out")
        parent = next(path for path in out.absolute().parents if os.path.lexists(path))
        _partial(out).exists()  # its name may be too long where that of `out` is not
    except OSError as error:
        raise UserError(f"{out} cannot be made: {error.strerror or error}", "choose another --out") from error
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{out} cannot be made: {parent} is not a folder that can be written", "choose another --out")


@contextmanager
def new_folder(out: Path, need_bytes: int) -> Iterator[Path]:
    """An empty folder beside `out` to write into, that is moved there on success and removed on failure.

    Raises UserError while another process writes there; RunError when the disk has less room than `need_bytes`, fails,
    or is full: with the number of bytes missing.
    """
    temporary = _partial(out)
    try:
        check_space(out, need_bytes)
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(exist_ok=True)
        with _held(temporary):
            try:
                _empty(temporary)  # of a process that was killed
                yield temporary
                if out.is_dir():
                    out.rmdir()
                temporary.rename(out)
            except BaseException as error:
                written = _bytes_in(temporary)
                shutil.rmtree(temporary, ignore_errors=True)
                if isinstance(error, OSError):
                    raise _failed(out, error, max(need_bytes, written + 1)) from error
                raise
        fsync(out.parent)
    except BlockingIOError:
        raise UserError(f"another rlx is writing {out}", "wait until it ends, or choose another --out") from None
    except OSError as error:
        raise _failed(out, error, need_bytes) from error


def check_space(out: Path, need_bytes: int) -> None:
    """Raises RunError when the disk on which `out` will be has less room, with what a killed process has left there."""
    free = _free_bytes(out) + _bytes_in(_partial(out))
    if need_bytes > free:
        raise RunError(
            f"{out} needs {need_bytes:,} bytes, its disk has {free:,} free ({need_bytes - free:,} missing)",
            "free some space, choose another --out, or use --dtype bf16",
        )


def _failed(out: Path, error: OSError, need_bytes: int) -> RunError:
    why, hint = error.strerror or str(error), "choose another --out"
    if error.errno in NO_SPACE:
        missing = max(1, need_bytes - _free_bytes(out))
        why, hint = f"its disk is full, {missing:,} bytes are missing", "free some space or choose another --out"
    elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        why = "another has put something there meanwhile"
    return RunError(f"cannot write {out}: {why}", hint)


def _free_bytes(out: Path) -> int:
    return shutil.disk_usage(next(path for path in out.absolute().parents if path.exists())).free


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _partial(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError where another process holds the folder. A kill lets go of it; a file system without such
    locks holds nothing."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise BlockingIOError(f"{folder} was another's, who has just ended")
        yield
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
