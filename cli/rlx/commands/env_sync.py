"""`rlx env sync`: make an environment, or look over one."""

import os
from pathlib import Path

import typer

from rlx import ui
from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, FILE, WORDS, Backend, Engine, wanted_environment
from rlx.env import manager


def register(app: typer.Typer) -> None:
    app.command()(sync)


def sync(
    words: list[str] = WORDS,
    engine: list[Engine] = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
    file: Path = FILE,
    archive: Path = typer.Option(
        None,
        "--from",
        metavar="FILE",
        help="An archive of `rlx env pack`; named alone, all that it holds is installed.",
    ),
    offline: bool = typer.Option(False, "--offline", help="Never use the network: only uv's cache and the archive."),
) -> None:
    """Make an environment, or check one, and print its folder."""
    if offline:
        os.environ["UV_OFFLINE"] = "1"
    if archive is None:
        environment = manager.ensure(wanted_environment(words, engine, backend, extra, file), verify=True)
    else:
        from rlx.env import unpack

        named = words or engine or backend or extra or file
        wanted = wanted_environment(words, engine, backend, extra, file) if named else unpack.held(archive)
        environment = unpack.sync_from(archive, wanted, offline)
    ui.out(str(environment.folder))
