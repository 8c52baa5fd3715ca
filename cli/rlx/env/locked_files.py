"""Which files of uv.lock an environment is made of, on this machine or on another one.

uv tells which packages a set of extras takes (`uv export`, PEP 751); `packaging` chooses each one's file as uv would.
"""

import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rlx.env import glibc as c_library
from rlx.env import lockfile, uv
from verl_core.config.errors import EnvError

if TYPE_CHECKING:
    from packaging.markers import Environment as Markers
    from packaging.pylock import Package, Pylock
    from packaging.tags import Tag

OLDEST_GLIBC = 5
"""Minor version of manylinux1's glibc; no wheel asks for an older one."""
USUAL_GLIBC = (2, 35)
"""Assumed of a Linux machine when rlx packs on another system: Ubuntu 22.04's."""


@dataclass(frozen=True)
class Target:
    """The machine an environment is for, and the interpreter's minor version (always the one that runs rlx)."""

    machine: str
    glibc: tuple[int, int] | None = None  # None: no Linux with glibc
    system: str = "linux"
    python: tuple[int, int] = sys.version_info[:2]

    @classmethod
    def here(cls) -> "Target":
        return cls(platform.machine(), c_library.present(), sys.platform)

    @classmethod
    def linux(cls, machine: str | None, glibc: tuple[int, int] | None) -> "Target":
        """A Linux machine; what is None is as it is here."""
        return cls(machine or platform.machine(), glibc or c_library.present() or USUAL_GLIBC)

    def __str__(self) -> str:
        place = f"{self.system} on {self.machine}"
        return f"{place} with glibc {self.glibc[0]}.{self.glibc[1]}" if self.glibc else place

    @property
    def python_version(self) -> str:
        return f"{self.python[0]}.{self.python[1]}"

    def is_here(self) -> bool:
        return (self.system, self.machine) == (sys.platform, platform.machine())

    def markers(self) -> "Markers":
        """The values of environment markers there."""
        from packaging.markers import default_environment

        found = default_environment()
        if not self.is_here():
            found["platform_machine"] = self.machine
            found["sys_platform"], found["platform_system"], found["os_name"] = "linux", "Linux", "posix"
        return found

    def tags(self) -> "list[Tag]":
        """The wheel tags that fit there, the best first."""
        from packaging.tags import compatible_tags, cpython_tags, sys_tags

        if self.glibc is None:
            return list(sys_tags())
        places = list(_linux_platforms(self.machine, self.glibc))
        interpreter = f"cp{self.python[0]}{self.python[1]}"
        return [*cpython_tags(self.python, platforms=places), *compatible_tags(self.python, interpreter, places)]


def _linux_platforms(machine: str, glibc: tuple[int, int]) -> Iterator[str]:
    old = {version: name for name, version in c_library.OLD_MANYLINUX.items()}
    for minor in range(glibc[1], OLDEST_GLIBC - 1, -1):
        yield f"manylinux_{glibc[0]}_{minor}_{machine}"
        if (glibc[0], minor) in old:
            yield f"{old[glibc[0], minor]}_{machine}"
    yield f"linux_{machine}"


@dataclass(frozen=True)
class LockedFile:
    """A package and the file it is installed from: a wheel, or a source distribution where no wheel fits."""

    name: str
    version: str
    url: str
    sha256: str
    n_bytes: int | None  # None: the index did not tell the lock
    hashes: frozenset[str] = field(repr=False)  # SHA-256 of all files that the lock holds of this version

    @property
    def filename(self) -> str:
        return unquote(urlsplit(self.url).path.rsplit("/", 1)[-1])

    @property
    def is_wheel(self) -> bool:
        return self.filename.endswith(".whl")


def select(extras: Sequence[str], target: Target) -> list[LockedFile]:
    """The files of an environment of these extras on `target`, in the order of their names. Needs no network.

    Raises EnvError when the lock has no file that fits.
    """
    from packaging.pylock import PylockSelectError

    try:
        chosen = list(_export(extras).select(environment=target.markers(), tags=target.tags()))
    except PylockSelectError as problem:
        raise EnvError(
            f"the lock has no file for {target}: {problem}",
            "`rlx env pack` packs for this machine, or for the one that --platform and --glibc describe",
        ) from problem
    return [_locked_file(package, file) for package, file in chosen]


def _export(extras: Sequence[str]) -> "Pylock":
    from packaging.pylock import Pylock

    options = ["--frozen", "--offline", "--no-emit-project", "--no-default-groups", "--format", "pylock.toml"]
    command = [uv.find(), "export", "-q", "--project", str(lockfile.lock_dir()), "--python", sys.executable, *options]
    done = subprocess.run(
        [*command, *(f"--extra={extra}" for extra in extras)],
        env=uv.environ(lockfile.lock_dir() / ".venv"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise uv.explain(done.stderr, lockfile.lock_file())
    return Pylock.from_dict(tomllib.loads(done.stdout))


def _locked_file(package: "Package", file: object) -> LockedFile:
    from packaging.pylock import PackageSdist, PackageWheel

    if not isinstance(file, PackageWheel | PackageSdist) or file.url is None or "sha256" not in file.hashes:
        raise EnvError(
            f"{package.name} {package.version} is not locked to a file with an address and a SHA-256",
            "lock it from a package index: `rlx env lock`",
        )
    siblings = [*(package.wheels or ()), *([package.sdist] if package.sdist else ())]
    hashes = frozenset(sibling.hashes["sha256"] for sibling in siblings if "sha256" in sibling.hashes)
    return LockedFile(package.name, str(package.version), file.url, file.hashes["sha256"], file.size, hashes)


def glibc_of(wheels: Iterable[str], machine: str) -> tuple[int, int] | None:
    """The glibc that such a machine needs for all of these wheels (file names); None when none asks for one."""
    from packaging.utils import parse_wheel_filename

    asked = []
    for name in wheels:
        versions = [c_library.of_tag(tag.platform, machine) for tag in parse_wheel_filename(name)[3]]
        if known := [version for version in versions if version is not None]:
            asked.append(min(known))
    return max(asked, default=None)
