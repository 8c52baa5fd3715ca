"""What the kernel or a container allows: memory, open files, processes; and whether the clock can be right."""

import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rlx import ui
from rlx.checkup.finding import Finding, Subject
from rlx.env import lockfile
from verl_core.planning.host_memory import container_limit, machine_memory

LEAST_MEMORY = 4_000_000_000
"""Bytes. torch, transformers and the scorers of one rank take about 2 GB beside the model."""
FEWEST_FILES = 4096
"""Ray and data workers keep hundreds of sockets and files a rank."""
FEWEST_PROCESSES = 4096
"""Linux counts threads here, and every rank has dozens."""


def memory(subject: Subject, root: Path = Path("/")) -> Iterator[Finding]:
    """Host memory: the machine's, or a container's limit when that is less; `root` holds proc and sys."""
    total = machine_memory(root)
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
