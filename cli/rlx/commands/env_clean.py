"""`rlx env clean`: environments removed, and never one that is in use."""

import shutil
import sys
from pathlib import Path
from typing import Any

import typer

from rlx import ui
from rlx.arguments import DRY_RUN_OPTION, JSON_OPTION
from rlx.env import folder_lock, manager, usage
from verl_core.config.errors import EnvError, UserError


def register(app: typer.Typer) -> None:
    app.command()(clean)


def clean(
    names: list[str] = typer.Argument(None, metavar="NAME", help="Environments as `rlx env ls` names them."),
    stale: bool = typer.Option(False, "--stale", help="Those made from another lock, and incomplete ones."),
    everything: bool = typer.Option(False, "--all", help="All of them."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    dry_run: bool = DRY_RUN_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Remove environments.

    What that frees is said first, and on a terminal you are asked. One that a running process uses, or that is being
    made, stays. A removed environment is made again when a job needs it.
    """
    if not (names or stale or everything):
        raise typer.BadParameter("say which: names from `rlx env ls`, --stale, or --all")
    chosen = _chosen(names or [], stale, everything)
    kept = {folder: reason for folder in chosen if (reason := _in_use(folder))}
    going = [folder for folder in chosen if folder not in kept]
    size = usage.measure(folder for folder in going if not folder.is_symlink())
    for folder in going:
        ui.talk(f"{'would remove' if dry_run else 'removing'} {folder.name}")
    ui.talk(f"this frees {ui.size(size.own)}; {ui.size(size.total - size.own)} stay, shared with uv's cache or others")
    if going and not (dry_run or yes or as_json) and sys.stdin.isatty() and not typer.confirm("Remove?", err=True):
        raise typer.Abort
    if not dry_run:
        kept |= {folder: reason for folder in going if (reason := _remove(folder))}
    for folder, reason in kept.items():
        ui.note(f"{folder.name} stays: {reason}")
    removed = [folder for folder in going if folder not in kept]
    if as_json:
        ui.out_json(_report(removed, kept, size.own, dry_run))


def _chosen(names: list[str], stale: bool, everything: bool) -> list[Path]:
    """The folders that the words name. UserError for a name that is not there."""
    found = manager.existing()
    known = {folder.name: folder for folder, _ in found}
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"there is no environment {unknown[0]} in {manager.envs_dir()}", "rlx env ls")
    return [
        folder
        for folder, marker in found
        if everything or folder.name in names or (stale and manager.state_of(marker) != "ready")
    ]


def _in_use(folder: Path) -> str | None:
    processes = usage.users(folder)
    return f"in use by process {', '.join(map(str, processes))}" if processes else None


def _remove(folder: Path) -> str | None:
    """Remove the folder, or say why it stays: another rlx makes it right now, or a process has started in it since the
    question was asked. What a kill leaves counts as incomplete. EnvError when it is not ours to remove."""
    with folder_lock.held_for_removal(folder) as is_ours:
        if not is_ours:
            return "it is being made"
        if reason := _in_use(folder):
            return reason
        try:
            if folder.is_symlink():
                folder.unlink()
            else:
                (folder / manager.MARKER).unlink(missing_ok=True)
                shutil.rmtree(folder)
        except OSError as problem:
            raise EnvError(
                f"{folder} cannot be removed: {problem.strerror} ({problem.filename})", "ask its owner, or root"
            ) from problem
    return None


def _report(removed: list[Path], kept: dict[Path, str], n_bytes: int, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "removed": [folder.name for folder in removed],
        "kept": {folder.name: reason for folder, reason in kept.items()},
        "freed_bytes": n_bytes,
    }
