"""A torch profiler trace of one step on one rank, for Perfetto: https://ui.perfetto.dev opens the file.

Code names its phases with `span` and what repeats in them with `part`; both cost next to nothing while no trace is
taken. Of each kind of part in a phase the first DETAILED are recorded with every operation and kernel, the rest not at
all, so that a trace grows with the model and not with the batch or the answers' length.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from verl_core.platforms.platform import GIB, Platform

DETAILED = 4
MEMORY = "[memory]"  # the profiler's name of an allocation or a release

_running: Profile | None = None


def prepare() -> None:
    """To be called in the thread that imported torch, before a trace is started in another one: torch's profiler sets
    itself up in the first and complains about any other. Of a missing GPU it need not speak."""
    if torch.cuda.device_count() == 0:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with profile(activities=[ProfilerActivity.CPU], acc_events=True):
        pass


class Profile:
    """From `start` to `stop`, both called in the thread that computes."""

    def __init__(self, platform: Platform, memory: bool = False):
        """`memory`: draw how much the device has allocated as well."""
        on_gpu = platform.name == "cuda"
        self.platform, self.memory = platform, memory
        self.device = [ProfilerActivity.CUDA] if on_gpu else []
        self.phase = ""
        self.seen: Counter[tuple[str, str]] = Counter()  # parts by phase and kind
        self._profile = profile(activities=[ProfilerActivity.CPU, *self.device], profile_memory=memory, acc_events=True)

    def start(self) -> None:
        """Raises RuntimeError when this process takes a trace already."""
        global _running
        if _running is not None:
            raise RuntimeError("a trace is being taken already")
        self._profile.start()
        _running = self

    def stop(self, file: Path) -> None:
        """Ends the trace and writes it to `file`, which ends in .json.gz."""
        global _running
        _running = None
        self.platform.synchronize()  # kernels that still run belong to the step
        self._profile.stop()
        file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(file))
        if self.memory:
            _add_counters(file)

    def record(self, on: bool) -> None:
        """Records operations and kernels, or stops recording them; ranges that are open stay so."""
        torch.autograd._enable_record_function(on)
        if self.device:
            self._profile.toggle_collection_dynamic(on, self.device)


@contextmanager
def span(name: str) -> Iterator[None]:
    """A phase: a range of its own in a trace."""
    if _running is None:
        yield
        return
    _running.phase = name
    with record_function(name):
        yield


@contextmanager
def part(kind: str) -> Iterator[None]:
    """One of many like parts of a phase: a micro-batch, a token. Parts do not nest."""
    running = _running
    if running is None:
        yield
        return
    place = (running.phase, kind)
    number = running.seen[place]
    running.seen[place] += 1
    if number < DETAILED:
        with record_function(f"{kind} {number}"):
            yield
        return
    running.record(False)
    try:
        yield
    finally:
        running.record(True)


def _add_counters(file: Path) -> None:
    """Adds the memory that is allocated as a track that Perfetto draws."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        trace = json.load(stream)
    trace["traceEvents"] += [_counter(event) for event in trace["traceEvents"] if event.get("name") == MEMORY]
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        json.dump(trace, stream)


def _counter(event: dict[str, Any]) -> dict[str, Any]:
    told = event["args"]
    device = f"GPU {told['Device Id']}" if told["Device Id"] >= 0 else "CPU"
    name = f"{device} allocated, GiB"
    return {"ph": "C", "name": name, "pid": event["pid"], "ts": event["ts"],
            "args": {"GiB": told["Total Allocated"] / GIB}}  # fmt: skip
