"""Rollout engines in processes of their own: a tiny real model in a folder, and what a process leaves behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_core.rollout.child import ChildEngine

HERE = Path(__file__).parent
WAIT = 60.0  # seconds until a test that hangs fails


def child(factory: str, options: dict[str, Any] | None = None, **settings: Any) -> ChildEngine:
    """A child that finds the factories of the tests."""
    env = {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", **settings.pop("env", {})}
    return ChildEngine(factory, options or {}, env=env, **settings)


def clockwork(settings: dict[str, Any] | None = None, **options: Any) -> ChildEngine:
    """A child with the engine that `rollout_factories` describes."""
    return child("rollout_factories:clockwork", options, **(settings or {}))


def hf_child(folder: Path, **options: Any) -> ChildEngine:
    sizes = {"model": str(folder), "max_num_seqs": 64, "max_model_len": 2048}
    return child("verl_core.rollout.hf.child:make", sizes | options)


def write_folder(folder: Path) -> Path:
    """A tiny model with a tokenizer, as a Hugging Face folder."""
    from rollout_models import FAMILY, build

    from verl_core.models.builtin import build_tokenizer

    build(FAMILY["qwen2-tied"]).save_pretrained(folder)
    build_tokenizer(["7+5=12", "12-3=9"]).save_pretrained(folder)
    return folder


def until(condition: Callable[[], Any], seconds: float = WAIT) -> None:
    """Waits for what other processes do."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Process ids of everything below a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def own_descendants() -> set[int]:
    return descendants(os.getpid())
