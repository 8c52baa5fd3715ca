"""What pyproject.toml and uv.lock say: the version, the extras, which exclude each other, how large packages are."""

import hashlib
import platform
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from verl_core.config.errors import EnvError, UserError
from verl_core.config.files import lock_dir


def lock_file() -> Path:
    """The uv.lock in use; EnvError when it is not there."""
    path = lock_dir() / "uv.lock"
    if not path.is_file():
        raise EnvError(f"no lockfile at {path}", "reinstall rlx, or run `uv lock` in the checkout")
    return path


def unreadable(path: Path, why: str) -> EnvError:
    """The error for a uv.lock or pyproject.toml that is not what it should be."""
    anew = ", or `rlx env lock`, which takes the newest versions" if path.name == "uv.lock" else ""
    return EnvError(
        f"{path} cannot be read: {why}", f"install rlx again; in a checkout `git restore {path.name}`{anew}"
    )


def content(path: Path) -> bytes:
    """What a file of the lock's folder holds; EnvError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise unreadable(path, problem.strerror or str(problem)) from problem


def _table(path: Path, name: str) -> dict[str, Any]:
    """A TOML file that has a table of this name; EnvError for any other."""
    try:
        found = tomllib.loads(content(path).decode())
    except ValueError as problem:  # no TOML, or not even text
        raise unreadable(path, str(problem)) from problem
    if name not in found:
        raise unreadable(path, f"it has no {name}")
    return found


@cache
def _project() -> dict[str, Any]:
    return _table(lock_dir() / "pyproject.toml", "project")


@cache
def _locked() -> list[dict[str, Any]]:
    return _table(lock_file(), "package")["package"]


def project() -> dict[str, Any]:
    """pyproject.toml as it is, for those who read a part of it that has no function here."""
    return _project()


def packages() -> list[dict[str, Any]]:
    """The `[[package]]` tables of uv.lock as they are: every version for every platform and extra."""
    return _locked()


def version() -> str:
    """rlx's version. Read from pyproject.toml: rlx is not installed inside its own environments."""
    return str(_project()["project"]["version"])


def requires_python() -> str:
    """The interpreter range of the lock, for example `>=3.12,<3.14`."""
    return str(_project()["project"]["requires-python"])


def extras() -> list[str]:
    """All extras that exist, sorted."""
    return sorted(_project()["project"]["optional-dependencies"])


def conflicts() -> list[list[str]]:
    """Groups of extras of which an environment holds one at most ([tool.uv] conflicts)."""
    groups = _project().get("tool", {}).get("uv", {}).get("conflicts", [])
    return [[member["extra"] for member in group if "extra" in member] for group in groups]


def excludes(extra: str) -> list[str]:
    """The extras that cannot be in one environment with this one, sorted."""
    return sorted({other for group in conflicts() if extra in group for other in group} - {extra})


def digest() -> str:
    """SHA-256 of uv.lock, hexadecimal."""
    return hashlib.sha256(content(lock_file())).hexdigest()


def environment_key() -> str:
    """12 hexadecimal digits that change with the lock, the Python minor version and the machine type: a home folder
    shared by an x86_64 and an aarch64 machine, or two Pythons, must not share an environment."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256(f"{digest()} {python} {sys.platform} {platform.machine()}".encode()).hexdigest()[:12]


def check_extras(wanted: Iterable[str]) -> tuple[str, ...]:
    """The extras sorted and without repeats.

    Raises UserError for a name that does not exist and EnvError for two that exclude each other, before uv runs.
    """
    chosen = tuple(sorted(set(wanted)))
    known = extras()
    for extra in chosen:
        if extra not in known:
            raise UserError(f"there is no extra {extra!r}", f"the extras are: {', '.join(known)}")
    for group in conflicts():
        for one, other in combinations([name for name in group if name in chosen], 2):
            from rlx.env.conflicts import excluded  # which reads the lock through this module

            raise excluded(chosen, one, other)
    return chosen


def download_sizes(packages: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Bytes of the file uv would fetch for each (name, version): the largest that fits this machine, else 0."""
    wanted = set(packages)
    sizes: dict[str, int] = {}
    for package in _locked():
        if (package["name"], package.get("version")) in wanted:
            files = [w for w in package.get("wheels", []) if _fits(w["url"])] or [package.get("sdist", {})]
            sizes[package["name"]] = max(file.get("size", 0) for file in files)
    return sizes


def _fits(url: str) -> bool:
    """A rough reading of the wheel's tags: this machine, and this Python or any."""
    _, _, tags = url.rsplit("/", 1)[-1].removesuffix(".whl").partition("-")
    python, abi, place = tags.rsplit("-", 3)[-3:]
    system = {"linux": "linux", "darwin": "macosx"}.get(sys.platform, sys.platform)
    machine_fits = place == "any" or (system in place and (platform.machine() in place or "universal2" in place))
    return machine_fits and (python.startswith("py3") or abi == "abi3" or python == f"cp3{sys.version_info.minor}")


def locked_version(name: str) -> list[str]:
    """The versions the lock holds of a package; more than one when extras disagree."""
    return sorted({p["version"] for p in _locked() if p["name"] == name and "version" in p})
