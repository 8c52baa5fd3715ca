"""The checkpoints of a run for people: which are whole, and what is wrong with the others."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlx import jobs, ui
from verl_core.checkpoint import inspect
from verl_core.checkpoint.inspect import Inspected
from verl_core.config.errors import RunError, UserError
from verl_core.config.urls import is_url, url_extras

MOST = 3
"""Faults of one checkpoint that a table names."""


def reach(sources: Iterable[Path | str]) -> None:
    """Where checkpoints of these are on object stores that this interpreter cannot read, the command goes on in an
    environment that can read all of them: in one for each it would go back and forth. EnvError where it cannot be
    made."""
    jobs.with_packages({extra for source in sources for extra in extras_of(source) or ()})


def checkpoints_of(source: Path | str) -> list[Inspected]:
    """Those of a run directory, of its `checkpoints` folder or of a URL, by step; of a `global_step_N` itself.

    UserError where an object store refuses, EnvError where its package is missing.
    """
    try:
        folder = inspect.checkpoints_folder(source)
        alone = inspect.step_of(folder) >= 0 and folder.is_dir()
        return inspect.inspect(folder) or ([inspect.inspect_step(folder)] if alone else [])
    except RunError as error:
        raise UserError(error.message, error.hint) from error


def extras_of(source: Path | str) -> set[str] | None:
    """The extras that reading them from an object store needs; None where they are on a disk."""
    folder = inspect.checkpoints_folder(source)
    return None if isinstance(folder, Path) else url_extras(str(folder))


def require_some(found: list[Inspected], source: str) -> None:
    """UserError where there is none."""
    if not found and not is_url(source) and not (source and Path(source).is_dir()):
        raise UserError(f"there is no folder {source!r}", "`rlx runs ls` lists the runs here")
    if not found:
        raise UserError(
            f"no checkpoint in {source}", "`rlx runs ls` lists the runs here; trainer.save_freq says when they save"
        )


def read_all(found: list[Inspected]) -> list[Inspected]:
    """With what reading every byte tells."""
    total = sum(c.manifest.total_bytes for c in found if c.manifest and c.whole)
    with ui.download_progress("reading", total) as bar:
        return [inspect.read_through(c, bar.advance) for c in found]


def as_json(found: list[Inspected]) -> list[dict[str, Any]]:
    last = inspect.newest(found)
    return [
        {
            "step": c.step,
            "path": str(c.path),
            "whole": c.whole,
            "newest": c is last,
            "faults": c.faults,
            "bytes": c.manifest.total_bytes if c.manifest else None,
            "ranks": c.manifest.roles if c.manifest else {},
            "score": {c.manifest.score.metric: c.manifest.score.value} if c.manifest and c.manifest.score else {},
        }
        for c in found
    ]


def table(found: list[Inspected]) -> None:
    """One row a checkpoint."""
    ui.table(("STEP", "SIZE", "RANKS", "SCORE", "STATE"), [_row(c) for c in found])


def state(found: Inspected, checked: str = "whole") -> str:
    """`checked`, or what is wrong."""
    more = f"; and {len(found.faults) - MOST} more" if len(found.faults) > MOST else ""
    return checked if found.whole else "; ".join(found.faults[:MOST]) + more


def newest_whole(found: list[Inspected]) -> Inspected | None:
    """The one that --resume goes on from."""
    return inspect.newest([c for c in found if c.whole])


def newest_is_whole(found: list[Inspected]) -> bool:
    """Whether the checkpoint that was written last is whole."""
    last = inspect.newest(found)
    return last is not None and last.whole


def refuse_broken_newest(found: list[Inspected]) -> None:
    """UserError where the checkpoint that was written last is not whole."""
    last = inspect.newest(found)
    if last is None or last.whole:
        return
    whole = [c.path.name for c in found if c.whole]
    hint = f"--resume passes it over; whole are {', '.join(whole)}" if whole else "copy the missing files there"
    raise UserError(f"the newest checkpoint, {last.path.name}, is broken: {state(last)}", hint)


def _row(found: Inspected) -> tuple[str, ...]:
    manifest = found.manifest
    score = f"{manifest.score.value:.4g}" if manifest and manifest.score else ""
    ranks = ", ".join(f"{role} {count}" for role, count in manifest.roles.items()) if manifest else ""
    return str(found.step), ui.size(manifest.total_bytes) if manifest else "", ranks, score, state(found)
