"""Traces of the steps in trainer.profile_steps: when they begin and end, on which ranks, and where they lie."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from verl_core.config.schema import TrainerConfig
from verl_core.controller.executors import WorkerGroup

log = logging.getLogger(__name__)


class Profiler:
    """Ranks are counted through all pools, in the order of cluster.pools."""

    def __init__(self, trainer: TrainerConfig, groups: Mapping[str, WorkerGroup], run_dir: Path):
        self.groups, self.folder = groups, run_dir / "profile"
        self.steps, self.wanted = set(trainer.profile_steps or ()), set(trainer.profile_ranks)

    async def begin(self, step: int) -> None:
        if step not in self.steps:
            return
        for group, ranks in self._ranks():
            await group.scatter("start_profile", [(rank in self.wanted,) for rank in ranks])

    async def end(self, step: int) -> None:
        """Writes the traces of a step that began with `begin`."""
        if step not in self.steps:
            return
        for group, ranks in self._ranks():
            files = [str((self.folder / f"step_{step}_rank_{rank}.json.gz").absolute()) for rank in ranks]
            await group.scatter("stop_profile", [(file,) for file in files])
        log.info("traces of step %d are in %s; https://ui.perfetto.dev opens them", step, self.folder)

    def _ranks(self) -> list[tuple[WorkerGroup, range]]:
        found, first = [], 0
        for group in self.groups.values():
            found.append((group, range(first, first + group.size)))
            first += group.size
        return found
