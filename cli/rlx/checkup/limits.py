"""What the kernel or a container allows: memory, open files, processes; and whether the clock can be right."""

import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rlx import ui
from rlx.checkup.finding import Finding, Subject
from rlx.env import lockfile

LEAST_MEMORY = 4_000_000_000
"""Bytes. torch, transformers and the scorers of one rank take about 2 GB beside the model."""
FEWEST_FILES = 4096
"""Ray and data workers keep hundreds of sockets and files a rank."""
FEWEST_PROCESSES = 4096
"""Linux counts threads here, and every rank has dozens."""


def memory(subject: Subject, root: Path = Path("/")) -> Iterator[Finding]:
    """Host memory: the machine's, or a container's limit when that is less; `root` holds proc and sys."""
    total = _machine_memory(root)
    limit = container_limit(root)
    if total is None:
        return
    allowed = min(total, limit or total)
    told = f"{ui.size(allowed)}{' (container limit)' if limit and limit < total else ''}"
    if allowed < LEAST_MEMORY:
        fix = "give the container more (Docker: --memory; Kubernetes: resources.limits.memory; Slurm: --mem)"
        yield Finding("memory", "warn", f"{told}, {ui.size(LEAST_MEMORY)} are advisable", fix)
    else:
        yield Finding("memory", "ok", told)


def _machine_memory(root: Path) -> int | None:
    """Bytes, None where there is no /proc."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)


def container_limit(root: Path = Path("/")) -> int | None:
    """The least memory limit of this process's control groups, bytes, None for none: cgroup v2, else v1."""
    try:
        group = (root / "proc/self/cgroup").read_text()
    except OSError:
        return None
    unified = next((line[3:] for line in group.splitlines() if line.startswith("0::")), "/").strip("/")
    top = root / "sys/fs/cgroup"
    files = [
        folder / "memory.max" for folder in (top / unified, *(top / unified).parents) if folder.is_relative_to(top)
    ]
    limits = [_number(file) for file in (*files, top / "memory/memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None), default=None)


def _number(file: Path) -> int | None:
    """The file's number; None when it is absent or says `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def ulimits(subject: Subject) -> Iterator[Finding]:
    """Open files and processes."""
    low = [
        f"{name} {soft}, {least} are advisable (ulimit -{letter})"
        for name, letter, which, least in (
            ("open files", "n", resource.RLIMIT_NOFILE, FEWEST_FILES),
            ("processes", "u", resource.RLIMIT_NPROC, FEWEST_PROCESSES),
        )
        if (soft := resource.getrlimit(which)[0]) not in (resource.RLIM_INFINITY, -1) and soft < least
    ]
    if low:
        fix = "ulimit -n 65536 -u unlimited before rlx; in Docker: --ulimit nofile=65536"
        yield Finding("limits", "warn", "; ".join(low), fix)
    else:
        yield Finding("limits", "ok", f"open files {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}")


def clock(subject: Subject) -> Iterator[Finding]:
    """A clock before the newest locked file was published is wrong, and secure connections fail on it."""
    files = [wheel for package in lockfile.packages() for wheel in package.get("wheels", [])]
    newest = max((str(wheel["upload-time"]) for wheel in files if "upload-time" in wheel), default="")
    now = datetime.fromtimestamp(time.time(), UTC)
    if newest and now < datetime.fromisoformat(newest):
        fix = "set the clock: `timedatectl set-ntp true`"
        yield Finding("clock", "warn", f"{now:%Y-%m-%d %H:%M} UTC is before the lock was made ({newest[:10]})", fix)
    else:
        yield Finding("clock", "ok", f"{now:%Y-%m-%d %H:%M} UTC")
