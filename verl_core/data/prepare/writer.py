"""Rows to `<split>.parquet`, each file whole or not at all, and the manifest last.

All files are written under temporary names first; only when every one is on the disk do they take their names, one
after the other. So a process that is killed leaves the old files or the new ones, and `--validate` tells a mixture by
its hashes. One process at a time writes into a folder: others wait. (Where a file system has no locks, they do not.)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl_core.config.errors import RunError, UserError
from verl_core.config.process import NO_SPACE
from verl_core.data.prepare import manifest as manifests
from verl_core.data.prepare.manifest import Manifest
from verl_core.data.prepare.prepared import Prepared, Row, Wanted

_TEMPORARY = ".rlx-{name}.tmp"


def write(
    wanted: Wanted, prepared: Prepared, out: Path, written: Callable[[str], None], waiting: Callable[[], None]
) -> tuple[Manifest, bool]:
    """Writes every split and the manifest; returns the manifest, and whether anything was other than before.

    `written(split)` is called after each file, `waiting()` when another process writes into `out` first. The same rows
    give the same bytes; files that have them already are left alone. A split of an earlier time that is no longer made
    is removed. Raises UserError when `out` cannot be written, and RunError when the disk is full: then all files are as
    they were.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _alone(out, waiting), _temporaries(out):
            return _write(wanted, prepared, out, written)
    except OSError as e:
        if e.errno in NO_SPACE:
            raise RunError(f"no space left for {out}", "free some space, or --out DIR on another disk") from e
        raise UserError(f"{out} cannot be written: {e.strerror or e}", hint="give another folder: --out DIR") from e


def _write(wanted: Wanted, prepared: Prepared, out: Path, written: Callable[[str], None]) -> tuple[Manifest, bool]:
    before = manifests.read(out)
    files = {}
    for split, rows in prepared.splits.items():
        files[split] = _write_split(split, _temporary(out / f"{split}.parquet"), rows) | {"file": f"{split}.parquet"}
        written(split)
    manifest = manifests.manifest_of(wanted, prepared, files)
    last = _temporary(out / manifests.NAME)
    last.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _sync(last)
    changed = [_take_name(out / f["file"]) for f in files.values()]
    stale = {f["file"] for f in (before or {"files": {}})["files"].values()} - {f["file"] for f in files.values()}
    for name in stale:
        (out / Path(name).name).unlink(missing_ok=True)
    return manifest, any([*changed, bool(stale), _take_name(out / manifests.NAME)])


def _write_split(split: str, path: Path, rows: list[Row]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.Table.from_pylist(rows), path)
    except pa.ArrowException as e:
        said = f"the rows of {split} do not fit into a table: {e}"
        raise UserError(said, "give each column values of one type, and no empty objects") from e
    _sync(path)
    with path.open("rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    return {"rows": len(rows), "bytes": path.stat().st_size, "sha256": digest}


def _take_name(path: Path) -> bool:
    """The temporary file becomes `path`, unless `path` holds the same bytes; whether it did."""
    temporary = _temporary(path)
    if path.is_file() and _same(path, temporary):
        temporary.unlink()
        return False
    temporary.replace(path)
    return True


def _same(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as a, other.open("rb") as b:
        return hashlib.file_digest(a, "sha256").digest() == hashlib.file_digest(b, "sha256").digest()


def _temporary(path: Path) -> Path:
    return path.with_name(_TEMPORARY.format(name=path.name))


def _sync(path: Path) -> None:
    with path.open("rb") as f:
        os.fsync(f.fileno())


@contextmanager
def _temporaries(out: Path) -> Iterator[None]:
    """Removes temporary files, of an earlier process that was killed before and of this one after."""
    _remove_temporaries(out)
    try:
        yield
    finally:
        _remove_temporaries(out)


def _remove_temporaries(out: Path) -> None:
    for path in out.glob(_TEMPORARY.format(name="*")):
        path.unlink(missing_ok=True)


@contextmanager
def _alone(out: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the folder's lock, which ends with the process however that ends."""
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # some network file systems lock no folders
            pass
        yield
    finally:
        os.close(descriptor)
