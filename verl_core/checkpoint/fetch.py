"""A checkpoint of an object store on this machine's disk, for what reads files: a merge, an evaluation."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from verl_core.checkpoint.manifest import MANIFEST, Piece, read_manifest
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.owner import host, runs_here
from verl_core.checkpoint.pieces import Measured
from verl_core.checkpoint.side_by_side import side_by_side
from verl_core.config.errors import RunError, UserError

log = logging.getLogger(__name__)

_THREADS = 4
_COPY = re.compile(r"rlx-copy-(.+)-(\d+)-[^-]+")  # host, process id


def fetched(checkpoint: ObjectPath, parts: tuple[str, ...]) -> Path:
    """A copy of the manifest and of the pieces below `parts`, see `copied`. Raises UserError naming the pieces whose
    bytes are not those that were written."""
    pieces = dict(read_manifest(checkpoint).below(parts))
    folder, arrived = copied(checkpoint, {name: piece.bytes for name, piece in pieces.items()})
    if damaged := [f"{name} is damaged (checksum differs)" for name in pieces if arrived[name] != pieces[name]]:
        raise UserError(f"{checkpoint}: {'; '.join(damaged)}", "give another global_step_N of the run")
    (folder / MANIFEST).write_text((checkpoint / MANIFEST).read_text(), encoding="utf-8")
    return folder


def copied(source: ObjectPath, sizes: Mapping[str, int]) -> tuple[Path, dict[str, Piece]]:
    """These objects below `source` in a temporary folder that goes when this process ends, and what has arrived; the
    folder of a process that was killed goes with the next call. `sizes` in bytes. Raises RunError when there is no room
    for them."""
    need, above = sum(sizes.values()), Path(tempfile.gettempdir())
    _remove_left(above)
    if need > (free := shutil.disk_usage(above).free):
        raise RunError(
            f"{source}: a copy needs {need:,} bytes, {above} has {free:,} free ({need - free:,} missing)",
            "name a folder with more room by TMPDIR",
        )
    folder = Path(tempfile.mkdtemp(prefix=f"rlx-copy-{host()}-{os.getpid()}-")) / source.name
    folder.mkdir()
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    log.info("fetching %s: %s bytes to %s", source, f"{need:,}", folder)

    def fetch(name: str, go_on: Callable[[], None]) -> Piece:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            measured = Measured(file)
            for block in (source / name).read_blocks():
                go_on()
                measured.write(block)
        return measured.piece()

    return folder, dict(zip(sizes, side_by_side(fetch, sizes, _THREADS), strict=True))


def _remove_left(above: Path) -> None:
    for path in above.glob("rlx-copy-*"):
        match = _COPY.fullmatch(path.name)
        if match and match[1] == host() and not runs_here(int(match[2])):
            shutil.rmtree(path, ignore_errors=True)
