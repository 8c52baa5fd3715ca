"""`rlx env lock`: the lock made anew, or compared with pyproject.toml."""

import typer

from rlx import ui
from rlx.env import lockfile, uv
from verl_core.config.errors import UserError
from verl_core.config.files import CORE, lock_dir


def register(app: typer.Typer) -> None:
    app.command()(lock)


def lock(
    check: bool = typer.Option(False, "--check", help="Change nothing; exit with 3 when the lock is stale."),
    upgrade: list[str] = typer.Option([], "--upgrade", metavar="PACKAGE", help="Let this package move; repeatable."),
) -> None:
    """Make uv.lock fit pyproject.toml; nothing else moves. For those who work on rlx itself, in its checkout."""
    if check and upgrade:
        raise typer.BadParameter("--check changes nothing, so there is nothing to --upgrade")
    if check:
        uv.check_lock()
        ui.talk(f"{lockfile.lock_file()} matches pyproject.toml")
        return
    if lock_dir() != CORE.parent:
        raise UserError(
            f"the lock in {lock_dir()} belongs to the installed rlx {lockfile.version()}",
            "another version of rlx brings another lock; in a checkout `rlx env lock` changes it",
        )
    before = lockfile.digest() if (lock_dir() / "uv.lock").is_file() else None
    uv.lock(upgrade)
    if before != lockfile.digest():
        ui.note("environments made from the old lock are stale now: `rlx env clean --stale` removes them")
    else:
        ui.talk(f"{lockfile.lock_file()} has not changed")
