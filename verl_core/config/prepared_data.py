"""What `rlx prepare` said in the `manifest.json` beside the files that it wrote, read without an environment."""

import json
from collections.abc import Iterable
from glob import has_magic, iglob
from pathlib import Path

MANIFEST = "manifest.json"


def needs(files: Iterable[str]) -> set[str]:
    """Extras that scoring the rows of these files takes; files: paths, folders, globs, `builtin:NAME`s. What has no
    manifest of rlx beside it needs none."""
    return {extra for folder in {*_folders(files)} for extra in _needs_of(folder / MANIFEST)}


def _folders(files: Iterable[str]) -> Iterable[Path]:
    for entry in files:
        path = Path(entry).expanduser()
        if path.is_dir():
            yield path
        elif path.exists() or not has_magic(entry):
            yield path.parent
        else:
            yield from (Path(found).parent for found in iglob(str(path), recursive=True))  # noqa: PTH207


def _needs_of(manifest: Path) -> list[str]:
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(found, dict) or not {"dataset", "files"} <= found.keys():
        return []  # another program's
    needs = found.get("needs", [])
    return [extra for extra in needs if isinstance(extra, str)] if isinstance(needs, list) else []
