"""Finding checkpoints: which folders are whole, which is the newest, and which one a path given by a user means."""

import logging
from collections.abc import Collection
from pathlib import Path

from verl_core.checkpoint.fetch import fetched
from verl_core.checkpoint.folders import Folder, folder_of, names_in
from verl_core.checkpoint.inspect import checkpoints_folder, step_of, survey
from verl_core.checkpoint.manifest import MANIFEST, NoManifest, content_faults, faults, read_manifest
from verl_core.checkpoint.object_errors import before_the_start
from verl_core.config.errors import UserError

log = logging.getLogger(__name__)

EVERYTHING = ("",)


def find_checkpoint(source: Folder | str, parts: tuple[str, ...] = EVERYTHING) -> Path:
    """The checkpoint meant by a run directory, its `checkpoints` folder (their newest whole one) or a `global_step_N`;
    of one on an object store, meant by its URL or by its run, a copy of the files below `parts`.

    A step given by its own folder needs only the files below `parts` (prefixes such as `actor/weights/`). Raises
    UserError that names the missing pieces of a broken checkpoint, or lists what the folder holds instead.
    """
    with before_the_start():
        found = _find(folder_of(source), parts)
    return found if isinstance(found, Path) else fetched(found, parts)


def on_this_machine(source: Folder | str, parts: tuple[str, ...]) -> Path:
    """The path `source`; where it means a checkpoint on an object store, what `find_checkpoint` makes of it."""
    place = folder_of(source)
    if isinstance(place, Path) and isinstance(checkpoints_folder(place), Path):
        return place
    return find_checkpoint(place, parts)


def _find(source: Folder, parts: tuple[str, ...]) -> Folder:
    if not source.is_dir():
        wrong = f"{source} is not a folder" if isinstance(source, Path) else f"there is nothing at {source}"
        raise UserError(wrong, "give a run directory, its checkpoints folder or a global_step_N")
    if step_of(source.resolve() if isinstance(source, Path) else source) >= 0 or (source / MANIFEST).exists():
        _require_whole(source, parts)
        return source
    folder = checkpoints_folder(source)
    whole, broken = survey(folder)
    if whole:
        _pass_over(broken, whole[-1][1].step)
        return whole[-1][0]
    if broken:
        raise UserError(
            f"no whole checkpoint in {folder}: " + "; ".join(f"{path.name}: {fault}" for path, fault in broken),
            "copy the missing files there",
        )
    names = sorted(name for name in names_in(folder) if not name.startswith("."))
    listing = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"
    raise UserError(
        f"no checkpoint in {folder}; it holds {listing}",
        "give a run directory, its checkpoints folder or a global_step_N folder",
    )


def newest_whole(folder: Folder, passing_over: Collection[Folder] = ()) -> Folder | None:
    """The checkpoint of `folder` that was written last and is whole; each newer broken one is named in a warning."""
    whole, broken = survey(folder)
    whole = [item for item in whole if item[0] not in passing_over]
    _pass_over(broken, whole[-1][1].step if whole else -1)
    return whole[-1][0] if whole else None


def _pass_over(broken: list[tuple[Folder, str]], newest_step: int) -> None:
    for path, fault in broken:
        if step_of(path) > newest_step:
            log.warning("skipped %s: %s", path, fault)


def require_undamaged(folder: Folder, parts: tuple[str, ...] = EVERYTHING) -> None:
    """Reads the files below `parts`. Raises UserError that names those that differ from what was written."""
    if found := content_faults(folder, read_manifest(folder), parts):
        raise UserError(f"{folder}: {'; '.join(found)}", "give another global_step_N of the run")


def is_whole(folder: Folder) -> bool:
    try:
        return not faults(folder, read_manifest(folder))
    except NoManifest:
        return False


def _require_whole(folder: Folder, parts: tuple[str, ...]) -> None:
    try:
        broken = faults(folder, read_manifest(folder), parts)
    except NoManifest as error:
        raise UserError(f"{folder} is not a whole checkpoint: {error}", "choose another step of the run") from None
    if broken:
        raise UserError(
            f"{folder} is not a whole checkpoint: " + "; ".join(broken),
            "copy the missing files, or choose another step",
        )
