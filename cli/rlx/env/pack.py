"""`rlx env pack`: the locked wheels of an environment in one archive, for a machine without network."""

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx import ui
from rlx.env import archive, fetch, folder_lock, lockfile, preflight, sdist, uv
from rlx.env.archive import Manifest, Wheel
from rlx.env.locked_files import LockedFile, Target, glibc_of, select
from verl_core.config.errors import EnvError, UserError


@dataclass(frozen=True)
class Plan:
    """What would be packed: the files, and those that are in rlx's cache already."""

    extras: tuple[str, ...]
    target: Target
    files: list[LockedFile]
    kept: list[LockedFile]

    @property
    def n_bytes(self) -> int:
        """Size of the files; about that of the archive. Files of unknown size count 0."""
        return sum(file.n_bytes or 0 for file in self.files)

    @property
    def n_fetch(self) -> int:
        """Bytes to be fetched."""
        return self.n_bytes - sum(file.n_bytes or 0 for file in self.kept)

    def report(self, out: Path) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "out": str(out),
            "extras": list(self.extras),
            "system": self.target.system,
            "machine": self.target.machine,
            "python": self.target.python_version,
            "bytes": self.n_bytes,
            "to_fetch_bytes": self.n_fetch,
            "packages": [
                {"name": file.name, "version": file.version, "file": file.filename, "bytes": file.n_bytes}
                for file in self.files
            ],
        }


def plan(extras: Sequence[str], target: Target) -> Plan:
    """Choose the files. Needs no network. Raises UserError and EnvError as `lockfile.check_extras`, and EnvError for a
    stale lock or a package that has no file for the target."""
    chosen = lockfile.check_extras(extras)
    uv.check_lock()
    files = select(chosen, target)
    return Plan(chosen, target, files, [file for file in files if fetch.kept(file)])


def pack(planned: Plan, out: Path) -> int:
    """Fetch what is missing and write the archive; returns its bytes. It is there whole or not at all.

    Raises EnvError when there is no space or a file cannot be had as locked.
    """
    check_place(out)
    _check_space(planned, out)
    try:
        sources = _collect(planned)
        manifest = _manifest(planned, sources)
        files = [(name, lockfile.lock_dir() / name) for name in ("uv.lock", "pyproject.toml")]
        files += [(f"wheels/{path.name}", path) for path in sources]
        with ui.download_progress("writing", manifest.n_bytes) as bar:
            return archive.write(out, manifest, files, lambda n, _: bar.advance(n))
    except OSError as problem:
        raise EnvError(
            f"the archive {out} cannot be written: {problem.strerror or problem}",
            "free some space, or name another place with --out; what was fetched is kept (RLX_CACHE moves it)",
        ) from problem


def _collect(planned: Plan) -> list[Path]:
    """Every package's wheel in the cache. One rlx at a time fills it: the next takes what the first has fetched."""
    with folder_lock.held(fetch.wheels_dir(), "RLX_CACHE"):
        missing = [file for file in planned.files if file not in planned.kept and not fetch.kept(file)]
        with ui.download_progress("fetching", planned.n_fetch) as bar:
            fetch.fetch(missing, lambda n, name: bar.advance(n, f"fetching {name.split('-')[0]}"))
        return [_wheel_of(file, planned.target) for file in planned.files]


def check_place(out: Path) -> None:
    """UserError when `out` cannot be a file, before anything is fetched."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder", f"name a file: --out {out / 'rlx-env.tar'}")
    if out.exists() and not out.is_file():
        raise UserError(f"--out {out} is not a file", "name a file: --out rlx-env.tar")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.absolute().parent}", f"mkdir -p {out.parent}")


def _check_space(planned: Plan, out: Path) -> None:
    cache = preflight.existing_parent(fetch.wheels_dir())
    needs = {cache: planned.n_fetch}
    same_disk = cache.stat().st_dev == out.absolute().parent.stat().st_dev
    place = cache if same_disk else out.absolute().parent
    needs[place] = needs.get(place, 0) + planned.n_bytes
    for folder, needed in needs.items():
        if (free := shutil.disk_usage(folder).free) < needed:
            raise EnvError(
                f"no space in {folder}: {ui.size(needed)} needed, {ui.size(free)} free",
                "free some, name another place with --out, or move the cache of fetched files: RLX_CACHE=/big/disk",
            )


def _wheel_of(file: LockedFile, target: Target) -> Path:
    return fetch.place_of(file) if file.is_wheel else sdist.wheel_from(file, target)


def _manifest(planned: Plan, sources: list[Path]) -> Manifest:
    target = planned.target
    built = [path.name for file, path in zip(planned.files, sources, strict=True) if not file.is_wheel]
    glibc = _needed_glibc([path.name for path in sources], built, target.machine)
    return Manifest(
        rlx=lockfile.version(),
        lock=lockfile.digest(),
        pyproject=fetch.digest_of(lockfile.lock_dir() / "pyproject.toml"),
        extras=planned.extras,
        python=target.python_version,
        system=target.system,
        machine=target.machine,
        glibc=f"{glibc[0]}.{glibc[1]}" if glibc else None,
        wheels=tuple(_wheel(file, path) for file, path in zip(planned.files, sources, strict=True)),
    )


def _needed_glibc(wheels: list[str], built: list[str], machine: str) -> tuple[int, int] | None:
    """What the wheels' tags ask for; a wheel built here for this kind of machine may ask for the C library of here."""
    here = Target.here().glibc
    asked = [glibc_of(wheels, machine), here if any(not name.endswith("-any.whl") for name in built) else None]
    return max((version for version in asked if version), default=None)


def _wheel(file: LockedFile, path: Path) -> Wheel:
    with zipfile.ZipFile(path) as content:
        n_installed = sum(entry.file_size for entry in content.infolist())
    sha256, source = (file.sha256, None) if file.is_wheel else (fetch.digest_of(path), file.sha256)
    return Wheel(file.name, file.version, path.name, sha256, path.stat().st_size, n_installed, source)
