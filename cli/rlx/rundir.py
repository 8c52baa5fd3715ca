"""Run directories: which name a run gets, and the files the command writes before it becomes the job."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlx import run_records, ui
from rlx.env import lockfile
from verl_core.config import write
from verl_core.config.compose import Resolved
from verl_core.config.errors import UserError
from verl_core.config.schema import FACTS
from verl_core.config.typed import leaves

LEAST_FREE_BYTES = 32_000_000
"""The records and the checkpoints of the smallest model take about 10 MB."""


def project_dir(resolved: Resolved) -> Path:
    """<trainer.default_local_dir>/<trainer.project_name>."""
    trainer = resolved.config.trainer
    return Path(trainer.default_local_dir).expanduser() / trainer.project_name


def plan(resolved: Resolved, resume: bool) -> Path:
    """The run directory this command would use: the set name, the profile's newest run under `resume`, or the first
    free number. UserError when a set name is taken and `resume` is off, or the place cannot be looked at. Makes
    nothing."""
    try:
        return _choose(resolved, resume)
    except OSError as problem:
        raise _unusable(project_dir(resolved), "read", problem) from problem


def _choose(resolved: Resolved, resume: bool) -> Path:
    parent, named = project_dir(resolved), resolved.config.trainer.experiment_name
    if named is not None:
        if (parent / named).exists() and not resume:
            raise UserError(
                f"the run {parent / named} exists already",
                "go on with it by --resume, or choose another trainer.experiment_name (null numbers runs by itself)",
            )
        return parent / named
    taken = _numbered(resolved)
    if resume and taken:
        return max(taken.values(), key=run_records.started)
    return parent / f"{resolved.profile}-{next(n for n in range(1, len(taken) + 2) if n not in taken)}"


def start(resolved: Resolved, resume: bool, environment: str) -> Path:
    """Make the run directory, or find the one to resume, and write config.yaml, origins.json and run.json.

    Two commands at once never get the same new directory. Raises UserError when the name is taken, the folder cannot be
    written or its disk is full; then nothing new is left behind.
    """
    parent = project_dir(resolved)
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    made: list[Path] = []
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(parent).free) < LEAST_FREE_BYTES:
            raise UserError(
                f"{parent} has {ui.size(free)} free, a run needs at least {ui.size(LEAST_FREE_BYTES)}",
                "free some space, or trainer.default_local_dir=/another/disk",
            )
        folder, fresh = _claim(resolved, resume)
        made += [folder] if fresh else []
        _write_records(folder, resolved, environment)
    except (OSError, UserError) as problem:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in missing:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        if isinstance(problem, UserError):
            raise
        raise _unusable(parent, "written", problem) from problem
    return folder


def _unusable(parent: Path, verb: str, problem: OSError) -> UserError:
    return UserError(
        f"{parent} cannot be {verb}: {problem.strerror}",
        "free space or mend its permissions, or trainer.default_local_dir=/another/folder",
    )


def changes(folder: Path, resolved: Resolved) -> list[str]:
    """Keys whose value differs from that in the run's config.yaml, as `key: old -> new`; none for a new run."""
    if not (folder / "config.yaml").is_file():
        return []
    old = dict(leaves(asdict(write.of_run(write.load(folder / "config.yaml")))))
    new = dict(leaves(asdict(write.of_run(resolved.config)))) | {"trainer.experiment_name": folder.name}
    told = [f"{key}: {old.get(key)} -> {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)]
    module, kept = resolved.config.algorithm.module, folder / write.MODULE_COPY
    if module and kept.is_file() and kept.read_bytes() != Path(module).expanduser().read_bytes():
        told.append(f"algorithm.module: the text of {module}")
    return told


def git_state() -> dict[str, Any] | None:
    """Commit of the current folder's repository and whether it has uncommitted changes; None outside one."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    sha = git("rev-parse", "HEAD")
    return None if sha is None else {"sha": sha, "dirty": bool(git("status", "--porcelain"))}


def _claim(resolved: Resolved, resume: bool) -> tuple[Path, bool]:
    """The run directory, and whether it was made here; mkdir decides between two commands that want one number."""
    while True:
        folder = plan(resolved, resume)
        if resume and folder.is_dir():
            if pid := run_records.trained_by(folder):
                raise UserError(
                    f"process {pid} is training {folder}", f"wait for it, or stop it with a checkpoint: kill {pid}"
                )
            return folder, False
        try:
            folder.mkdir()
            return folder, True
        except FileExistsError:
            if not folder.is_dir():
                raise


def _write_records(folder: Path, resolved: Resolved, environment: str) -> None:
    resolved.config.trainer.experiment_name = folder.name
    run: dict[str, Any] = {
        "argv": sys.argv,
        "pid": os.getpid(),  # the command becomes the job
        "host": platform.node(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "profile": resolved.profile,
        "rlx": lockfile.version(),
        "lock": lockfile.digest(),
        "environment": environment,
        "git": git_state(),
    }
    if module := resolved.config.algorithm.module:
        run["algorithm_module"] = _keep(module, folder / write.MODULE_COPY)
    if earlier := run_records.read_json(folder / "run.json"):
        run = {**earlier, "resumes": [*earlier.get("resumes", []), run]}
    _replace(folder / "config.yaml", write.dump(write.of_run(resolved.config)))
    origins = {key: origin for key, origin in resolved.origins.items() if key not in FACTS}
    _replace(folder / "origins.json", json.dumps(origins, indent=2, ensure_ascii=False) + "\n")
    _replace(folder / "run.json", json.dumps(run, indent=2, ensure_ascii=False) + "\n")


def _numbered(resolved: Resolved) -> dict[int, Path]:
    """Folders `<profile>-<n>` by n."""
    pattern = re.compile(re.escape(resolved.profile) + r"-(\d+)")
    parent = project_dir(resolved)
    paths = parent.iterdir() if parent.is_dir() else ()
    return {int(match.group(1)): path for path in paths if (match := pattern.fullmatch(path.name))}


def _keep(module: str, copy: Path) -> dict[str, str]:
    """Copies the file of the user's own algorithms into the run, and says which it was."""
    text = Path(module).expanduser().read_text(encoding="utf-8")
    _replace(copy, text)
    return {"path": str(Path(module).expanduser().resolve()), "sha256": sha256(text.encode()).hexdigest()}


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
