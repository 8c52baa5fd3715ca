"""A reference that training renews: its weights stand in the checkpoint beside the roles', since no model folder has
them."""

from collections.abc import Callable

from verl_core.checkpoint.distributed import load_role, save_role
from verl_core.checkpoint.folders import Folder
from verl_core.training.protocol import EngineState, TrainEngine

REFERENCE = "ref"
"""Name of the snapshot, and of the folder."""


def save_reference(
    folder: Folder, engine: TrainEngine, save: Callable[[Folder, EngineState], None] = save_role
) -> None:
    """Gives the engine's snapshot to `save`, with its folder below `folder`, a checkpoint; afterwards it may change.
    Called on all ranks."""
    with engine.use(REFERENCE):
        save(folder / REFERENCE, EngineState(dict(engine.named_shards())))


def load_reference(folder: Folder, engine: TrainEngine) -> bool:
    """Reads it back into the snapshot, and says whether there was one. A checkpoint without is of a run that had the
    model it began with as its reference, which the snapshot is already. Called on all ranks."""
    saved = folder / REFERENCE
    if not saved.is_dir():
        return False
    with engine.use(REFERENCE):
        load_role(saved, EngineState(dict(engine.named_shards())))
    return True
