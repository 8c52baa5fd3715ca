"""Reading run directories: JSON files only, so that `rlx runs` needs no environment."""

import json
import os
import platform
from pathlib import Path
from typing import Any

TAIL_BYTES = 200_000
"""Enough for the last lines of metrics.jsonl, which may be cut off mid-line by a kill."""


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when the file is absent or torn."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def last_metrics(run: Path) -> dict[str, Any] | None:
    """The last complete line of metrics.jsonl."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def is_run(folder: Path) -> bool:
    """True for a folder that `rlx train` made."""
    return (folder / "run.json").is_file()


def has_checkpoint(run: Path) -> bool:
    """True when a run has something to resume from, as far as its directory tells: of an object store it has the name
    alone."""
    return any(run.glob("checkpoints/global_step_*/manifest.json")) or bool(
        (read_json(run / "run.json") or {}).get("checkpoints")
    )


def trained_by(run: Path) -> int | None:
    """The process on this machine that is at work on the run. No lock is held, because locks hang on some shared disks:
    the last command's process is looked at, and what it does (a number is used again when a process has ended)."""
    record = read_json(run / "run.json") or {}
    last = [record, *record.get("resumes", [])][-1]
    if last.get("host") != platform.node() or last.get("pid") == os.getpid():
        return None
    try:
        words = Path(f"/proc/{last['pid']}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended, or there is no /proc
        return None
    at_work = b"verl_core.controller.job" in words and any(Path(os.fsdecode(w)).name == run.name for w in words)
    return last["pid"] if at_work else None


def started(run: Path) -> str:
    """When the run began (UTC, ISO 8601), or an empty text."""
    return str((read_json(run / "run.json") or {}).get("started", ""))


def find_runs(root: Path) -> list[Path]:
    """Run directories under `root` (runs/<project>/<experiment>), oldest first."""
    return sorted((path.parent for path in root.glob("*/*/run.json")), key=started)
