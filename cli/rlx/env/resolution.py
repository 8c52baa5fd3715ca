"""Which version of each package a set of extras installs here, walked through uv.lock without running uv.

uv writes into the lock under which extras and on which machine each dependency holds; its markers are evaluated by
`packaging`. About 20 ms once the lock is read; a test compares it with `uv export`.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from rlx.env import lockfile

_EXTRA = re.compile(r"extra (==|!=) '([^']+)'")


@cache
def versions(extras: tuple[str, ...]) -> dict[str, str]:
    """Package name -> version of what an environment of these extras holds on this machine, rlx itself left out.

    The extras must not exclude each other.
    """
    named: dict[str, list[dict[str, Any]]] = {}
    for package in lockfile.packages():
        named.setdefault(package["name"], []).append(package)
    project = named[lockfile.project()["project"]["name"]][0]
    active = frozenset(_conflict_name(project["name"], extra) for extra in extras)
    waiting = [*project.get("dependencies", ()), *_of_extras(project, extras)]
    seen: set[tuple[str, str, str | None]] = set()
    while waiting:
        wanted = waiting.pop()
        if not _holds(wanted.get("marker"), active):
            continue
        package = next(p for p in named[wanted["name"]] if wanted.get("version", p["version"]) == p["version"])
        for extra in (None, *wanted.get("extra", ())):
            part = (package["name"], package["version"], extra)
            if part not in seen:
                seen.add(part)
                waiting += _of_extras(package, [extra]) if extra else package.get("dependencies", ())
    return {name: version for name, version, _ in sorted(seen, key=lambda part: part[0])}


def direct(extra: str) -> list[str]:
    """Names of the packages that pyproject.toml itself lists under the extra and that apply here, as the lock has them:
    those of an extra inside it (`rlx[fsdp]`) are among them."""
    project = next(p for p in lockfile.packages() if p["name"] == lockfile.project()["project"]["name"])
    active = frozenset({_conflict_name(project["name"], extra)})
    return [entry["name"] for entry in _of_extras(project, [extra]) if _holds(entry.get("marker"), active)]


def pins(extra: str) -> dict[str, str]:
    """What an extra fixes that people ask for: name -> version of its packages that any extra lists by name."""
    listed = {name for each in lockfile.extras() for name in direct(each)}
    return {name: version for name, version in versions((extra,)).items() if name in listed}


def _of_extras(package: dict[str, Any], extras: Iterable[str]) -> list[dict[str, Any]]:
    return [entry for extra in extras for entry in package.get("optional-dependencies", {}).get(extra, ())]


def _conflict_name(package: str, extra: str) -> str:
    """How the lock's markers name an extra of a package that takes part in conflicts: `extra-3-rlx-vllm`."""
    return f"extra-{len(package)}-{package}-{extra}"


@cache
def _holds(marker: str | None, active: frozenset[str]) -> bool:
    if marker is None:
        return True
    from packaging.markers import Marker

    def known(match: re.Match[str]) -> str:
        is_true = (match[2] in active) == (match[1] == "==")
        return "sys_platform != ''" if is_true else "sys_platform == ''"

    return Marker(_EXTRA.sub(known, marker)).evaluate()
