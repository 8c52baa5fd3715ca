"""Interpreter, platform, uv, lock and the environment a job would run in."""

import platform
import shutil
import sys
from collections.abc import Iterator

from rlx import ui
from rlx.checkup.finding import Finding, Subject
from rlx.env import glibc, interpreter, lockfile, manager, preflight, uv
from rlx.env.requirements import download_total, locked_packages
from verl_core.config.errors import EnvError


def python(subject: Subject) -> Iterator[Finding]:
    """The interpreter that runs rlx, against requires-python."""
    preflight.check_python()
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def system(subject: Subject) -> Iterator[Finding]:
    """System, machine type and C library, against the lock; an interpreter at hand brings its own packages."""
    here = f"{sys.platform} {platform.machine()}"
    library = glibc.present()
    here += f", glibc {library[0]}.{library[1]}" if library else ""
    if not interpreter.chosen():
        preflight.check_platform()
        glibc.check(locked_packages(subject.extras))
    yield Finding("platform", "ok", here)


def uv_program(subject: Subject) -> Iterator[Finding]:
    """uv's version against the project's bound. Not needed with RLX_PYTHON."""
    try:
        yield Finding("uv", "ok", f"{uv.version()} at {uv.find()}")
    except EnvError as problem:
        yield _unless_at_hand("uv", problem)


def lock(subject: Subject) -> Iterator[Finding]:
    """Whether uv.lock matches pyproject.toml. Not needed with RLX_PYTHON."""
    try:
        uv.check_lock()
    except EnvError as problem:
        yield _unless_at_hand("lock", problem)
    else:
        yield Finding("lock", "ok", f"{lockfile.lock_file()} matches pyproject.toml")


def _unless_at_hand(check: str, problem: EnvError) -> Finding:
    """A failure, or a warning when RLX_PYTHON makes it one that stops nothing."""
    return Finding(check, "warn" if interpreter.chosen() else "fail", problem.message, problem.hint)


def interpreter_at_hand(subject: Subject) -> Iterator[Finding]:
    """What RLX_PYTHON's interpreter has, lacks and has otherwise than the lock."""
    named = interpreter.chosen()
    if named is None:
        yield Finding("RLX_PYTHON", "ok", "not set: rlx makes its own environments")
        return
    differing, absent = interpreter.differences(named, subject.extras)
    told = [f"{named} has what {' + '.join(subject.extras)} needs"]
    if differing:
        told.append(f"differs from the lock: {', '.join(differing)}")
    if absent:
        told.append(f"lacks {', '.join(f'{name} ({interpreter.ONLY_SOME_JOBS[name]})' for name in absent)}")
    fix = f"{named} -m pip install {' '.join(absent)}" if absent else "check that the image's versions work for you"
    yield Finding("RLX_PYTHON", "warn", "; ".join(told), fix) if told[1:] else Finding("RLX_PYTHON", "ok", told[0])


def environment(subject: Subject) -> Iterator[Finding]:
    """The environment of the extras: made, or what making it takes."""
    if interpreter.chosen():
        return
    wanted = manager.environment(subject.extras)
    if wanted.complete():
        yield Finding("environment", "ok", f"{wanted.folder} is made")
        return
    n_download, n_bytes = manager.download_size(wanted)
    preflight.check_space(wanted.folder, n_bytes, download_total(locked_packages(subject.extras)))
    take = f"{n_download} packages to download, up to {ui.size(n_bytes)}" if n_download else "nothing to download"
    yield Finding("environment", "ok", f"{wanted.folder.name} is not made yet: {take}")


def git(subject: Subject) -> Iterator[Finding]:
    if shutil.which("git"):
        yield Finding("git", "ok", "found: runs record the commit of their folder")
    else:
        yield Finding("git", "warn", "not found: runs cannot record the commit of their folder", "install git")
