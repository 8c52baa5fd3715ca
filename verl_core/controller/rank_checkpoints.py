"""A rank's part in the checkpoints of a run: its shares of the roles there, written at once or behind training."""

from __future__ import annotations

from functools import partial

from transformers import PreTrainedConfig

from verl_core.checkpoint.disk import writing_to
from verl_core.checkpoint.distributed import load_role, save_role, state_bytes
from verl_core.checkpoint.folders import Folder, folder_of, on_disk
from verl_core.checkpoint.huggingface import save_huggingface_files
from verl_core.checkpoint.objects import ObjectPath
from verl_core.checkpoint.pieces import Piece
from verl_core.checkpoint.reference import REFERENCE, load_reference, save_reference
from verl_core.checkpoint.unwritten import Unwritten
from verl_core.config.schema import RlxConfig
from verl_core.models.pretrained import load_tokenizer
from verl_core.training.fsdp import FsdpEngine
from verl_core.training.protocol import EngineState


class RankCheckpoints:
    """`model_folder`: whose tokenizer and code go along. `first`: whether this is rank 0, which writes these.
    `ranks_here`: how many share this machine's memory. `save` and `load` are called on all ranks."""

    def __init__(self, config: RlxConfig, model_folder: str, first: bool, ranks_here: int):
        self.config, self.model_folder, self.first = config, model_folder, first
        self.renewed: set[str] = set()  # roles whose reference is no longer the model they began with
        self.unwritten = Unwritten(ranks_here)
        self._expected: set[str] = set()  # roles for whose saves memory has been asked
        self._saving: list[Folder] = []  # the checkpoint's folder, once for each role that `save` took

    def expect(self, role: str, engine: FsdpEngine) -> None:
        """After the first step, with which the optimizer has its state."""
        trainer = self.config.trainer
        if trainer.async_save and trainer.save_freq > 0 and role not in self._expected:
            self._expected.add(role)
            self.unwritten.expect(engine.state())

    def save(self, role: str, engine: FsdpEngine, folder: str, behind: bool) -> None:
        """This rank's share of <folder>/<role>: written, or (`behind`) taken, for `write`. The device is to be waited
        for before the engine goes on."""
        take, target = self.unwritten.take if behind else save_role, folder_of(folder)
        self._saving.append(target)
        take(target / role, engine.state())
        if role in self.renewed:
            save_reference(target, engine, take)
        if self.first:
            self.unwritten.later(partial(self._save_huggingface_files, target / role, engine.model.config))

    def write(self) -> dict[str, Piece]:
        """Writes what `save` has left to it, and says of what this rank has put on an object store how large it is. May
        run while the rank trains: it needs no device and no other rank."""
        saving, self._saving = self._saving, []
        self.unwritten.write()
        objects = (folder.written for folder in saving if isinstance(folder, ObjectPath))
        return {name: piece for written in objects for name, piece in written.items()}

    def load(self, role: str, engine: FsdpEngine, folder: str) -> None:
        """Raises UserError as `load_role`."""
        source = folder_of(folder)
        engine.load_state(load_role(source / role, engine.state()))
        if REFERENCE in engine.snapshots and load_reference(source, engine):
            self.renewed.add(role)

    def state_bytes(self, role: str, engine: FsdpEngine) -> int:
        """Size of the role's checkpoint over all ranks."""
        state = engine.state()
        return state_bytes(state) + (state_bytes(EngineState(state.weights)) if role in self.renewed else 0)

    def _save_huggingface_files(self, folder: Folder, config: PreTrainedConfig) -> None:
        """What makes a role's weights a model."""
        with writing_to(folder), on_disk(folder) as here:
            save_huggingface_files(
                here,
                self.model_folder,
                config=config,
                tokenizer=load_tokenizer(self.config.model, self.model_folder),
                code=self.config.model.trust_remote_code,
            )
