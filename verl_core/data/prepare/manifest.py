"""`manifest.json` of a prepared data set: what was asked for, its sources, the files with their hashes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl_core.config.errors import UserError
from verl_core.data.prepare.prepared import Prepared, Wanted

NAME = "manifest.json"
FORMAT = 2
"""Version of the folder's layout and of the rows in it; a data set whose rows change raises it."""

Manifest = dict[str, Any]


def manifest_of(wanted: Wanted, prepared: Prepared, files: dict[str, dict[str, Any]]) -> Manifest:
    """The same input gives the same manifest. files: split -> {file, rows, bytes, sha256}."""
    return {
        "format": FORMAT,
        **asked(wanted),
        "origin": prepared.origin,
        "sources": [dataclasses.asdict(file) for file in prepared.sources],
        "needs": list(prepared.needs),
        "notes": list(prepared.notes),
        "files": files,
    }


def asked(wanted: Wanted) -> Manifest:
    """The part of a manifest that says what the folder was made for."""
    options = dataclasses.asdict(wanted.options) if wanted.options is not None else {}
    return {"dataset": wanted.name, "limit": wanted.limit, "options": json.loads(json.dumps(options, default=str))}


def read(folder: Path) -> Manifest | None:
    """The folder's manifest; None where there is none. Raises UserError for one that cannot be understood."""
    path = folder / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(found, dict) and isinstance(found.get("files"), dict)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AssertionError) as e:
        raise UserError(f"{path} is no manifest of a data set: {e}", hint="remove it and prepare again") from e
    return found


def fits(found: Manifest, wanted: Wanted, options: Iterable[str]) -> bool:
    """Whether a folder with this manifest, in the present format, holds what is asked for: the limit where there is
    one, and these of the data set's own options, whatever the others are."""
    want = asked(wanted)
    same = [found.get(key) == value for key, value in {"format": FORMAT, "dataset": want["dataset"]}.items()]
    same.append(wanted.limit is None or found.get("limit") == wanted.limit)
    same += [found.get("options", {}).get(name) == want["options"][name] for name in options]
    return all(same)
