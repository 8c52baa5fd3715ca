"""`rlx env ls` and `rlx env which`: what is on disk, and where a profile's environment lies."""

from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import JSON_OPTION
from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, FILE, WORDS, Backend, Engine, wanted_environment
from rlx.env import manager


def register(app: typer.Typer) -> None:
    app.command()(ls)
    app.command()(which)


def ls(as_json: bool = JSON_OPTION) -> None:
    """List the environments and their sizes.

    Files are hard links into uv's cache, so sizes overlap: removing one folder may free little.
    """
    rows = [
        {
            "name": folder.name,
            "state": "ready" if marker else "incomplete",
            "bytes": _bytes_of(folder),
            "extras": (marker or {}).get("extras", []),
            "made": (marker or {}).get("made"),
            "path": str(folder),
        }
        for folder, marker in manager.existing()
    ]
    if as_json:
        ui.out_json(rows)
    elif rows:
        ui.table(
            ("ENVIRONMENT", "STATE", "SIZE", "MADE"),
            [(str(r["name"]), str(r["state"]), ui.size(r["bytes"]), str(r["made"] or "")) for r in rows],
        )
    else:
        ui.talk(f"no environments in {manager.envs_dir()}; `rlx train` makes one when it needs it")


def which(
    words: list[str] = WORDS,
    engine: list[Engine] = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
    file: Path = FILE,
) -> None:
    """Print an environment's folder and nothing else, made or not."""
    ui.out(str(wanted_environment(words, engine, backend, extra, file).folder))


def _bytes_of(folder: Path) -> int:
    """Disk space of a folder, each file once."""
    seen: set[int] = set()
    total = 0
    for root, _, files in folder.walk():
        for name in files:
            stat = (root / name).lstat()
            if stat.st_ino not in seen:
                seen.add(stat.st_ino)
                total += stat.st_size
    return total
