"""What a checkpoint holds beside the engines, and how a run goes on from one."""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.pieces import Piece
from verl_core.checkpoint.saves import Saves
from verl_core.config.errors import UserError
from verl_core.controller.buffer import ReplayBuffer, Slot
from verl_core.controller.flows import Flow
from verl_core.controller.roles import Role
from verl_core.data.loader import PromptLoader

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0  # finished steps
    version: int = 0  # weight updates pushed to the rollout engines

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "version": self.version}


class Saver:
    """Saves and restores everything a run needs to continue as if it had never stopped.

    A save that is left `behind` is taken at the end of a step and written while the next ones are trained; the next
    save, `finish` and `close` wait for it. What went wrong meanwhile is raised by these and by `check`.
    """

    def __init__(self, store: Saves[Any], roles: list[Role], loader: PromptLoader, buffer: ReplayBuffer, flow: Flow):
        self.store, self.roles, self.loader, self.buffer, self.flow = store, roles, loader, buffer, flow
        self.saved_step = 0  # step of the newest checkpoint; a run that has taken no step has nothing to save
        self._writing: asyncio.Task[None] | None = None

    async def save(self, progress: Progress, metrics: Mapping[str, float | None], behind: bool = False) -> None:
        """`metrics`: those of the step that progress has reached."""
        await self.finish()
        step, need = progress.step, sum([await role.state_bytes() for role in self.roles])
        folder = self.store.begin(step, need)
        with self.store.clearing_up(step, need):
            for role in self.roles:
                await role.save(str(folder), behind)
            _write(folder / "trainer.json", progress.state() | self.flow.state())
            _write(folder / "loader.json", self.loader.state())
            (folder / "buffer").mkdir()
            _write(folder / "buffer" / "groups.json", self.buffer.state())
        self.saved_step = step
        self._writing = asyncio.create_task(self._complete(step, need, self._value(metrics)))
        if not behind:
            await self.finish()

    def _value(self, metrics: Mapping[str, float | None]) -> float | None:
        """Of the metric by which the best checkpoint is kept."""
        metric = self.store.keep.metric
        if metric is None or metric in metrics:
            return None if metric is None else metrics[metric]
        kind = [name for name in metrics if name.partition("/")[0] == metric.partition("/")[0]]
        near = difflib.get_close_matches(metric, metrics, n=3) or sorted(kind)[:3]
        log.warning(
            "trainer.keep_best.metric: step %d has no %s, so its checkpoint cannot be the best%s",
            metrics["training/global_step"],
            metric,
            f"; it has {', '.join(near)}" if near else "; metrics.jsonl has the names of all",
        )
        return None

    async def _complete(self, step: int, need: int, value: float | None) -> None:
        began = time.perf_counter()
        groups = {id(role.group): role.group for role in self.roles}.values()
        with self.store.clearing_up(step, need):
            written = [g.one(rank, "write_saved", aside=True) for g in groups for rank in range(g.size)]
            pieces: dict[str, Piece] = {}
            for told in await asyncio.gather(*written, return_exceptions=True):  # none writes any more
                if isinstance(told, BaseException):
                    raise told
                pieces |= told
        await asyncio.to_thread(self.store.commit, step, value, pieces)
        log.info("the checkpoint of step %d was written in %.1f s", step, time.perf_counter() - began)

    def check(self) -> None:
        """Raises what went wrong with a save that is over."""
        if self._writing is not None and self._writing.done():
            done, self._writing = self._writing, None
            done.result()

    async def finish(self) -> None:
        """Waits for the save that is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self.check()

    async def close(self, kind: object = None, failure: BaseException | None = None, trace: object = None) -> None:
        """`finish` for a run that ends, as an exit of `AsyncExitStack`: its own failure is the one to raise, and told
        once where a dead rank is the reason of both."""
        try:
            await self.finish()
        except Exception as error:
            if str(error) != str(failure):
                log.warning("%s", error)

    async def load(self, folder: Folder, progress: Progress) -> list[Slot]:
        """Restores all of it; returns the slots whose generation had been started and must be started again. Of a
        checkpoint of weights alone (see `reverse`) the roles in it start with these. Raises UserError for a checkpoint
        that cannot be read or is another model's or data set's."""
        if not (folder / "trainer.json").exists():
            for role in (role for role in self.roles if (folder / role.name).is_dir()):
                await role.load(str(folder))
            return []
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


def _write(path: Folder, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
