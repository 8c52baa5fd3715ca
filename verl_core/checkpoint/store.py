"""The folder that holds a run's checkpoints. A checkpoint appears in one rename, after every byte of it is on the disk."""

import errno
import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_core.checkpoint.manifest import (
    Manifest,
    NoManifest,
    faults,
    fsync,
    read_manifest,
    write_manifest,
    write_text_durably,
)
from verl_core.config.errors import RunError, UserError

log = logging.getLogger(__name__)

LATEST = "latest"
_STEP = re.compile(r"global_step_(\d+)")
_UNFINISHED = re.compile(r"\.tmp-(global_step_\d+)-(.+)-(\d+)-[0-9a-f]{8}")  # step, host, process id
_TRASH = re.compile(r"\.trash-global_step_\d+-[0-9a-f]{8}")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class CheckpointStore:
    """Checkpoints under `folder` (a run's `checkpoints/`), of which `keep` newest stay (None: all).

    The writer is one process of a run: `recover()` once at start, then for each save `begin`, let every rank write below
    the folder it returns, `commit`; or `with store.saving(step) as folder:`, which also clears up after a failure.
    Readers may look at any time. Newest means written last, so after going back to an earlier step its successors count.
    """

    def __init__(self, folder: Path | str, keep: int | None = None):
        if keep is not None and keep < 1:
            raise UserError(
                f"trainer.max_ckpt_to_keep is {keep}, but at least 1 checkpoint is kept", "use null for all"
            )
        self.folder = Path(folder)
        self.keep = keep
        self._open: dict[int, Path] = {}

    def recover(self) -> None:
        """Clears what killed saves of this run left behind; finishes one that lacked only its last rename."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if _TRASH.fullmatch(path.name):
                _remove(path)
            elif (match := _UNFINISHED.fullmatch(path.name)) and not self._being_written(path, match):
                target = self.folder / match[1]
                if _is_whole(path) and not target.exists():
                    path.rename(target)
                    self._point_to(target)
                    log.warning("finished the interrupted save of %s", target)
                else:
                    _remove(path)

    def begin(self, step: int, need_bytes: int | None = None) -> Path:
        """A new folder to write the checkpoint of `step` into; nothing sees it before `commit`.

        `need_bytes` is the size to come (`state_bytes` of every role); None: that of the newest checkpoint. Raises
        RunError when the disk has less than that, or when the folder cannot be made.
        """
        path = self.folder / f".tmp-global_step_{step}-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
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
        return path

    def commit(self, step: int) -> Path:
        """Makes the folder of `begin(step)` a checkpoint and returns its final path; then removes the oldest beyond `keep`.

        Raises RunError when the disk is full, leaving every earlier checkpoint as it was.
        """
        temporary, target = self._open[step], self.folder / f"global_step_{step}"
        present = self._whole()
        if ahead := [manifest.step for _, manifest in present if manifest.step > step]:
            log.warning("checkpoint of step %d is written after that of step %d", step, max(ahead))
        serial = 1 + max((manifest.serial for _, manifest in present), default=0)
        try:
            write_manifest(temporary, step, serial)
        except OSError as error:
            raise self._failed(step, error) from error
        replaced = self._to_trash(target) if target.exists() else None
        temporary.rename(target)
        del self._open[step]
        fsync(self.folder)
        self._point_to(target)
        if replaced:
            _remove(replaced)
        self._prune(target)
        return target

    def abort(self, step: int) -> None:
        """Removes what a failed save of `step` has written; earlier checkpoints stay."""
        if path := self._open.pop(step, None):
            _remove(path)

    @contextmanager
    def saving(self, step: int, need_bytes: int | None = None) -> Iterator[Path]:
        """`begin` on entry, `commit` on success, `abort` on an exception."""
        folder = self.begin(step, need_bytes)
        try:
            yield folder
        except OSError as error:
            raise self._failed(step, error, need_bytes) from error
        except BaseException:
            self.abort(step)
            raise
        self.commit(step)

    def latest(self) -> Path | None:
        """The newest whole checkpoint, or None. Each newer one that is not whole is named in a warning."""
        whole, broken = _survey(self.folder)
        newest = whole[-1] if whole else None
        for path, fault in broken:
            if newest is None or _step_of(path) > newest[1].step:
                log.warning("skipped %s: %s", path, fault)
        return newest[0] if newest else None

    def _failed(self, step: int, error: OSError, need_bytes: int | None = None) -> RunError:
        """Clears the failed save up and words its error; on a full disk with the number of bytes missing."""
        written = sum(path.stat().st_size for path in self._open[step].rglob("*") if path.is_file())
        self.abort(step)
        if error.errno not in NO_SPACE:
            return RunError(f"checkpoint of step {step}: cannot write in {self.folder}: {error.strerror}")
        free = shutil.disk_usage(self.folder).free
        missing = max(1, self._expected(need_bytes, at_least=written + 1) - free)
        return RunError(
            f"checkpoint of step {step}: the disk of {self.folder} is full, {missing:,} bytes are missing; "
            "earlier checkpoints are intact",
            "free some space, then go on with --resume",
        )

    def _expected(self, need_bytes: int | None, at_least: int = 0) -> int:
        newest = max((manifest.total_bytes for _, manifest in self._whole()[-1:]), default=0)
        return max(at_least, newest if need_bytes is None else need_bytes)

    def _point_to(self, target: Path) -> None:
        try:
            write_text_durably(self.folder / LATEST, target.name + "\n")
        except OSError as error:  # a convenience for people and scripts: `latest()` does not read it
            log.warning("could not write %s: %s", self.folder / LATEST, error)

    def _whole(self) -> list[tuple[Path, Manifest]]:
        return _survey(self.folder)[0]

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
        if match[2] != _host():
            return False
        if (pid := int(match[3])) == os.getpid():
            return path in self._open.values()
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _prune(self, written: Path) -> None:
        if self.keep is None:
            return
        others = [path for path, _ in self._whole() if path != written]
        for path in others[: max(0, len(others) + 1 - self.keep)]:
            try:
                _remove(self._to_trash(path))
            except OSError as error:
                log.warning("could not remove the old checkpoint %s: %s", path, error)

    def _to_trash(self, path: Path) -> Path:
        # Renamed first, so that a kill while files are being deleted leaves no folder that looks like a checkpoint.
        return path.rename(path.with_name(f".trash-{path.name}-{uuid.uuid4().hex[:8]}"))


def find_checkpoint(source: Path | str) -> Path:
    """The checkpoint meant by a run directory, its `checkpoints` folder (their newest whole one) or a `global_step_N`.

    Raises UserError that names the missing pieces of a broken checkpoint, or lists what the folder holds instead.
    """
    source = Path(source).expanduser()
    if not source.is_dir():
        raise UserError(f"{source} is not a folder", "give a run directory, its checkpoints folder or a global_step_N")
    if _STEP.fullmatch(source.name) or (source / "manifest.json").exists():
        require_whole(source)
        return source
    folder = source / "checkpoints" if (source / "checkpoints").is_dir() else source
    if newest := CheckpointStore(folder).latest():
        return newest
    if broken := _survey(folder)[1]:
        raise UserError(f"no whole checkpoint in {folder}: " + "; ".join(f"{p.name}: {f}" for p, f in broken))
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    listing = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"
    raise UserError(
        f"no checkpoint in {folder}; it holds {listing}",
        "give a run directory, its checkpoints folder or a global_step_N folder",
    )


def require_whole(folder: Path) -> Manifest:
    """The manifest of a whole checkpoint. Raises UserError naming every piece that is missing or cut short."""
    try:
        manifest = read_manifest(folder)
    except NoManifest as error:
        raise UserError(f"{folder} is not a whole checkpoint: {error}", "choose another step of the run") from None
    if broken := faults(folder, manifest):
        raise UserError(
            f"{folder} is not a whole checkpoint: " + "; ".join(broken),
            "copy the missing files, or choose another step",
        )
    return manifest


def _survey(folder: Path) -> tuple[list[tuple[Path, Manifest]], list[tuple[Path, str]]]:
    """Whole checkpoints in the order they were written, and the broken ones with their fault."""
    whole: list[tuple[Path, Manifest]] = []
    broken: list[tuple[Path, str]] = []
    for path in folder.glob("global_step_*") if folder.is_dir() else ():
        if not _STEP.fullmatch(path.name) or not path.is_dir():
            continue
        try:
            manifest = read_manifest(path)
        except NoManifest as error:
            broken.append((path, str(error)))
            continue
        if found := faults(path, manifest):
            broken.append((path, "; ".join(found)))
        else:
            whole.append((path, manifest))
    return sorted(whole, key=lambda item: item[1].serial), sorted(broken, key=lambda item: _step_of(item[0]))


def _is_whole(folder: Path) -> bool:
    try:
        return not faults(folder, read_manifest(folder))
    except NoManifest:
        return False


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.warning("could not remove %s: %s", path, error)


def _step_of(path: Path) -> int:
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else -1


def _host() -> str:
    return socket.gethostname().replace("/", "_")
