"""The folders of a veRL run: `latest_checkpointed_iteration.txt`, `global_step_N/actor`, `global_step_N/critic`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from verl_core.checkpoint.find import step_of
from verl_core.config.errors import UserError

ROLES = ("actor", "critic")
TRACKER = "latest_checkpointed_iteration.txt"


def role_folder(folder: Path, role: str, holds_one: Callable[[Path], bool]) -> tuple[Path, str] | None:
    """The folder that `holds_one` accepts, and its role: a role's own, that of `role` in a `global_step_N`, or in the
    newest step of a run's folder. None where there is none.

    Raises UserError for a step that has only another role, and where the newest step is not there.
    """
    if holds_one(folder):
        return folder, folder.name if folder.name in ROLES else role
    if there := [name for name in ROLES if holds_one(folder / name)]:
        if role not in there:
            raise UserError(f"{folder} has no role {role!r}, it has {', '.join(there)}", f"--role {there[0]}")
        return folder / role, role
    step = _newest_step(folder)
    return role_folder(step, role, holds_one) if step else None


def step_of_role(folder: Path) -> int | None:
    """N of the `global_step_N` that a role's folder is or lies in, by itself or through a link."""
    place = folder.resolve()
    return next((step for path in (place, place.parent) if (step := step_of(path)) >= 0), None)


def _newest_step(run: Path) -> Path | None:
    tracker = run / TRACKER
    if not tracker.is_file():
        steps = [path for path in run.glob("global_step_*") if step_of(path) >= 0]
        return max(steps, key=step_of, default=None)
    step = run / f"global_step_{tracker.read_text(encoding='utf-8').strip()}"
    if not step.is_dir():
        raise UserError(f"{tracker} names {step.name}, which is not there", "name a global_step_N of the run")
    return step
