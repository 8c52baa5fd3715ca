"""What an environment of some extras needs on this machine: its locked packages and where they come from."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from rlx.env import lockfile, resolution


@dataclass(frozen=True)
class Package:
    """A locked package that this machine would install."""

    name: str
    version: str
    urls: tuple[str, ...] = field(repr=False)  # of its wheels, for every platform
    largest: int = 0  # bytes of the largest file that fits here


@cache
def locked_packages(extras: tuple[str, ...]) -> list[Package]:
    """The packages of an environment of these extras, here; rlx itself left out."""
    chosen = resolution.versions(extras)
    sizes = lockfile.download_sizes(chosen.items())
    return [
        Package(table["name"], table["version"], _urls(table), sizes.get(table["name"], 0))
        for table in lockfile.packages()
        if chosen.get(table["name"]) == table.get("version", "")
    ]


def _urls(table: dict[str, Any]) -> tuple[str, ...]:
    return tuple(wheel.get("url") or wheel.get("path", "") for wheel in table.get("wheels", []))


def hosts(packages: Iterable[Package]) -> set[str]:
    """The servers (scheme://host[:port]) that uv fetches these packages from. It takes the addresses that the lock
    holds; an index named by UV_INDEX or UV_DEFAULT_INDEX has no say in a frozen sync."""
    parts = (urlsplit(url) for package in packages for url in package.urls)
    return {f"{part.scheme}://{part.netloc}" for part in parts if part.scheme in ("http", "https")}


def download_total(packages: Iterable[Package]) -> int:
    """Bytes of all files, compressed, as uv would fetch them into an empty cache."""
    return sum(package.largest for package in packages)


def asked_for(extras: Iterable[str]) -> list[str]:
    """The packages that pyproject.toml itself asks for here: the project's own, then the extras', each once."""
    from packaging.requirements import Requirement

    own = [Requirement(text).name for text in lockfile.project()["project"]["dependencies"]]
    return [*dict.fromkeys([*own, *(name for extra in extras for name in resolution.direct(extra))])]
