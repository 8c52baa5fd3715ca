"""The C library: the glibc that locked wheels ask for in their file names, and the one that is here."""

import os
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from rlx.env.requirements import Package
from verl_core.config.errors import EnvError

Version = tuple[int, int]
OLD_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""glibc of the names from before PEP 600."""


def needed(packages: Iterable[Package]) -> tuple[Version, str] | None:
    """(glibc version, package that asks for it): the newest that any package's oldest fitting wheel asks for; None when
    none asks."""
    asked = [(least, package.name) for package in packages if (least := _least(package)) is not None]
    return max(asked) if asked else None


def _least(package: Package) -> Version | None:
    """The oldest glibc on which some wheel of the package runs; None when one runs anywhere or none is for here."""
    from packaging.utils import parse_wheel_filename

    asked: list[Version] = []
    for url in package.urls:
        for tag in parse_wheel_filename(PurePosixPath(unquote(urlsplit(url).path)).name)[3]:
            if (tag.interpreter, tag.abi) not in _interpreter_tags():
                continue
            if tag.platform in ("any", f"linux_{platform.machine()}"):
                return None
            if (version := of_tag(tag.platform)) is not None:
                asked.append(version)
    return min(asked, default=None)


@cache
def _interpreter_tags() -> set[tuple[str, str]]:
    from packaging.tags import sys_tags

    return {(tag.interpreter, tag.abi) for tag in sys_tags()}


def of_tag(tag: str, machine: str | None = None) -> Version | None:
    """glibc that a wheel's platform tag asks for: manylinux_2_28_x86_64 gives (2, 28). None for another machine type
    than `machine` (None: this one's) and for what is no manylinux."""
    wanted = machine or platform.machine()
    old, _, old_machine = tag.partition("_")
    if old in OLD_MANYLINUX:
        return OLD_MANYLINUX[old] if old_machine == wanted else None
    parts = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", tag)
    return (int(parts[1]), int(parts[2])) if parts and parts[3] == wanted else None


def present() -> Version | None:
    """The C library's version; None where it is not glibc (musl, macOS)."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return None
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) if name == "glibc" else None


def check(packages: Sequence[Package]) -> None:
    """EnvError when the system's C library is older than a locked wheel asks, or is another one."""
    asked, here = needed(packages), present()
    if sys.platform != "linux" or asked is None or (here is not None and here >= asked[0]):
        return
    version, package = asked
    raise EnvError(
        f"{package} needs glibc {_dotted(version)} or newer, and this system has {_c_library(here)}",
        "use a newer system or container image, or an interpreter that has what a job needs: RLX_PYTHON=/path/python",
    )


def _c_library(here: Version | None) -> str:
    return f"glibc {_dotted(here)}" if here else "another C library (musl?)"


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
