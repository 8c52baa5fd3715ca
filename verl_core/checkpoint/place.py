"""Where a run's checkpoints are: in its run directory, or on the object store that its configuration names."""

from __future__ import annotations

from pathlib import Path

from verl_core.checkpoint.inspect import CHECKPOINTS
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


def claim(trainer: TrainerConfig, run_dir: Path, resume: bool) -> None:
    """Looks whether checkpoints can be saved, before minutes are spent on a model; of a folder that is the first save's
    to find out. Raises UserError as `ObjectStore.claim`, and for a run that saved elsewhere before."""
    store = saves_of(trainer, run_dir)
    if isinstance(store, CheckpointStore):
        return
    store.claim(resume)
    if resume and store.latest() is None and CheckpointStore(run_dir / CHECKPOINTS).latest() is not None:
        raise UserError(
            f"{store.folder} has no checkpoint, the run's are in {run_dir / CHECKPOINTS}",
            "go on without trainer.checkpoint_url, or copy that folder there",
        )
