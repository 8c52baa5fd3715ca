"""`rlx env ls` and `rlx env which`: what is on disk, which extras there are, where a profile's environment lies."""

from pathlib import Path
from typing import Any

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION
from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, FILE, WORDS, Backend, Engine, wanted_environment
from rlx.env import lockfile, manager, resolution, usage


def register(app: typer.Typer) -> None:
    app.command()(ls)
    app.command()(which)


def ls(
    own: bool = typer.Option(False, "--own", help="Measure now: the size, and what removing it would free (seconds)."),
    extras: bool = typer.Option(False, "--extras", help="List the extras instead: what each pins and excludes."),
    as_json: bool = JSON_OPTION,
) -> None:
    """List the environments and their sizes.

    SIZE is that of the day it was made, with what it shares with uv's cache and other environments by hard links; OWN,
    with --own, is what removing it frees. A stale one was made from another lock than the present one, an incomplete
    one by a sync that was killed.
    """
    if extras:
        _list_extras(as_json)
        return
    rows = _environments(own)
    if as_json:
        ui.out_json(rows)
    elif rows:
        header = ("ENVIRONMENT", "STATE", "SIZE", *(("OWN",) if own else ()), "MADE")
        ui.table(header, [_cells(row, own) for row in rows])
    else:
        ui.talk(f"no environments in {manager.envs_dir()}; `rlx train` makes one when it needs it")


def which(
    words: list[str] = WORDS,
    engine: list[Engine] = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
    file: Path = FILE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Print an environment's folder and nothing else, made or not."""
    wanted = wanted_environment(words, engine, backend, extra, file)
    if as_json:
        state = "absent" if not wanted.folder.exists() else manager.state_of(wanted.marker())
        ui.out_json({"path": str(wanted.folder), "state": state, "extras": wanted.extras, "python": str(wanted.python)})
    else:
        ui.out(str(wanted.folder))


def _environments(measured: bool) -> list[dict[str, Any]]:
    """A row for each. Unless `measured`, the size is the marker's (None where there is no such), and what is its own is
    not known."""
    found = manager.existing()
    sizes = _sizes([folder for folder, _ in found]) if measured else [None] * len(found)
    return [
        {
            "name": folder.name,
            "state": manager.state_of(marker),
            "bytes": size.total if size else (marker or {}).get("bytes"),
            "own_bytes": size.own if size else None,
            "shared_bytes": size.total - size.own if size else None,
            "extras": (marker or {}).get("extras", []),
            "lock": (marker or {}).get("lock"),
            "python": (marker or {}).get("python"),
            "made": (marker or {}).get("made"),
            "path": str(folder),
        }
        for (folder, marker), size in zip(found, sizes, strict=True)
    ]


def _cells(row: dict[str, Any], own: bool) -> list[str]:
    sizes = [row["bytes"], *([row["own_bytes"]] if own else [])]
    return [row["name"], row["state"], *("?" if n is None else ui.size(n) for n in sizes), row["made"] or ""]


def _sizes(folders: list[Path]) -> list[usage.Size]:
    """Sizes one by one. An environment has some 50 000 files, which takes 0.2 s: several are read at once."""
    if len(folders) < 2:
        return [usage.measure([folder]) for folder in folders]
    from concurrent.futures import ProcessPoolExecutor  # 30 ms that `which` need not pay

    with ProcessPoolExecutor() as pool:
        return list(pool.map(usage.measure, ([folder] for folder in folders)))


def _list_extras(as_json: bool) -> None:
    """All of it is read from pyproject.toml and uv.lock, for this machine."""
    pins = {extra: resolution.pins(extra) for extra in lockfile.extras()}
    if as_json:
        ui.out_json({extra: {"pins": pins[extra], "excludes": lockfile.excludes(extra)} for extra in pins})
        return
    listed = {extra: ", ".join(f"{name} {version}" for name, version in pins[extra].items()) for extra in pins}
    ui.table(
        ("EXTRA", "EXCLUDES", "PINS"),
        [(extra, ", ".join(lockfile.excludes(extra)), listed[extra]) for extra in pins],
    )
