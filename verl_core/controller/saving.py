"""What a checkpoint holds beside the engines, and how a run goes on from one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_core.checkpoint.store import CheckpointStore
from verl_core.config.errors import UserError
from verl_core.controller.buffer import ReplayBuffer, Slot
from verl_core.controller.flows import Flow
from verl_core.controller.roles import Role
from verl_core.data.loader import PromptLoader


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0  # finished steps
    version: int = 0  # weight updates pushed to the rollout engines

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "version": self.version}


class Saver:
    """Saves and restores everything a run needs to continue as if it had never stopped."""

    def __init__(
        self, store: CheckpointStore, roles: list[Role], loader: PromptLoader, buffer: ReplayBuffer, flow: Flow
    ):
        self.store, self.roles, self.loader, self.buffer, self.flow = store, roles, loader, buffer, flow
        self.saved_step = 0  # step of the newest checkpoint; a run that has taken no step has nothing to save

    async def save(self, progress: Progress) -> None:
        need = sum([await role.state_bytes() for role in self.roles])
        with self.store.saving(progress.step, need) as folder:
            for role in self.roles:
                await role.save(str(folder))
            _write(folder / "trainer.json", progress.state() | self.flow.state())
            _write(folder / "loader.json", self.loader.state())
            (folder / "buffer").mkdir()
            _write(folder / "buffer" / "groups.json", self.buffer.state())
        self.saved_step = progress.step

    async def load(self, folder: Path, progress: Progress) -> list[Slot]:
        """Restores all of it; returns the slots whose generation had been started and must be started again. Raises
        UserError for a checkpoint that cannot be read or is another model's or data set's."""
        try:
            trainer = json.loads((folder / "trainer.json").read_text())
            loader = json.loads((folder / "loader.json").read_text())
            groups = json.loads((folder / "buffer" / "groups.json").read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"checkpoint {folder} cannot be read: {error}", "choose another step of the run") from error
        progress.step, progress.version = trainer["step"], trainer["version"]
        self.saved_step = progress.step
        self.flow.load_state(trainer)
        self.loader.load_state(loader)
        for role in self.roles:
            await role.load(str(folder))
        return self.buffer.load_state(groups)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
