"""`rlx init`: write a project folder from the templates."""

import shlex
from pathlib import Path

import typer

from rlx import text_files, ui
from rlx.arguments import DRY_RUN_OPTION, refuse_empty
from rlx.project import render
from rlx.templates import rlx_command, shell_words
from verl_core.config.compose import profile_names, resolve
from verl_core.config.errors import UserError
from verl_core.config.files import user_path

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
    refuse_empty(profile, "--profile")
    resolve(profile)  # an unknown profile is an error before anything is written
    if profile not in profile_names():
        raise UserError(
            f"--profile {profile} is a file", "name one of `rlx profile ls`, then `extends:` it in rlx.yaml"
        )
    folder = user_path(folder, "DIR")
    files = render(folder.absolute().name, profile)
    taken = [name for name in files if text_files.taken(folder / name)]
    if taken:
        place = "this folder" if folder == Path() else str(folder)
        raise UserError(
            f"{place} has {', '.join(taken)} already", f"name another: `rlx init {folder.absolute().name}-2`"
        )
    if not dry_run:
        try:
            text_files.write_all({folder / name: text for name, text in files.items()})
        except OSError as problem:
            raise UserError(f"{folder} cannot be written: {problem.strerror}", "name a folder you can write") from None
    for name in files:
        ui.out(str(folder / name))
    if not dry_run:
        place = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
        ui.talk(f"next: {place}{shell_words(rlx_command())} train --dry-run")
