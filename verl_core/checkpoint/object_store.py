"""A run's checkpoints on an object store. Nothing can be renamed there: the manifest, written last, makes a checkpoint
of what lies beside it, and is the first to go when one is removed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from verl_core.checkpoint.find import newest_whole
from verl_core.checkpoint.inspect import UNFINISHED, inspect, survey
from verl_core.checkpoint.lease import Lease
from verl_core.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    NoManifest,
    Piece,
    Score,
    faults,
    read_manifest,
    write_manifest,
)
from verl_core.checkpoint.object_errors import before_the_start
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.retention import Retention
from verl_core.checkpoint.saves import Saves
from verl_core.config.errors import RlxError, RunError, UserError

log = logging.getLogger(__name__)


class ObjectStore(Saves[ObjectPath]):
    """See `Saves`; `folder` is the run's own place on the store.

    One run at a time writes there, see `Lease`; should another have taken the place while this one was silent, this one
    ends at its next save, and removes nothing. A step that is being written or removed holds an object UNFINISHED with
    the names of what others put there, which is never touched.
    """

    def __init__(self, folder: ObjectPath, keep: int | Retention | None = None, lease: Lease | None = None):
        super().__init__(folder, keep)
        self.lease = lease or Lease(folder)

    def claim(self, resume: bool) -> None:
        """Makes this the run that writes here, before anything costly is done. Raises UserError when the store cannot
        be written, another run is at work there, or it holds checkpoints and the run does not `resume` from them."""
        with before_the_start():
            if not resume and (there := [found.path.name for found in inspect(self.folder)]):
                raise UserError(
                    f"{self.folder} holds checkpoints of another run: {', '.join(there[-3:])}",
                    "go on with it by --resume, or choose another trainer.experiment_name or trainer.checkpoint_url",
                )
            self.lease.take()

    def recover(self) -> None:
        objects = self.folder.sizes()
        for name in sorted(objects):
            step, _, rest = name.partition("/")
            if rest == UNFINISHED:
                if f"{step}/{MANIFEST}" in objects:  # all but the end of a save, or the beginning of a removal
                    (self.folder / step).delete([UNFINISHED])
                else:
                    _clear(self.folder / step)

    def begin(self, step: int, need_bytes: int | None = None) -> ObjectPath:
        self._refuse_others(step)
        target = self.folder / f"global_step_{step}"
        objects = target.sizes()
        if MANIFEST in objects:
            if [path for path, _ in survey(self.folder)[0]] == [target]:
                raise RunError(
                    f"checkpoint of step {step}: {target} is there and the only whole one, so it is not replaced",
                    "choose another trainer.checkpoint_url",
                )
            self._remove_step(target.name)
        elif UNFINISHED in objects:
            _clear(target)
        if foreign := sorted(target.sizes()):
            log.warning("%s holds objects that are not of rlx and stay there: %s", target, ", ".join(foreign[:3]))
        _mark(target, foreign)
        self._open[step] = ObjectPath(target.url)
        return self._open[step]

    def abort(self, step: int) -> None:
        if folder := self._open.pop(step, None):
            try:
                if self.lease.other() is None:  # who took the place over may be writing this very step
                    folder.delete(_strays(folder))  # under its mark still: a rank may be about to finish an object
            except (RlxError, OSError) as error:  # the next run does it
                log.warning("could not remove %s: %s", folder, error)

    @contextmanager
    def clearing_up(self, step: int, need_bytes: int | None = None) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abort(step)
            raise

    def latest(self) -> ObjectPath | None:
        """By names and sizes: the store itself guards the bytes, and reading all of them would take as long as the
        download once more."""
        newest = newest_whole(self.folder)
        return self.folder / newest.name if newest else None

    def _seal(self, step: int, serial: int, score: Score | None, pieces: Mapping[str, Piece]) -> ObjectPath:
        folder = self._open[step]
        folder.written.update(pieces)
        with self.clearing_up(step):
            self._refuse_others(step)
            folder.delete([name for name in _strays(folder) if name not in folder.written])
            if lost := faults(folder, Manifest(step, serial, {}, {}, folder.written)):
                raise RunError(
                    f"checkpoint of step {step}: what is in {folder} is not what was written: {'; '.join(lost[:3])}",
                    "remove what is not of rlx there, then go on with --resume",
                )
            write_manifest(folder, step, serial, score)
            folder.delete([UNFINISHED])
        return self.folder / folder.name

    def _remove_step(self, name: str) -> None:
        path = self.folder / name
        objects = path.sizes()
        try:
            ours = {*read_manifest(path).files, MANIFEST, UNFINISHED}
        except NoManifest:  # nothing tells any more what is of others
            ours = set(objects)
        _mark(path, [each for each in objects if each not in ours])
        path.delete([MANIFEST])
        _clear(path)

    def _refuse_others(self, step: int) -> None:
        """Raises RunError when another run has claimed the place since."""
        if other := self.lease.other():
            raise RunError(
                f"checkpoint of step {step}: {self.folder} was taken over by another run ({other})",
                "give each run a trainer.experiment_name or a trainer.checkpoint_url of its own",
            )

    def _prune(self) -> None:
        if other := self.lease.other():
            log.warning("old checkpoints stay: %s was taken over by another run (%s)", self.folder, other)
        else:
            super()._prune()


def _mark(path: ObjectPath, foreign: list[str]) -> None:
    """Says that what lies below `path` is no checkpoint, and what of it is not ours."""
    (ObjectPath(path.url) / UNFINISHED).write_text(json.dumps({"foreign": foreign}) + "\n")


def _clear(path: ObjectPath) -> None:
    """Removes all of ours below `path`, last what says that it is unfinished."""
    path.delete(_strays(path))
    path.delete([UNFINISHED])


def _strays(path: ObjectPath) -> list[str]:
    """What lies below a marked `path` beside the mark and what is not ours. Raises RunError for a mark that does not
    say."""
    try:
        foreign = [str(name) for name in json.loads((path / UNFINISHED).read_text())["foreign"]]
    except (ValueError, KeyError, TypeError):
        raise RunError(
            f"{path / UNFINISHED} is unreadable, so it is not known what there is of rlx",
            f"remove {path} yourself, then go on with --resume",
        ) from None
    return [name for name in path.sizes() if name not in foreign and name != UNFINISHED]
