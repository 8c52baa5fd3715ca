"""`rlx profile cp`."""

from pathlib import Path
from typing import Any

import typer

from rlx import text_files, ui
from rlx.env.lockfile import version
from verl_core.config import yaml_text
from verl_core.config.compose import resolve
from verl_core.config.effective import effective
from verl_core.config.errors import UserError
from verl_core.config.files import user_path
from verl_core.config.layers import profile_path, read_layers
from verl_core.config.merge import overlay
from verl_core.config.unbuilt import unbuilt


def register(app: typer.Typer) -> None:
    app.command()(cp)


def cp(
    name: str = typer.Argument(..., metavar="PROFILE", help="A profile that comes with rlx."),
    file: Path = typer.Argument(..., metavar="FILE", help="Where to write it."),
    flat: bool = typer.Option(False, "--flat", help="Write out what it extends; comments are then lost."),
    force: bool = typer.Option(False, "--force", help="Overwrite FILE."),
) -> None:
    """Write a profile to a file of your own, with its comments.

    A file is used by its path: `rlx train ./FILE`.
    """
    text = profile_path(name).read_text(encoding="utf-8")
    how = "what it extends written out; " if flat else ""
    header = (
        f"# Copied from the profile {name} of rlx {version()}; {how}`rlx profile diff {name} FILE` compares them.\n"
    )
    target = user_path(file, "FILE")
    if text_files.taken(target) and not force:
        raise UserError(f"{file} exists", "name another file, or overwrite it with --force")
    try:
        text_files.write(target, header + (_flat(name) if flat else text))
    except OSError as error:
        raise UserError(
            f"cannot write {file}: {error.strerror}", "name a file in a folder that you can write"
        ) from None
    ui.talk(f"wrote {file}; `rlx train {_as_path(file)}` trains with it")
    for part in unbuilt(effective(resolve(name).config)):
        ui.warn(part)


def _flat(name: str) -> str:
    """Every key that the profile and what it extends set, as written."""
    tree: dict[str, Any] = {}
    for layer in read_layers(name, None)[1]:
        overlay(tree, layer.tree)
    return yaml_text.write(tree)


def _as_path(file: Path) -> str:
    """The file so that the command line takes it for a path and not for a profile's name."""
    return str(file) if "/" in str(file) or file.suffix in (".yaml", ".yml") else f"./{file}"
