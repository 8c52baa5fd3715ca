"""Environments on disk: `<envs>/<extras>-<key>`, made once by `uv sync` and reused without running uv.

The marker `rlx-env.json` is written last, so a folder without it is incomplete and is made again. Packages are hard
links into uv's cache: a second engine costs what it adds, and never another copy of torch.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx import ui
from rlx.env import lockfile, preflight, uv
from verl_core.config.errors import EnvError
from verl_core.config.files import cache_dir, lock_dir

MARKER = "rlx-env.json"


@dataclass(frozen=True)
class Environment:
    """A set of extras and the folder that holds, or will hold, them."""

    extras: tuple[str, ...]
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def marker(self) -> dict[str, Any] | None:
        """What the folder holds, or None when it is absent, incomplete or its interpreter is gone."""
        try:
            found = json.loads((self.folder / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if self.python.exists() else None

    def complete(self) -> bool:
        return self.marker() is not None


def envs_dir() -> Path:
    """Where environments live: RLX_ENVS, else `envs` in rlx's cache folder."""
    moved = os.environ.get("RLX_ENVS")
    return Path(moved).expanduser().absolute() if moved else cache_dir() / "envs"


def environment(extras: Sequence[str]) -> Environment:
    """The environment of these extras under the present lock; nothing is made. Raises as `lockfile.check_extras`."""
    chosen = lockfile.check_extras(extras)
    return Environment(chosen, envs_dir() / "-".join([*chosen, lockfile.environment_key()]))


def ensure(
    wanted: Environment,
    verify: bool = False,
    uses_gpu: bool = True,
    make: Callable[[Environment], None] | None = None,
) -> Environment:
    """Make the environment, or reuse it; `verify` lets uv look over a complete one as well.

    `make` fills the folder in place of `uv sync` and makes its own checks. `uses_gpu`: an NVIDIA driver too old for the
    lock refuses. A second process that asks at the same time waits for the first. Raises EnvError.
    """
    if not verify and _current(wanted):
        return wanted
    uv.check_lock()
    with _locked(wanted):
        if not verify and _current(wanted):
            return wanted
        fresh = not wanted.complete()
        if fresh:
            shutil.rmtree(wanted.folder, ignore_errors=True)  # what a killed sync left may lack files inside packages
            if make is None:
                preflight.check(wanted.extras, wanted.folder, uses_gpu)
        try:
            (make or _download)(wanted)
            _write_marker(wanted)
        except BaseException:
            if fresh:  # a full disk, an interrupt: give the space back
                shutil.rmtree(wanted.folder, ignore_errors=True)
            raise
    return wanted


def download_size(wanted: Environment) -> tuple[int, int]:
    """Packages to be fetched and the most bytes that can take; (0, 0) when all are in uv's cache."""
    packages, n_download = uv.missing(wanted.folder, wanted.extras)
    largest = sorted(lockfile.download_sizes(packages).values(), reverse=True)
    return n_download, sum(largest[:n_download])


def _download(wanted: Environment) -> None:
    n_download, n_bytes = download_size(wanted)
    ui.talk(f"{'checking' if wanted.complete() else 'making'} the environment {wanted.folder}")
    ui.talk(f"  {' '.join(uv.sync_command(wanted.folder, wanted.extras))}")
    if n_download:
        ui.talk(f"  {n_download} packages to download, up to {ui.size(n_bytes)}, once; uv keeps them in its cache")
    else:
        ui.talk("  nothing to download: uv has every package in its cache")
    started = time.monotonic()
    if ui.interactive() and n_bytes:
        _sync_with_bar(wanted, n_bytes)
    else:
        uv.sync(wanted.folder, wanted.extras, lambda line: None if line.startswith(" + ") else ui.talk(f"  {line}"))
    ui.talk(f"environment ready after {time.monotonic() - started:.1f} s")


def _sync_with_bar(wanted: Environment, n_bytes: int) -> None:
    """Move a bar by a package's size whenever uv says that it has arrived (uv names the large ones only)."""
    sizes = lockfile.download_sizes(uv.missing(wanted.folder, wanted.extras)[0])
    with ui.download_progress("downloading", n_bytes) as bar:

        def on_line(line: str) -> None:
            words = line.split()
            if words[:1] == ["Downloading"]:
                bar.advance(0, f"downloading {words[1]}")
            elif words[:1] == ["Downloaded"]:
                bar.advance(sizes.get(words[1], 0))

        uv.sync(wanted.folder, wanted.extras, on_line)


def _current(wanted: Environment) -> bool:
    """Complete, and made from the pyproject.toml that lies beside the lock now (else the lock may be stale)."""
    marker = wanted.marker()
    return marker is not None and marker.get("pyproject") == _pyproject_digest()


def _pyproject_digest() -> str:
    return hashlib.sha256((lock_dir() / "pyproject.toml").read_bytes()).hexdigest()


def _write_marker(wanted: Environment) -> None:
    content = {
        "extras": list(wanted.extras),
        "lock": lockfile.digest(),
        "pyproject": _pyproject_digest(),
        "python": sys.version.split()[0],
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    draft = wanted.folder / f"{MARKER}.{os.getpid()}"
    draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    draft.replace(wanted.folder / MARKER)


@contextmanager
def _locked(wanted: Environment) -> Iterator[None]:
    """Hold `<folder>.lock`; the kernel lets go of it when the process ends, however it ends."""
    try:
        wanted.folder.parent.mkdir(parents=True, exist_ok=True)
        handle = wanted.folder.with_name(wanted.folder.name + ".lock").open("w")
    except OSError as problem:
        raise EnvError(
            f"environments cannot be written to {wanted.folder.parent}: {problem.strerror}",
            "RLX_ENVS=/a/writable/folder moves them",
        ) from problem
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ui.talk(f"another rlx is making {wanted.folder.name}: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def existing() -> list[tuple[Path, dict[str, Any] | None]]:
    """Folders under envs_dir() with their markers; None marks an incomplete one."""
    if not envs_dir().is_dir():
        return []
    folders = sorted(path for path in envs_dir().iterdir() if (path / "pyvenv.cfg").is_file())
    return [(folder, Environment((), folder).marker()) for folder in folders]
