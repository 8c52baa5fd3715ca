"""The folder of a run's checkpoints. A checkpoint appears in one rename, after every byte of it is on the disk."""

import errno
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from verl_core.checkpoint.disk import DiskFull
from verl_core.checkpoint.find import EVERYTHING, is_whole, newest_whole
from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.inspect import step_of, survey
from verl_core.checkpoint.manifest import (
    MANIFEST,
    NoManifest,
    Score,
    content_faults,
    fsync,
    read_manifest,
    write_manifest,
)
from verl_core.checkpoint.owner import host, runs_here
from verl_core.checkpoint.pieces import Piece
from verl_core.checkpoint.retention import Retention
from verl_core.checkpoint.saves import LATEST, Saves
from verl_core.config.errors import RunError
from verl_core.config.process import NO_SPACE

log = logging.getLogger(__name__)

_UNFINISHED = re.compile(r"\.tmp-(global_step_\d+)-(.+)-(\d+)-[0-9a-f]{8}")  # step, host, process id
_TRASH = re.compile(r"\.trash-global_step_\d+-[0-9a-f]{8}")
_DISK = (*NO_SPACE, errno.EFBIG, errno.EROFS, errno.EIO)
"""Other OSErrors of a save, e.g. a lost connection, are not the disk's."""


class CheckpointStore(Saves[Path]):
    """See `Saves`; `folder` is a run's `checkpoints/`."""

    _writing: ClassVar[set[Path]] = set()
    """Of all stores of this process, to tell them from a dead one's with its number."""

    def __init__(self, folder: Path | str, keep: int | Retention | None = None):
        super().__init__(Path(folder), keep)
        self._recovered = False

    def recover(self) -> None:
        """Clears what killed saves of this run left behind; finishes one that lacked only its last rename.

        Called before `latest()` when a run resumes; the first `begin` does it otherwise.
        """
        self._recovered = True
        if not self.folder.is_dir():
            return
        (self.folder / f".{LATEST}.tmp").unlink(missing_ok=True)
        for path in sorted(self.folder.iterdir()):
            if _TRASH.fullmatch(path.name):
                _remove(path)
            elif (match := _UNFINISHED.fullmatch(path.name)) and not self._being_written(path, match):
                target = self.folder / match[1]
                if is_whole(path) and not target.exists():
                    path.rename(target)
                    self._point_to(target.name)
                    log.warning("finished the interrupted save of %s", target)
                else:
                    _remove(path)

    def begin(self, step: int, need_bytes: int | None = None) -> Path:
        """A new folder to write the checkpoint of `step` into; nothing sees it before `commit`.

        `need_bytes` is the size to come (`state_bytes` of every role); None: not known. Raises RunError when the disk
        has less than that, or less than the newest checkpoint has, or when the folder cannot be made.
        """
        if not self._recovered:
            self.recover()
        path = self.folder / f".tmp-global_step_{step}-{host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._check_space(step, need_bytes)
            path.mkdir()
        except OSError as error:
            raise RunError(
                f"checkpoint of step {step}: cannot write in {self.folder}: {error.strerror}",
                "free the folder, or set trainer.default_local_dir to one that can be written",
            ) from error
        self._open[step] = path
        self._writing.add(path)
        return path

    def _seal(self, step: int, serial: int, score: Score | None, pieces: Mapping[str, Piece]) -> Path:
        temporary, target = self._open[step], self.folder / f"global_step_{step}"
        aside = None
        try:
            write_manifest(temporary, step, serial, score)
            aside = self._move_aside(target) if os.path.lexists(target) else None
            temporary.rename(target)
        except OSError as error:
            if aside:
                aside.rename(target)
            raise self._failed(step, error) from error
        fsync(self.folder)
        if aside and _TRASH.fullmatch(aside.name):
            _remove(aside)
        return target

    def abort(self, step: int) -> None:
        if path := self._open.pop(step, None):
            _remove(path)

    @contextmanager
    def clearing_up(self, step: int, need_bytes: int | None = None) -> Iterator[None]:
        """Around what is done between `begin` and `commit`: `abort` on an exception, worded when the disk raised it."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in _DISK):
                raise self._failed(step, error, need_bytes) from error
            self.abort(step)
            raise

    def latest(self) -> Path | None:
        """The newest checkpoint that is whole and undamaged, or None; each newer one is named in a warning with its
        fault. Reads every byte of it: training on from a flipped bit would ruin the run silently."""
        passing_over: set[Folder] = set()
        while (newest := newest_whole(self.folder, passing_over)) is not None:
            if not (found := content_faults(newest, read_manifest(newest), EVERYTHING)):
                return self.folder / newest.name
            log.warning("skipped %s: %s", newest, "; ".join(found))
            passing_over.add(newest)
        return None

    def _failed(self, step: int, error: OSError | DiskFull, need_bytes: int | None = None) -> RunError:
        """Clears the failed save up and words its error; on a full disk with the number of bytes missing."""
        written = sum(path.stat().st_size for path in self._open[step].rglob("*") if path.is_file())
        self.abort(step)
        if isinstance(error, OSError) and error.errno not in NO_SPACE:
            return RunError(f"checkpoint of step {step}: cannot write in {self.folder}: {error.strerror}")
        free = shutil.disk_usage(self.folder).free
        missing = max(1, self._expected(need_bytes, at_least=written + 1) - free)
        return RunError(
            f"checkpoint of step {step}: the disk of {self.folder} is full, {missing:,} bytes are missing; "
            "earlier checkpoints are intact",
            "free some space, then go on with --resume",
        )

    def _expected(self, need_bytes: int | None, at_least: int = 0) -> int:
        # `need_bytes` is of tensors; the newest checkpoint also has all else.
        newest = max((manifest.total_bytes for _, manifest in survey(self.folder)[0][-1:]), default=0)
        return max(at_least, newest, need_bytes or 0)

    def _check_space(self, step: int, need_bytes: int | None) -> None:
        need_bytes = self._expected(need_bytes)
        free = shutil.disk_usage(self.folder).free
        if need_bytes > free:
            raise RunError(
                f"checkpoint of step {step} needs {need_bytes:,} bytes, {self.folder} has {free:,} free "
                f"({need_bytes - free:,} missing)",
                "free some space, or set trainer.max_ckpt_to_keep lower, then go on with --resume",
            )

    def _being_written(self, path: Path, match: re.Match[str]) -> bool:
        # A run has one writer: what another machine left is of a killed job. On this machine its process is asked.
        if match[2] != host():
            return False
        pid = int(match[3])
        return path in self._writing if pid == os.getpid() else runs_here(pid)

    def _remove_step(self, name: str) -> None:
        _remove(self._to_trash(self.folder / name))

    def _move_aside(self, target: Path) -> Path:
        why = f"is not of rlx (no {MANIFEST})"
        if (target / MANIFEST).exists():
            try:
                step = read_manifest(target).step
            except NoManifest:
                return self._to_trash(target)
            if step == step_of(target):
                return self._to_trash(target)
            why = f"is a copy of the checkpoint of step {step}"
        foreign = target.with_name(f"{target.name}.foreign-{uuid.uuid4().hex[:8]}")
        log.warning("%s %s: it is kept as %s", target, why, foreign.name)
        return target.rename(foreign)

    def _to_trash(self, path: Path) -> Path:
        # Renamed first, so that a kill while files are being deleted leaves no folder that looks like a checkpoint.
        return path.rename(path.with_name(f".trash-{path.name}-{uuid.uuid4().hex[:8]}"))


def _remove(path: Path) -> None:
    try:
        if path.is_symlink():  # by which a person has moved a checkpoint to another disk, where it stays
            path.unlink()
        else:
            shutil.rmtree(path)
    except OSError as error:
        log.warning("could not remove %s: %s", path, error)
