"""What an environment of some extras needs on this machine: its locked packages and where they come from."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from rlx.env import lockfile, uv


@dataclass(frozen=True)
class Package:
    """A locked package that this machine would install."""

    name: str
    version: str
    urls: tuple[str, ...] = field(repr=False)  # of its wheels, for every platform
    largest: int = 0  # bytes of the largest file that fits here


@cache
def locked_packages(extras: tuple[str, ...]) -> list[Package]:
    """The packages of an environment of these extras, here. uv evaluates which extras take which; about 50 ms.

    Raises EnvError when uv cannot read the lock.
    """
    from packaging.requirements import Requirement

    options = ["--frozen", "--offline", "--no-hashes", "--no-emit-project", "--no-default-groups", "--no-header"]
    command = [uv.find(), "export", "-q", "--project", str(lockfile.lock_dir()), "--python", sys.executable, *options]
    done = subprocess.run(
        [*command, "--no-annotate", *(f"--extra={extra}" for extra in extras)],
        env=uv.environ(lockfile.lock_dir() / ".venv"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise uv.explain(done.stderr, lockfile.lock_file())
    lines = (line for line in done.stdout.splitlines() if line and not line.startswith(("#", "-")))
    wanted = [requirement for requirement in map(Requirement, lines) if _applies(requirement)]
    chosen = {(requirement.name, str(requirement.specifier).lstrip("=")) for requirement in wanted}
    sizes = lockfile.download_sizes(chosen)
    return [
        Package(table["name"], table["version"], _urls(table), sizes.get(table["name"], 0))
        for table in lockfile.packages()
        if (table["name"], table.get("version")) in chosen
    ]


def _applies(requirement: Any) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


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


def interpreter_needs(extras: Iterable[str]) -> Iterator[str]:
    """Names of the packages that pyproject.toml asks for here: the project's own and the extras', each once."""
    from packaging.requirements import Requirement

    project = lockfile.project()["project"]
    waiting = [*project["dependencies"], *(text for extra in extras for text in _of_extra(project, extra))]
    seen = set()
    while waiting:
        requirement = Requirement(waiting.pop(0))
        if requirement.name == project["name"]:  # rlx[fsdp]: one extra holds another
            waiting += [text for extra in sorted(requirement.extras) for text in _of_extra(project, extra)]
        elif _applies(requirement) and requirement.name not in seen:
            seen.add(requirement.name)
            yield requirement.name


def _of_extra(project: dict[str, Any], extra: str) -> list[str]:
    return project["optional-dependencies"][extra]
