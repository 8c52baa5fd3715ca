"""What a rank has taken of a checkpoint and not yet written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from verl_core.checkpoint.distributed import share_bytes, stage_role
from verl_core.checkpoint.folders import Folder
from verl_core.checkpoint.staging import HostCopies
from verl_core.planning.host_memory import free_memory
from verl_core.training.protocol import EngineState

log = logging.getLogger(__name__)

MOST = 0.8
"""Share of the free memory that the copies on a machine may take."""


class Unwritten:
    """This rank's shares of the checkpoint in progress: copies of them, which `write` brings to the disk in another
    thread while the engine goes on. `ranks_here`: how many share this machine's memory."""

    def __init__(self, ranks_here: int = 1):
        self.ranks_here = ranks_here
        self.copies = HostCopies()
        self._later: list[Callable[[], None]] = []
        self._expected = 0  # bytes of a save, as far as known
        self._refused = False  # memory that was said to be free
        self._reserving: threading.Thread | None = None

    def expect(self, state: EngineState) -> None:
        """Begins to make memory for the copy of a state that will be saved, while training goes on, so that the first
        save need not wait for it. Once for each role."""
        self._reserved()
        self._expected += share_bytes(state)
        if not self._has_room(self._expected):
            return
        on_gpu = any(tensor.is_cuda for tensor in state.weights.values())
        self._reserving = threading.Thread(target=self._reserve, args=(on_gpu,), daemon=True)
        self._reserving.start()

    def take(self, folder: Folder, state: EngineState) -> None:
        """`stage_role`, for later; where memory has no room for a copy, the share is written before this returns.
        Called on all ranks."""
        self._reserved()
        copies = self.copies if self._has_room(share_bytes(state)) else None
        share = stage_role(folder, state, copies=copies)
        if copies is None:
            share.write()
        else:
            self.later(share.write)

    def later(self, work: Callable[[], None]) -> None:
        """Adds what `write` is to do."""
        self._later.append(work)

    def write(self) -> None:
        """Needs no other rank. Raises what writing raises; then the rest is dropped."""
        try:
            for work in self._later:
                work()
        finally:
            self._later.clear()
            self.copies.clear()

    def _reserve(self, on_gpu: bool) -> None:
        try:
            self.copies.reserve(self._expected, on_gpu)
        except RuntimeError as error:  # the driver pins no more, say
            log.warning("training will wait while checkpoints are written: no memory for copies: %s", error)
            self._refused = True

    def _reserved(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _has_room(self, share: int) -> bool:
        more = max(0, self.copies.used + share - self.copies.bytes)
        if self._refused and more:
            return False
        free = free_memory()
        if free is None or more * self.ranks_here <= MOST * free:
            return True
        log.warning(
            "training waits while a checkpoint is written: a copy of what each of the %d ranks here writes would take "
            "%.1f of the %.1f GB of host memory that are free",
            self.ranks_here,
            more * self.ranks_here / 1e9,
            free / 1e9,
        )
        return False
