"""Where a run's checkpoints are: in its run directory, or on the object store that its configuration names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_core.checkpoint.inspect import CHECKPOINTS, checkpoints_folder, survey
from verl_core.checkpoint.object_errors import before_the_start
from verl_core.checkpoint.object_store import ObjectStore
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.retention import Retention
from verl_core.checkpoint.store import CheckpointStore
from verl_core.config.errors import UserError
from verl_core.config.schema_trainer import TrainerConfig
from verl_core.config.urls import checkpoints_url


def saves_of(trainer: TrainerConfig, run_dir: Path, keep: Retention | None = None) -> CheckpointStore | ObjectStore:
    """What saves and finds the checkpoints of the run in `run_dir`."""
    if url := checkpoints_url(trainer):
        return ObjectStore(ObjectPath(url), keep)
    return CheckpointStore(run_dir / CHECKPOINTS, keep)


@contextmanager
def claimed(trainer: TrainerConfig, run_dir: Path, resume: bool) -> Iterator[None]:
    """Around a run's work. Looks whether checkpoints can be saved, before minutes are spent on a model (of a folder
    that is the first save's to find out), and holds the run's place on an object store against others. Raises UserError
    as `ObjectStore.claim`, and for a run that saved elsewhere before."""
    store = saves_of(trainer, run_dir)
    if resume:
        with before_the_start():
            _refuse_elsewhere(store, run_dir)
    if not isinstance(store, ObjectStore):
        yield
        return
    store.claim(resume)
    with store.lease.renewed():
        yield


def _refuse_elsewhere(store: CheckpointStore | ObjectStore, run_dir: Path) -> None:
    """The run would begin again, and drop what it has recorded. An object store where it saved is not asked: what reads
    it may not be here."""
    before = checkpoints_folder(run_dir)
    if isinstance(before, Path):
        if isinstance(store, CheckpointStore) or not survey(before)[0]:
            return
        url = "null"
    else:
        url = before.url.rsplit("/", 2)[0]  # without the names of project and run
    if before != store.folder and not survey(store.folder)[0]:
        raise UserError(
            f"{store.folder} has no checkpoint; the run saved to {before}",
            f"go on with trainer.checkpoint_url={url}, or copy that folder to {store.folder}",
        )
