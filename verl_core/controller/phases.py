"""What a rank's calls are called in metrics, traces and messages, and the memory that each of them takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from verl_core.config.model_roles import SCORING
from verl_core.controller.out_of_memory import out_of_memory
from verl_core.platforms import Platform
from verl_core.platforms.profiling import span

GIB = 2**30
ROLLOUT, PUSH, CHECKPOINT = "rollout", "push", "checkpoint"


def forward_phase(role: str, snapshot: str | None = None) -> str:
    """What a pass without gradients is for: old_log_prob, ref, values, or what the role is called."""
    if role == "critic":
        return "values"
    if role.startswith("teacher_"):
        return "teacher"
    if role in ("reward_model", SCORING):
        return "reward_model"
    return "ref" if role == "ref" or snapshot == "ref" else "old_log_prob"


def update_phase(role: str) -> str:
    return f"update_{role}"


class Phases:
    """Memory by phase on one rank, since the last report. The allocator's own counters are read, before and after a
    call; nobody waits for the device."""

    def __init__(self, platform: Platform, rank: int):
        self.platform, self.rank = platform, rank
        self._found: dict[str, float] = {}
        self._highest = {"allocated": 0, "reserved": 0}  # of the whole run

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Names what the body does. Raises OutOfMemory where memory ran out in it."""
        self.platform.reset_peak()
        try:
            with span(name):
                yield
        except (MemoryError, RuntimeError) as error:
            if told := out_of_memory(error, name, self.rank, self.platform):
                raise told from error
            raise
        finally:
            now = self.platform.memory()
            self._most(f"memory/{name}/peak_gb", now.peak)
            self._found[f"memory/{name}/resident_gb"] = now.allocated / GIB
            self._highest["allocated"] = max(self._highest["allocated"], now.peak)
            self._highest["reserved"] = max(self._highest["reserved"], now.peak_reserved)

    def offloaded(self) -> None:
        """To be called after an offload: what this process still keeps of the device is what another one there, a
        rollout engine for instance, cannot have."""
        if self.platform.name != "cpu":
            self._most("memory/residue_gb", self.platform.memory().reserved)

    def report(self) -> dict[str, float]:
        """Metric names below perf/ and GiB; the next phase begins a new report."""
        found, self._found = self._found, {}
        kinds = ("allocated",) if self.platform.name == "cpu" else ("allocated", "reserved")
        return found | {f"max_memory_{kind}_gb": self._highest[kind] / GIB for kind in kinds}

    def _most(self, name: str, n_bytes: int) -> None:
        self._found[name] = max(self._found.get(name, 0.0), n_bytes / GIB)
