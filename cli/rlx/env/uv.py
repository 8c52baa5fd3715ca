"""Finding and running uv."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from rlx.env import folder_lock
from rlx.env.lockfile import content, lock_dir, lock_file, project, requires_python, unreadable
from verl_core.config.errors import EnvError

INSTALL = "pip install --upgrade uv"


@cache
def find() -> str:
    """Path of uv: the one installed beside rlx, else the one on PATH; EnvError when there is none, or one too old."""
    try:
        from uv import find_uv_bin

        found: str | None = os.fsdecode(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise EnvError("uv is not installed, and rlx makes its environments with it", INSTALL)
    _checked_version(found)
    return found


def version() -> str:
    """The version of the uv that `find` finds; EnvError as there."""
    return _checked_version(find())


@cache
def _checked_version(path: str) -> str:
    """EnvError when this uv is older than what pyproject.toml asks for (the dependency `uv>=...`)."""
    from packaging.requirements import Requirement

    wanted = next(r for r in map(Requirement, project()["project"]["dependencies"]) if r.name == "uv").specifier
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EnvError(f"{path} does not run: {problem}", INSTALL) from problem
    version = re.match(r"uv (\d+(?:\.\d+)*)", said)
    if version is None:
        raise EnvError(f"{path} is not uv: `uv --version` says {said.strip() or 'nothing'}", INSTALL)
    if not wanted.contains(version[1]):
        raise EnvError(f"{path} is uv {version[1]}, and rlx needs uv{wanted}", INSTALL)
    return version[1]


def sync_command(folder: Path, extras: Sequence[str]) -> list[str]:
    """The command that makes `folder` hold the extras, as locked, without rlx itself."""
    options = ["--frozen", "--no-install-project", "--no-default-groups", "--python", sys.executable]
    return [find(), "sync", "--project", str(lock_dir()), *options, *(f"--extra={extra}" for extra in extras)]


def shown_sync(folder: Path, extras: Sequence[str]) -> str:
    """The line with which a person makes the folder as `sync` does."""
    return f"UV_PROJECT_ENVIRONMENT={shlex.quote(str(folder))} {shlex.join(sync_command(folder, extras))}"


def environ(folder: Path) -> dict[str, str]:
    """The variables of a uv call that works on `folder`; an active virtual environment is of no concern to it."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")}
    return inherited | {"UV_PROJECT_ENVIRONMENT": str(folder)}


