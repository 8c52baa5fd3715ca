"""`rlx env shell`: an interactive shell inside an environment."""

import os
import shutil
from pathlib import Path

import typer

from rlx import ui
from rlx.commands.env_run import activated
from rlx.commands.env_wanted import BACKEND, ENGINE, EXTRA, FILE, WORDS, Backend, Engine, wanted_python
from rlx.env import launch
from verl_core.config.errors import UserError
from verl_core.config.files import templates_dir

MARK = "RLX_SHELL"
"""The variable that holds the name in the prompt; set, it tells a second `rlx env shell` of the first."""


def register(app: typer.Typer) -> None:
    app.command()(shell)


def shell(
    words: list[str] = WORDS,
    engine: list[Engine] = ENGINE,
    backend: Backend = BACKEND,
    extra: list[str] = EXTRA,
    file: Path = FILE,
) -> None:
    """Open your $SHELL inside an environment, its name in the prompt; `exit` leaves it.

    bash, zsh and fish read your own settings first. The shell's exit code is that of the command.
    """
    wanted = os.environ.get("SHELL") or "/bin/sh"
    program = shutil.which(wanted)
    if program is None:
        raise UserError(f"SHELL={wanted} is not a program", "SHELL=/bin/bash rlx env shell ...")
    if inside := os.environ.get(MARK):
        ui.note(f"this shell already is in {inside}; `exit` twice leaves both")
    python = wanted_python(words, engine, backend, extra, file)
    name = python.parent.parent.name
    arguments, variables = marked(Path(program).name, name, activated(python))
    launch.execute([program, *arguments], variables)


def marked(shell: str, name: str, variables: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """(arguments, variables) with which a shell of this name opens interactively with `name` in its prompt.

    A user's settings may put other folders first on PATH; RLX_SHELL_PATH carries the right one past them.
    """
    files = templates_dir() / "shell"
    marks = variables | {MARK: name, "RLX_SHELL_PATH": variables["PATH"]}
    if shell == "bash":
        return ["--rcfile", str(files / "bashrc"), "-i"], marks
    if shell == "zsh":
        users = {"RLX_USER_ZDOTDIR": os.environ["ZDOTDIR"]} if "ZDOTDIR" in os.environ else {}
        return ["-i"], marks | users | {"ZDOTDIR": str(files / "zsh")}
    if shell == "fish":
        return ["--init-command", f"source {files / 'init.fish'}", "--interactive"], marks
    return ["-i"], variables | {MARK: name, "PS1": f"({name}) $ "}
