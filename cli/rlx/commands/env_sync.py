"""`rlx env sync`: make an environment, or look over one."""

import typer

from rlx import ui
from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, WORDS, Backend, Engine, wanted_environment
from rlx.env import manager


def register(app: typer.Typer) -> None:
    app.command()(sync)


def sync(
    words: list[str] = WORDS,
    engine: Engine = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
) -> None:
    """Make an environment, or check one, and print its folder."""
    wanted = wanted_environment(words, engine, backend, extra)
    ui.out(str(manager.ensure(wanted, verify=True).folder))
