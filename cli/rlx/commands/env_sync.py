"""`rlx env sync`: make an environment."""

import os
from pathlib import Path

import typer

from rlx import ui
from rlx.commands.env_wanted import (
    BACKEND,
    ENGINE,
    EXTRA,
    FILE,
    WORDS,
    Backend,
    Engine,
    may_use_gpu,
    say_substitute,
    wanted_environment,
)
from rlx.env import interpreter, manager
from verl_core.config.files import source_paths


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
    verify: bool = typer.Option(False, "--verify", help="Let uv look over an environment that is complete."),
    compile_all: bool = typer.Option(
        False, "--compile", help="Compile all byte code now; else what no environment has waits for its first import."
    ),
    offline: bool = typer.Option(False, "--offline", help="Never use the network: only uv's cache and the archive."),
) -> None:
    """Make an environment and print its folder.

    One that is complete is left as it is, and uv is not run. What it takes and shares: `rlx env ls`.
    """
    if offline:
        os.environ["UV_OFFLINE"] = "1"
    if named := interpreter.chosen():
        ui.note(f"RLX_PYTHON is set: jobs run in {named}, not in what this makes")
    uses_gpu = may_use_gpu(words, file, bool(engine or backend or extra))
    if archive is None:
        wanted = wanted_environment(words, engine, backend, extra, file)
        say_substitute(wanted.extras, extra)
        environment = manager.ensure(wanted, verify, uses_gpu, compile_all=compile_all)
    else:
        from rlx.env import unpack

        chosen = words or engine or backend or extra or file
        wanted = wanted_environment(words, engine, backend, extra, file) if chosen else unpack.held(archive)
        make = unpack.maker(archive, wanted, offline, uses_gpu)
        environment = manager.ensure(wanted, verify, uses_gpu, make, compile_all)
    source_paths()  # a rank that another machine starts here finds rlx, also where no job ever ran
    ui.out(str(environment.folder))
