"""What would stop a fresh environment, found before a byte is downloaded: each check is one line and a hint."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlx import ui
from rlx.env import driver, glibc, index, lockfile, uv
from rlx.env.requirements import Package, download_total, hosts, locked_packages
from verl_core.config.errors import EnvError

UNPACKED = 1.83
"""Bytes on disk per byte of a wheel. Measured on the fsdp environment without byte code: 5.44 GB from 2.98 GB."""


def check(extras: Sequence[str], folder: Path, uses_gpu: bool = True) -> None:
    """Raise EnvError for the first thing that keeps `uv sync` from making `folder` with these extras, or the result
    from running: interpreter, platform, C library, driver (when `uses_gpu`), space, network. About 0.3 s."""
    check_python()
    check_platform()
    packages = locked_packages(tuple(extras))
    glibc.check(packages)
    if uses_gpu:
        driver.check(packages)
    n_download, n_bytes = to_download(folder, extras)
    check_space(folder, n_bytes, download_total(packages))
    if n_download:
        check_network(packages, n_download)


def to_download(folder: Path, extras: Sequence[str]) -> tuple[int, int]:
    """Packages to be fetched and the most bytes that can take; (0, 0) when all are in uv's cache."""
    packages, n_download = uv.missing(folder, extras)
    largest = sorted(lockfile.download_sizes(packages).values(), reverse=True)
    return n_download, sum(largest[:n_download])


def check_python() -> None:
    """EnvError when the interpreter that runs rlx is not one of the lock's."""
    from packaging.specifiers import SpecifierSet

    wanted = lockfile.requires_python()
    if not SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
        raise EnvError(
            f"{sys.executable} is Python {platform.python_version()}, and the lock is for {wanted}",
            "run rlx with one that fits: `uv tool install --python 3.12 rlx`, in a checkout `uv run --python 3.12 rlx`",
        )


def check_platform() -> None:
    """EnvError when the lock holds nothing for this system and machine type ([tool.uv] environments)."""
    from packaging.markers import Marker

    supported: list[str] = lockfile.project().get("tool", {}).get("uv", {}).get("environments", [])
    if supported and not any(Marker(text).evaluate() for text in supported):
        raise EnvError(
            f"the lock holds no packages for {sys.platform} on {platform.machine()}: it is for {_places(supported)}",
            "run on one of these, or in an interpreter that has what a job needs: RLX_PYTHON=/path/to/python",
        )


def _places(markers: Iterable[str]) -> str:
    return ", ".join(" ".join(re.findall(r"== '([^']+)'", text)) for text in markers)


def check_space(folder: Path, download_bytes: int, environment_bytes: int) -> None:
    """EnvError when uv's cache has no room for the unpacked download, or the folder's file system, if it is another,
    for the whole environment; `*_bytes` are those of packed wheels.

    uv unpacks while it downloads, and an environment beside the cache is hard links into it.
    """
    cache, home = existing_parent(uv_cache()), existing_parent(folder)
    needed = int(download_bytes * UNPACKED)
    check_free(cache, needed, "uv's cache", "UV_CACHE_DIR")
    if home.stat().st_dev != cache.stat().st_dev:
        check_free(home, int(environment_bytes * UNPACKED), "the environment", "RLX_ENVS")


def check_free(place: Path, needed: int, what: str, variable: str) -> None:
    free = shutil.disk_usage(place).free
    if free < needed:
        raise EnvError(
            f"no space for {what} in {place}: about {ui.size(needed)} needed (estimate), {ui.size(free)} free",
            f"free some, or move it: {variable}=/big/disk",
        )


def uv_cache() -> Path:
    """uv's cache folder, made or not; uv knows its own settings."""
    done = subprocess.run([uv.find(), "cache", "dir"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise uv.explain(done.stderr, Path("uv's cache"))
    return Path(done.stdout.strip())


def existing_parent(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def check_network(packages: Sequence[Package], n_download: int) -> None:
    """EnvError when `n_download` of these packages must be fetched and their servers cannot be reached."""
    servers = hosts(packages)
    if not servers:
        return
    what = f"{n_download} packages are not in uv's cache"
    hint = "connect once and run `rlx env sync`, build from an archive (`rlx env sync --from FILE --offline`), "
    hint += "or use an interpreter at hand: RLX_PYTHON=/path/to/python"
    if index.offline():
        raise EnvError(f"{what}, and UV_OFFLINE={os.environ['UV_OFFLINE']} keeps uv off the network", hint)
    failures = index.unreachable(servers)
    if failures:
        reasons = ", ".join(f"{server} ({reason})" for server, reason in sorted(failures.items()))
        raise EnvError(f"{what}, and there is no network to {reasons}", f"{hint}{_mirrors()}")


def _mirrors() -> str:
    """A word on index variables, which a frozen sync does not read: uv fetches from the addresses in the lock."""
    named = [name for name in ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL") if os.environ.get(name)]
    if not named:
        return ""
    return f"; {named[0]} does not help, uv fetches from the addresses in the lock (a proxy does: HTTPS_PROXY)"