def missing(folder: Path, extras: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """Packages (name, version) that `folder` lacks, and how many of them uv has not in its cache. Needs no network."""
    cache = subprocess.run([find(), "cache", "dir"], env=environ(folder), capture_output=True, text=True, check=False)
    command = [*sync_command(folder, extras), "--dry-run"]
    if not Path(cache.stdout.strip()).is_dir():
        command.append("--no-cache")  # uv would make an empty cache, and a dry run makes nothing
    done = subprocess.run(command, env=environ(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise explain(done.stderr, folder)
    packages = re.findall(r"^ \+ (\S+)==(\S+)", done.stderr, re.MULTILINE)
    download = re.search(r"Would download (\d+) package", done.stderr)
    return packages, int(download.group(1)) if download else 0


def check_lock() -> None:
    """EnvError when uv.lock no longer matches pyproject.toml. About 0.1 s; a lock that matches needs no network."""
    command = [find(), "lock", "--check", "--offline", "--python", sys.executable, "--project", str(lock_dir())]
    # A site's mirror (UV_DEFAULT_INDEX, uv.toml) would make every lock look stale: it names another index.
    registries = Counter(re.findall(r'registry = "([^"]+)"', content(lock_file()).decode(errors="replace")))
    command += [f"--default-index={registry}" for registry, _ in registries.most_common(1)]
    done = subprocess.run(command, env=environ(lock_dir() / ".venv"), capture_output=True, text=True, check=False)
    if not done.returncode:
        return
    if "needs to be updated" in done.stderr or "No solution found" in done.stderr:
        raise EnvError(
            f"{lock_dir() / 'uv.lock'} is stale: pyproject.toml has changed since it was made",
            "`rlx env lock` makes it anew",
        )
    raise explain(done.stderr, lock_dir() / "uv.lock")


def sync(folder: Path, extras: Sequence[str], on_line: Callable[[str], None], link_mode: str | None = None) -> None:
    """Make `folder` hold exactly the extras; every line uv prints goes to `on_line`. `link_mode`: uv's own choice, else
    `symlink`, `copy`, ... EnvError with the cause."""
    command = sync_command(folder, extras) + ([f"--link-mode={link_mode}"] if link_mode else [])
    process = subprocess.Popen(
        command,
        env=environ(folder),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        pass_fds=folder_lock.inherited(),
    )
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            on_line(line.rstrip("\n"))
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code:
        raise explain("".join(lines), folder)


def compile_bytecode(folder: Path, extras: Sequence[str]) -> None:
    """Compile what has no byte code in a complete environment, on all cores. EnvError with the cause."""
    command = [*sync_command(folder, extras), "--offline", "--compile-bytecode"]
    done = subprocess.run(command, env=environ(folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise explain(done.stderr, folder)


def lock(upgrade: Sequence[str]) -> None:
    """Make uv.lock anew from pyproject.toml; `upgrade` names packages that may move. uv's own words go to stderr.

    A lock that cannot be read is made from nothing, and stays as it was if that fails.
    """
    packages = [f"--upgrade-package={name}" for name in upgrade]
    command = [find(), "lock", "--python", sys.executable, "--project", str(lock_dir()), *packages]
    path = lock_dir() / "uv.lock"
    done = _locked_by(command)
    if done.returncode and _unreadable_file(done.stderr) == path.name:
        broken = path.read_bytes()
        path.write_text(f'version = 1\nrequires-python = "{requires_python()}"\n', encoding="utf-8")
        try:
            done = _locked_by(command)
        finally:
            if done.returncode:
                path.write_bytes(broken)
    if done.returncode:
        raise explain(done.stderr, path)
    print(done.stderr, end="", file=sys.stderr)


def _locked_by(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The finished `uv lock`."""
    return subprocess.run(command, env=environ(lock_dir() / ".venv"), stderr=subprocess.PIPE, text=True, check=False)


def _unreadable_file(stderr: str) -> str | None:
    """The name of the file of the lock's folder that uv says is not TOML, or not of its kind."""
    found = re.search(r"Failed to parse:? `(?:[^`]*/)?(uv\.lock|pyproject\.toml)`", stderr)
    return found[1] if found else None


def explain(stderr: str, folder: Path) -> EnvError:
    """Turn uv's words into one line and the next step."""
    text = " ".join(line.strip() for line in stderr.splitlines() if line.strip())
    if name := _unreadable_file(text):
        place = re.search(r"at (line \d+, column \d+)", text)
        return unreadable(lock_dir() / name, f"uv cannot parse it{f' at {place[1]}' if place else ''}")
    if "No space left" in text or "os error 28" in text:
        return EnvError(
            f"no space left for the environment {folder}", "free some, or move environments: RLX_ENVS=/big/disk"
        )
    if "connectivity is disabled" in text or "dns error" in text or "error sending request" in text.lower():
        package = re.search(r"`([\w.\-]+)==", text)
        what = f"package {package.group(1)}" if package else "packages"
        return EnvError(
            f"{what} of the environment {folder.name} cannot be fetched: no network, and not in uv's cache",
            "connect once and run `rlx env sync`, or use an interpreter at hand: RLX_PYTHON=/path/to/python",
        )
    if "interpreter" in text and ("incompatible" in text or "No interpreter" in text):
        return EnvError(
            f"{sys.executable} is not a Python {requires_python()}", "run rlx with one: `uv run --python 3.12 rlx ...`"
        )
    if built := re.search(r"Failed to build `([\w.\-]+)==", text):
        said = text.rpartition("error:")[2].partition("hint:")[0]
        return EnvError(
            f"{built[1]} has no wheel and cannot be built from source: {said.strip()}",
            "that takes a C compiler and Python's headers (Debian: apt install gcc python3-dev); then run this again",
        )
    reason = text.partition("error:")[2] or text or "it says nothing"
    return EnvError(f"uv could not make {folder}: {reason.strip()}", "rlx doctor")
