"""What there is of a run's checkpoints, and what is wrong with each. Reads manifests and files; needs no torch."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from verl_core.checkpoint.manifest import Manifest, NoManifest, content_faults, faults, read_manifest

_STEP = re.compile(r"global_step_(\d+)")


def step_of(path: Path) -> int:
    """N of a folder named `global_step_N`, -1 for any other name."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else -1


@dataclass(frozen=True)
class Inspected:
    """One `global_step_N`: its manifest, None where it cannot be read, and its faults, by file; none: it is whole."""

    path: Path
    manifest: Manifest | None
    faults: list[str]

    @property
    def step(self) -> int:
        return step_of(self.path)

    @property
    def whole(self) -> bool:
        return not self.faults


def inspect(folder: Path) -> list[Inspected]:
    """The checkpoints of a run's `checkpoints` folder, by step; files are looked at, not read."""
    steps = [path for path in folder.glob("global_step_*") if step_of(path) >= 0 and path.is_dir()]
    return [_inspect(path) for path in sorted(steps, key=step_of)]


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


def survey(folder: Path) -> tuple[list[tuple[Path, Manifest]], list[tuple[Path, str]]]:
    """Whole checkpoints in the order they were written, and the broken ones with their fault in the order of steps."""
    found = inspect(folder)
    whole = [(c.path, c.manifest) for c in found if c.manifest is not None and c.whole]
    return sorted(whole, key=lambda item: item[1].serial), [(c.path, "; ".join(c.faults)) for c in found if not c.whole]


def _inspect(path: Path) -> Inspected:
    try:
        manifest = read_manifest(path)
    except NoManifest as error:
        return Inspected(path, None, [str(error)])
    return Inspected(path, manifest, faults(path, manifest))
