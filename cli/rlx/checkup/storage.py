"""Free space and whether folders can be written."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlx import ui
from rlx.checkup.finding import Finding, State, Subject
from rlx.env import interpreter, manager, preflight

ADVISABLE_BYTES = 1_000_000_000
"""Of every folder below; what an environment takes is asked by its own check."""
HUB_BYTES = 5_000_000_000
"""A model of 1-2 billion parameters in bf16, and its data."""
SHM_BYTES = 1_000_000_000
"""Ray's object store, NCCL and data workers live in /dev/shm; containers often have 64 MB."""


def disks(subject: Subject) -> Iterator[Finding]:
    """Environments, uv's cache, runs and the hub's cache."""
    if not interpreter.chosen():
        yield folder("environments", manager.envs_dir(), ADVISABLE_BYTES, "RLX_ENVS=/big/disk moves environments")
        yield folder(
            "uv cache", preflight.uv_cache(), ADVISABLE_BYTES, "UV_CACHE_DIR=/big/disk moves uv's cache", "warn"
        )
    yield folder("runs", Path(subject.runs_dir), ADVISABLE_BYTES, "trainer.default_local_dir=/big/disk moves runs")
    yield folder("hub cache", hub_cache(), HUB_BYTES, "HF_HOME=/big/disk moves models and data of the hub", "warn")


def hub_home() -> Path:
    """Where huggingface_hub keeps its token and cache: HF_HOME, else under the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{cache}/huggingface").expanduser()


def hub_cache() -> Path:
    return Path(os.environ.get("HF_HUB_CACHE") or hub_home() / "hub").expanduser()


def folder(name: str, path: Path, least: int, fix: str, unwritable: State = "fail") -> Finding:
    """Free space where `path` is or would be made, in bytes against `least`, and whether it can be written."""
    place = preflight.existing_parent(path.expanduser())
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return Finding(name, unwritable, f"{place} cannot be written", fix)
    if free < least:
        return Finding(name, "warn", f"{ui.size(free)} free at {place}, {ui.size(least)} are advisable", fix)
    return Finding(name, "ok", f"{ui.size(free)} free at {place}")


def shared_memory(subject: Subject, place: Path = Path("/dev/shm")) -> Iterator[Finding]:
    if not place.is_dir():
        yield Finding("/dev/shm", "ok", "not used on this system")
        return
    free = shutil.disk_usage(place).free
    if free >= SHM_BYTES:
        yield Finding("/dev/shm", "ok", f"{ui.size(free)} free")
    else:
        yield Finding("/dev/shm", "warn", f"only {ui.size(free)} free", "in Docker: --shm-size=16g or --ipc=host")
