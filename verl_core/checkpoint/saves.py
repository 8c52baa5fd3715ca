"""What saving a run's checkpoints is, wherever they go: begun, written by every rank, sealed, and old ones removed."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.inspect import survey
from verl_core.checkpoint.manifest import Score, write_text_durably
from verl_core.checkpoint.pieces import Piece
from verl_core.checkpoint.retention import Retention
from verl_core.config.errors import RunError

log = logging.getLogger(__name__)

LATEST = "latest"


class Saves[Place: Folder](ABC):
    """Checkpoints under `folder`, of which those stay that `keep` says: a number of the newest, or a `Retention` (None:
    all).

    The writer is one process of a run: `recover()` once at start, then for each save `begin`, let every rank write
    below the folder it returns, `commit`; or `with store.saving(step) as folder:`, which clears up after a failure.
    Readers may look at any time. Newest means written last: after going back to an earlier step, its successors count.
    """

    def __init__(self, folder: Place, keep: int | Retention | None = None):
        self.folder = folder
        self.keep = keep if isinstance(keep, Retention) else Retention(keep)
        self._open: dict[int, Place] = {}

    @abstractmethod
    def recover(self) -> None:
        """Clears what killed saves of this run left behind."""

    @abstractmethod
    def begin(self, step: int, need_bytes: int | None = None) -> Place:
        """A folder to write the checkpoint of `step` into, which is none before `commit`. `need_bytes`: the size to
        come; None: that of the newest checkpoint. Raises RunError when it cannot be written."""

    @abstractmethod
    def abort(self, step: int) -> None:
        """Removes what a failed save of `step` has written; earlier checkpoints stay."""

    @abstractmethod
    def clearing_up(self, step: int, need_bytes: int | None = None) -> AbstractContextManager[None]:
        """Around what is done between `begin` and `commit`: `abort` on an exception."""

    @abstractmethod
    def latest(self) -> Place | None:
        """The newest checkpoint that is whole, or None; each newer one is named in a warning with its fault."""

    def commit(self, step: int, value: float | None = None, pieces: Mapping[str, Piece] | None = None) -> Place:
        """Makes the folder of `begin(step)` a checkpoint, removes those not to keep, returns the final place.

        `value`: of the metric by which the best one is kept, at this step. `pieces`: what other processes have measured
        of what they wrote, where that is not read back. Raises RunError, leaving every earlier checkpoint as it was.
        """
        present = survey(self.folder)[0]
        if ahead := [manifest.step for _, manifest in present if manifest.step > step]:
            log.warning("checkpoint of step %d is written after that of step %d", step, max(ahead))
        serial = 1 + max((manifest.serial for _, manifest in present), default=0)
        target = self._seal(step, serial, self.keep.score(value), pieces or {})
        del self._open[step]
        self._point_to(target.name)
        self._prune()
        return target

    @contextmanager
    def saving(self, step: int, need_bytes: int | None = None) -> Iterator[Place]:
        """`begin` on entry, `commit` on success, `abort` on an exception."""
        folder = self.begin(step, need_bytes)
        with self.clearing_up(step, need_bytes):
            yield folder
        self.commit(step)

    @abstractmethod
    def _seal(self, step: int, serial: int, score: Score | None, pieces: Mapping[str, Piece]) -> Place:
        """Writes the manifest, which makes it a checkpoint, and returns where it is."""

    @abstractmethod
    def _remove_step(self, name: str) -> None:
        """Removes a checkpoint; a kill meanwhile leaves nothing that looks like one. Raises OSError or RunError."""

    def _point_to(self, name: str) -> None:
        try:
            write_text_durably(self.folder / LATEST, name + "\n")
        except (OSError, RunError) as error:  # a convenience for people and scripts: `latest()` does not read it
            log.warning("could not write %s: %s", self.folder / LATEST, error)

    def _prune(self) -> None:
        if self.keep.newest is None:
            return
        for path in self.keep.superfluous(survey(self.folder)[0]):
            try:
                self._remove_step(path.name)
            except (OSError, RunError) as error:
                log.warning("could not remove the old checkpoint %s: %s", path, error)
