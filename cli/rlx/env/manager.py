"""Environments on disk: `<envs>/<extras>-<key>`, made once by `uv sync` and reused without running uv.

The marker `rlx-env.json` is written last, so a folder without it is incomplete and is made again. Packages are hard
links into uv's cache: a second engine costs what it adds, and never another copy of torch.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx import ui
from rlx.env import bytecode, folder_lock, lockfile, preflight, resolution, usage, uv
from verl_core.config.errors import EnvError
from verl_core.config.files import cache_dir, lock_dir, path_fault

MARKER = "rlx-env.json"
ENOUGH_LINKED = 0.2
"""Share of an environment's source files; with less from others, a new environment is compiled at once."""


@dataclass(frozen=True)
class Environment:
    """A set of extras and the folder that holds, or will hold, them."""

    extras: tuple[str, ...]
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def marker(self) -> dict[str, Any] | None:
        """What the folder holds, or None when it is absent, incomplete, torn or its interpreter is gone."""
        try:
            found = json.loads((self.folder / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = isinstance(found, dict) and found.keys() >= {"extras", "lock", "made"}
        return found if whole and self.python.exists() else None

    def complete(self) -> bool:
        return self.marker() is not None


def envs_dir() -> Path:
    """Where environments live: RLX_ENVS, else `envs` in rlx's cache folder. EnvError for what cannot be a path."""
    moved = os.environ.get("RLX_ENVS")
    if moved and (fault := path_fault(moved)):
        raise EnvError(f"RLX_ENVS={moved[:80]}: {fault}", "RLX_ENVS=/a/writable/folder moves environments")
    return Path(moved).expanduser().absolute() if moved else cache_dir() / "envs"


def environment(extras: Sequence[str]) -> Environment:
    """The environment of these extras under the present lock; nothing is made. Raises as `lockfile.check_extras`."""
    chosen = lockfile.check_extras(extras)
    return Environment(chosen, envs_dir() / "-".join([*chosen, lockfile.environment_key()]))


def ensure(
    wanted: Environment,
    verify: bool = False,
    uses_gpu: bool = True,
    make: Callable[[Environment], bool] | None = None,
    compile_all: bool = False,
) -> Environment:
    """Make the environment, or reuse it; `verify` lets uv look over a complete one as well, `compile_all` leaves no
    byte code to a first import.

    `make` fills the folder in place of `uv sync`, makes its own checks and tells whether byte code should be compiled.
    `uses_gpu`: an NVIDIA driver too old for the lock refuses. A second process that asks at the same time waits for the
    first. Raises EnvError.
    """
    if _current(wanted) and not (verify or compile_all):
        return wanted
    uv.check_lock()
    with folder_lock.held(wanted.folder):
        lacks_bytecode = False
        if verify or not _current(wanted):
            lacks_bytecode = _make(wanted, uses_gpu, make)
        if (lacks_bytecode or compile_all) and _compile(wanted):
            _write_marker(wanted, {**(wanted.marker() or {}), "bytes": usage.measure([wanted.folder]).total})
    return wanted


def _make(wanted: Environment, uses_gpu: bool, make: Callable[[Environment], bool] | None) -> bool:
    """Fill the folder and write its marker; True when its byte code should be compiled now."""
    fresh = not wanted.complete()
    if fresh:
        shutil.rmtree(wanted.folder, ignore_errors=True)  # what a killed sync left may lack files inside packages
        if make is None:
            _check_extras_hold_something(wanted)
            preflight.check(wanted.extras, wanted.folder, uses_gpu)
    try:
        lacks_bytecode = (make or _download)(wanted)
        _write_marker(wanted, _description(wanted))
    except BaseException:
        if fresh:  # a full disk, an interrupt: give the space back
            shutil.rmtree(wanted.folder, ignore_errors=True)
        raise
    return lacks_bytecode


def _check_extras_hold_something(wanted: Environment) -> None:
    """EnvError for an extra without a package for this machine: its environment would be made, and lack the engine."""
    for extra in wanted.extras:
        if not resolution.direct(extra):
            raise EnvError(
                f"the extra {extra} holds nothing for {sys.platform} on {platform.machine()}",
                "another engine: rollout.engine=hf",
            )


def download_size(wanted: Environment) -> tuple[int, int]:
    """As `preflight.to_download`, of this environment."""
    return preflight.to_download(wanted.folder, wanted.extras)


def _download(wanted: Environment) -> bool:
    """`uv sync`, then byte code from the environments beside it. True when byte code should be compiled: packages are
    new on this machine, or other environments had too little. Else what is missing is left to the first import."""
    fresh = not wanted.complete()
    n_download, n_bytes = download_size(wanted)
    ui.talk(f"{'making' if fresh else 'checking'} the environment {wanted.folder}")
    ui.talk(f"  {uv.shown_sync(wanted.folder, wanted.extras)}")
    if n_download:
        ui.talk(f"  {n_download} packages to download, up to {ui.size(n_bytes)}, once; uv keeps them in its cache")
    else:
        ui.talk("  nothing to download: uv has every package in its cache")
    started = time.monotonic()
    if ui.interactive() and n_bytes:
        _sync_with_bar(wanted, n_bytes)
    else:
        uv.sync(wanted.folder, wanted.extras, lambda line: None if line.startswith(" + ") else ui.talk(f"  {line}"))
    few_linked = fresh and not _link_bytecode(wanted)
    ui.talk(f"environment ready after {time.monotonic() - started:.1f} s")
    return fresh and (n_download > 0 or few_linked)


def _link_bytecode(wanted: Environment) -> bool:
    """Link byte code from complete environments, the newest first; whether that was enough to leave the rest for
    later. Another engine's environment has a third of what an engine needs, torch and all that is imported with it."""
    others = [(marker["made"], folder) for folder, marker in existing() if marker and folder != wanted.folder]
    linked, missing = bytecode.link(wanted.folder, [folder for _, folder in sorted(others, reverse=True)])
    if linked < ENOUGH_LINKED * (linked + missing):
        return False
    rest = f"; {missing} are compiled when first imported (`rlx env sync --compile` does it now)" if missing else ""
    ui.talk(f"  byte code of {linked} files linked from other environments{rest}")
    return True


def _compile(wanted: Environment) -> bool:
    """Compile what lacks byte code. The environment works without it, so a failure is only said. Whether it is done."""
    started = time.monotonic()
    ui.talk("compiling byte code, once: the first start would be slow without it")
    try:
        uv.compile_bytecode(wanted.folder, wanted.extras)
    except EnvError as problem:
        ui.warn(f"byte code is not compiled: {problem.message}")
        return False
    ui.talk(f"compiled after {time.monotonic() - started:.1f} s")
    return True


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
    return hashlib.sha256(lockfile.content(lock_dir() / "pyproject.toml")).hexdigest()


def _description(wanted: Environment) -> dict[str, Any]:
    """What the marker says. The size is measured now (0.2 s), so that `rlx env ls` need not walk through 50 000 files;
    what is compiled at a first import comes on top."""
    return {
        "extras": list(wanted.extras),
        "lock": lockfile.digest(),
        "pyproject": _pyproject_digest(),
        "python": sys.version.split()[0],
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "bytes": usage.measure([wanted.folder]).total,
    }


def _write_marker(wanted: Environment, content: dict[str, Any]) -> None:
    draft = wanted.folder / f"{MARKER}.{os.getpid()}"
    draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    draft.replace(wanted.folder / MARKER)


def existing() -> list[tuple[Path, dict[str, Any] | None]]:
    """Folders under envs_dir() with their markers; None marks an incomplete one."""
    if not envs_dir().is_dir():
        return []
    folders = sorted(path for path in envs_dir().iterdir() if (path / "pyvenv.cfg").is_file())
    return [(folder, Environment((), folder).marker()) for folder in folders]


def state_of(marker: dict[str, Any] | None) -> str:
    """`ready`, `stale` (made from another lock than the present one) or `incomplete`, by a folder's marker."""
    if marker is None:
        return "incomplete"
    return "ready" if marker["lock"] == lockfile.digest() else "stale"
