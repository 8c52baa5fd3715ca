"""`rlx env run`: a command inside an environment."""

import os
import shutil
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, FILE, WORDS, Backend, Engine, wanted_python
from rlx.env import interpreter, launch
from verl_core.config.errors import UserError


class CommandAfterDashes(TyperCommand):
    """Keeps what follows `--` apart: it is another program's command line, and not ours to parse."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        ours, theirs = args[:split], args[split + 1 :]
        ctx.meta["command"] = theirs
        return super().parse_args(ctx, ours)


def register(app: typer.Typer) -> None:
    app.command(cls=CommandAfterDashes)(run)


def run(
    ctx: typer.Context,
    words: list[str] = WORDS,
    engine: list[Engine] = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
    file: Path = FILE,
) -> None:
    """Run a command inside an environment.

    Example: `rlx env run gsm8k-ppo -- python script.py`.

    rlx's source is on PYTHONPATH and the environment's programs come first on PATH. With RLX_PYTHON set, its
    interpreter is used instead.
    """
    command: list[str] = ctx.meta["command"]
    if not command:
        raise typer.BadParameter("name a command after `--`, for example: rlx env run smoke -- python script.py")
    python = wanted_python(words, engine, backend, extra, file)
    variables = activated(python)
    program = shutil.which(command[0], path=variables["PATH"])
    if program is None:
        raise UserError(f"there is no program {command[0]!r} in {python.parent} or on PATH", "check its name")
    launch.execute([program, *command[1:]], variables)


def activated(python: Path) -> dict[str, str]:
    """The variables of a program that runs in the interpreter's environment: its programs come first on PATH."""
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = launch.child_variables() | {"PATH": path}
    if not interpreter.chosen():
        variables["VIRTUAL_ENV"] = str(python.parent.parent)
    return variables
