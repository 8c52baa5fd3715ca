"""The checks of `rlx doctor`: each looks at one thing and says ok, warn or fail, with a way to mend it. No torch."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlx import ui
from rlx.env import interpreter, lockfile, manager, uv
from verl_core.config.effective import has_nvidia_driver
from verl_core.config.errors import RlxError

CPU_ENV_BYTES = 8_000_000_000
"""An fsdp environment with its CUDA libraries, unpacked."""
RUN_BYTES = 1_000_000_000
SHM_BYTES = 1_000_000_000
"""Ray's object store and data workers live in /dev/shm; containers often have 64 MB."""
DRIVER_FOR_CUDA_13 = 580
"""The oldest NVIDIA driver branch that runs CUDA 13.0 (CUDA 13.0 release notes)."""


@dataclass(frozen=True)
class Finding:
    """What one check saw."""

    check: str
    state: Literal["ok", "warn", "fail"]
    found: str
    fix: str | None = None


def findings() -> Iterator[Finding]:
    """All checks, in the order of a user's way: interpreter, uv, lock, disk, GPU, processes."""
    for check in CHECKS:
        try:
            yield check()
        except RlxError as problem:
            yield Finding(check.__name__.strip("_"), "fail", problem.message, problem.hint)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    low, high = re.findall(r"3\.(\d+)", lockfile.requires_python())
    if int(low) <= sys.version_info.minor < int(high):
        return Finding("python", "ok", f"{version} at {sys.executable}")
    wanted = lockfile.requires_python()
    return Finding("python", "fail", f"{version}, and the lock is for {wanted}", "uv run --python 3.12 rlx ...")


def _uv() -> Finding:
    done = subprocess.run([uv.find(), "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        return Finding("uv", "fail", f"{uv.find()} does not run", "pip install --force-reinstall uv")
    return Finding("uv", "ok", f"{done.stdout.strip()} at {uv.find()}")


def _lock() -> Finding:
    uv.check_lock()
    return Finding("lock", "ok", f"{lockfile.lock_file()} matches pyproject.toml")


def _interpreter() -> Finding:
    named = interpreter.chosen()
    if named is None:
        return Finding("RLX_PYTHON", "ok", "not set: rlx makes its own environments")
    interpreter.check(named, ("fsdp",))
    return Finding("RLX_PYTHON", "ok", f"{named} has what training needs")


def _environments() -> Finding:
    return _space("environments", manager.envs_dir(), CPU_ENV_BYTES, "RLX_ENVS=/big/disk moves environments")


def _runs() -> Finding:
    return _space("runs", Path("runs"), RUN_BYTES, "trainer.default_local_dir=/big/disk moves runs")


def _shm() -> Finding:
    if not Path("/dev/shm").is_dir():
        return Finding("/dev/shm", "ok", "not used on this system")
    free = shutil.disk_usage("/dev/shm").free
    if free >= SHM_BYTES:
        return Finding("/dev/shm", "ok", f"{ui.size(free)} free")
    return Finding("/dev/shm", "warn", f"only {ui.size(free)} free", "in Docker: --shm-size=16g")


def _gpu() -> Finding:
    if not has_nvidia_driver():
        return Finding("gpu", "ok", "no NVIDIA driver: training runs on the CPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Finding("gpu", "warn", "an NVIDIA driver is loaded but nvidia-smi does not answer", "check the driver")
    if done.returncode:
        return Finding("gpu", "fail", f"nvidia-smi: {done.stdout.strip() or done.stderr.strip()}", "check the driver")
    gpus = done.stdout.strip().splitlines()
    driver = gpus[0].rsplit(",", 1)[-1].strip() if gpus else ""
    branch = driver.split(".")[0]
    if not branch.isdecimal():
        return Finding(
            "gpu", "warn", f"nvidia-smi names no driver: {done.stdout.strip() or 'no GPU'}", "check the driver"
        )
    if int(branch) < DRIVER_FOR_CUDA_13:
        fix = f"install driver {DRIVER_FOR_CUDA_13} or newer, or use a vendor image through RLX_PYTHON"
        return Finding("gpu", "fail", f"driver {driver} is too old for the lock's CUDA 13.0", fix)
    return Finding("gpu", "ok", f"{len(gpus)} x {gpus[0]}")


def _git() -> Finding:
    if shutil.which("git"):
        return Finding("git", "ok", "found: runs record the commit of their folder")
    return Finding("git", "warn", "not found: runs cannot record the commit of their folder", "install git")


def _ray() -> Finding:
    left = [process for process in _processes() if process[1] in ("raylet", "gcs_server")]
    if not left:
        return Finding("ray", "ok", "no Ray processes of yours are running")
    names = ", ".join(f"{name} ({pid})" for pid, name in left)
    return Finding(
        "ray", "warn", f"a Ray cluster of yours is running: {names}", "`rlx env run -- ray stop` if unwanted"
    )


def _processes() -> Iterator[tuple[int, str]]:
    """(pid, name) of the user's processes; none where there is no /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.getuid():
                yield int(folder.name), (folder / "comm").read_text().strip()
        except OSError:  # it has ended since
            continue


def _space(name: str, folder: Path, least: int, fix: str) -> Finding:
    """Free space where `folder` is or would be made, and whether it can be written."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return Finding(name, "fail", f"{place} cannot be written", fix)
    if free < least:
        return Finding(name, "warn", f"{ui.size(free)} free at {place}, {ui.size(least)} are advisable", fix)
    return Finding(name, "ok", f"{ui.size(free)} free at {place}")


CHECKS: list[Callable[[], Finding]] = [
    _python, _uv, _lock, _interpreter, _environments, _runs, _shm, _gpu, _git, _ray,
]  # fmt: skip
