"""What there is of a run's checkpoints, and what is wrong with each. Reads manifests and files; needs no torch."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from verl_core.checkpoint.folders import Folder, folder_of
from verl_core.checkpoint.manifest import MANIFEST, Manifest, NoManifest, content_faults, faults, read_manifest
from verl_core.checkpoint.objects import ObjectPath

_STEP = re.compile(r"global_step_(\d+)")


CHECKPOINTS = "checkpoints"
"""The folder of a run directory that holds them."""
UNFINISHED = "unfinished.json"
"""Object that stands in a step on an object store while it is written, or removed."""

_THREADS = 8


def step_of(path: Folder) -> int:
    """N of a folder named `global_step_N`, -1 for any other name."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else -1


@dataclass(frozen=True)
class Inspected:
    """One `global_step_N`: its manifest, None where it cannot be read, and its faults, by file; none: it is whole."""

    path: Folder
    manifest: Manifest | None
    faults: list[str]

    @property
    def step(self) -> int:
        return step_of(self.path)

    @property
    def whole(self) -> bool:
        return not self.faults


def checkpoints_folder(place: Folder | str) -> Folder:
    """The folder that holds the checkpoints of a run directory, which may name an object store; or `place` itself."""
    source = folder_of(place)
    if isinstance(source, ObjectPath):
        return source
    try:
        url = json.loads((source / "run.json").read_text(encoding="utf-8")).get("checkpoints")
    except (OSError, ValueError, AttributeError):
        url = None
    if url:
        return ObjectPath(url)
    return source / CHECKPOINTS if (source / CHECKPOINTS).is_dir() else source


def inspect(folder: Folder) -> list[Inspected]:
    """The checkpoints of a run's `checkpoints` folder, by step; files are looked at, not read."""
    if isinstance(folder, Path):
        steps = [path for path in folder.glob("global_step_*") if step_of(path) >= 0 and path.is_dir()]
        return [inspect_step(path) for path in sorted(steps, key=step_of)]
    steps_there = _steps(folder)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda path: inspect_step(path, steps_there[path]), sorted(steps_there, key=step_of)))


def _steps(folder: ObjectPath) -> dict[ObjectPath, dict[str, int]]:
    """What may be a checkpoint on an object store -> size of every object below. Not what is being written: on a disk
    that has another name."""
    steps: dict[ObjectPath, dict[str, int]] = {}
    for name, size in folder.sizes().items():
        step, _, rest = name.partition("/")
        if rest and step_of(folder / step) >= 0:
            steps.setdefault(folder / step, {})[rest] = size
    return {path: sizes for path, sizes in steps.items() if UNFINISHED not in sizes or MANIFEST in sizes}


def read_through(found: Inspected, progress: Callable[[int], None] | None = None) -> Inspected:
    """The same with what is wrong inside its files; `progress` is told the bytes of each block that is read."""
    if found.manifest is None or not found.whole:
        return found
    return Inspected(found.path, found.manifest, content_faults(found.path, found.manifest, ("",), progress))


def newest(checkpoints: list[Inspected]) -> Inspected | None:
    """The one written last, whole or not. One without a manifest says only its step."""
    _, last = max(((c.manifest.serial, c) for c in checkpoints if c.manifest), key=itemgetter(0), default=(0, None))
    lost = [c for c in checkpoints if c.manifest is None and (last is None or c.step > last.step)]
    return lost[-1] if lost else last


def survey(folder: Folder) -> tuple[list[tuple[Folder, Manifest]], list[tuple[Folder, str]]]:
    """Whole checkpoints in the order they were written, and the broken ones with their fault in the order of steps."""
    found = inspect(folder)
    whole = [(c.path, c.manifest) for c in found if c.manifest is not None and c.whole]
    return sorted(whole, key=lambda item: item[1].serial), [(c.path, "; ".join(c.faults)) for c in found if not c.whole]


def inspect_step(path: Folder, sizes: dict[str, int] | None = None) -> Inspected:
    """One checkpoint. `sizes`: of all objects below it, where a store has just listed them."""
    try:
        manifest = read_manifest(path)
    except NoManifest as error:
        return Inspected(path, None, [str(error)])
    return Inspected(path, manifest, faults(path, manifest, sizes=sizes))
