"""`rlx init`: write a project folder from the templates."""

import shlex
from pathlib import Path

import typer

from rlx import ui
from rlx.arguments import DRY_RUN_OPTION
from rlx.project import render
from rlx.templates import rlx_command, shell_words
from verl_core.config.compose import profile_names, resolve
from verl_core.config.errors import UserError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def init(
    folder: Path = typer.Argument(Path(), metavar="[DIR]", help="Project folder; made if need be."),
    profile: str = typer.Option("smoke", "--profile", help="Profile the project starts from (see `rlx profile ls`)."),
    dry_run: bool = DRY_RUN_OPTION,
) -> None:
    """Write a project folder: configuration, reward, launch scripts.

    Nothing that exists is overwritten.

    Example: `rlx init my-project --profile gsm8k-grpo`.
    """
    resolve(profile)  # an unknown profile is an error before anything is written
    if profile not in profile_names():
        raise UserError(
            f"--profile {profile} is a file", "name one of `rlx profile ls`, then `extends:` it in rlx.yaml"
        )
    files = render(folder.absolute().name, profile)
    try:
        taken = [name for name in files if (folder / name).exists()]
    except OSError as problem:
        raise _unwritable(folder, problem) from problem
    if taken:
        place = "this folder" if folder == Path() else str(folder)
        raise UserError(
            f"{place} has {', '.join(taken)} already", f"name another: `rlx init {folder.absolute().name}-2`"
        )
    for name, text in files.items():
        if not dry_run:
            _write(folder / name, text)
        ui.out(str(folder / name))
    if not dry_run:
        place = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
        ui.talk(f"next: {place}{shell_words(rlx_command())} train --dry-run")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)
    except OSError as problem:
        raise _unwritable(path, problem) from problem


def _unwritable(path: Path, problem: OSError) -> UserError:
    return UserError(f"{path} cannot be written: {problem.strerror}", "name a folder you can write")
