"""`rlx env prefetch`: uv's cache filled for every environment that jobs may need, for images and sites without
network."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rlx import ui
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION
from rlx.env import lockfile, manager, preflight, resolution, uv
from verl_core.config.errors import UserError

HF = "hf"
"""The engine that needs no extra."""


def register(app: typer.Typer) -> None:
    app.command()(prefetch)


def prefetch(
    engines: list[str] = typer.Argument(
        None,
        metavar="ENGINE",
        help="Only the combinations with these extras that exclude others; hf: with none of them.",
    ),
    dry_run: bool = DRY_RUN_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Download all packages of every allowed combination of extras into uv's cache.

    Afterwards each environment is made in seconds and without network. Sizes are said first.

    Example, in a Dockerfile: `RUN rlx env prefetch vllm`.
    """
    combinations = combinations_of(engines or [])
    if left_out := set() if has_compiler() else from_source():
        ui.warn(f"without {' and '.join(sorted(left_out))}: a package of it is built from source, and cc is not here")
    rows = [_sized(tuple(extra for extra in extras if extra not in left_out)) for extras in combinations]
    if not as_json:
        ui.table(
            ("EXTRAS", "PACKAGES", "TO DOWNLOAD", "SIZE"),
            [(" ".join(r["extras"]), str(r["packages"]), str(r["download"]), _at_most(r["bytes"])) for r in rows],
        )
    if not dry_run:
        for row in rows:
            if row["download"]:
                _fetch(row["extras"])
    if as_json:
        ui.out_json({"dry_run": dry_run, "combinations": rows})


def combinations_of(engines: Sequence[str]) -> list[tuple[str, ...]]:
    """Every choice among the extras that exclude others, with all extras that exclude none. What does not exist on this
    machine is left out.

    `engines` limits them to those with one of these extras; `hf` is the one with none of them. UserError for a name
    that excludes nothing.
    """
    usable = [extra for extra in lockfile.extras() if resolution.direct(extra)]
    exclusive = [extra for extra in usable if lockfile.excludes(extra)]
    for engine in engines:
        if engine not in (*exclusive, HF):
            raise UserError(f"{engine!r} is not one of {', '.join([*exclusive, HF])}", "`rlx env ls --extras`")
    choices: list[set[str]] = [set()]
    for extra in exclusive:
        choices += [{*choice, extra} for choice in choices if not choice & {*lockfile.excludes(extra)}]
    wanted = {*(engines or [*exclusive, HF])}
    free = {*usable} - {*exclusive}
    return [tuple(sorted(choice | free)) for choice in choices if (choice or {HF}) & wanted]


def from_source() -> set[str]:
    """The extras with a package that has no wheel."""
    sources = {package["name"] for package in lockfile.packages() if package.get("sdist") and not package.get("wheels")}
    return {extra for extra in lockfile.extras() if sources & resolution.versions((extra,)).keys()}


def has_compiler() -> bool:
    """Whether Python's build tools find a C compiler: $CC, else cc."""
    return shutil.which(os.environ.get("CC", "cc").split()[0]) is not None


def _sized(extras: tuple[str, ...]) -> dict[str, Any]:
    n_download, n_bytes = manager.download_size(manager.environment(extras))
    return {"extras": extras, "packages": len(resolution.versions(extras)), "download": n_download, "bytes": n_bytes}


def _at_most(n_bytes: int) -> str:
    return f"up to {ui.size(n_bytes)}" if n_bytes else "in uv's cache"


def _fetch(extras: tuple[str, ...]) -> None:
    """Make an environment of symbolic links into uv's cache, which costs no space on any disk, and drop it."""
    preflight.check(extras, manager.environment(extras).folder, uses_gpu=False)
    ui.talk(f"fetching {' '.join(extras)}")
    with tempfile.TemporaryDirectory(prefix="rlx-prefetch-") as scratch:
        uv.sync(Path(scratch) / "env", extras, _said, link_mode="symlink")


def _said(line: str) -> None:
    if line.strip().startswith(("Downloading", "Downloaded", "Building", "Built", "Prepared")):
        ui.talk(f"  {line.strip()}")
