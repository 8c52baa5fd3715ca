"""Finding and running uv."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rlx.env.lockfile import lock_dir, requires_python
from verl_core.config.errors import EnvError


def find() -> str:
    """Path of uv: the one installed beside rlx, else the one on PATH; EnvError when there is none."""
    try:
        from uv import find_uv_bin

        return os.fsdecode(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise EnvError("uv is not installed, and rlx makes its environments with it", "pip install uv")
    return found


def sync_command(folder: Path, extras: Sequence[str]) -> list[str]:
    """The command that makes `folder` hold the extras, as locked, without rlx itself."""
    # Byte code once here, instead of at the first import of torch and transformers: 4 s a start instead of 13.
    options = [
        "--frozen",
        "--no-install-project",
        "--no-default-groups",
        "--compile-bytecode",
        "--python",
        sys.executable,
    ]
    return [find(), "sync", "--project", str(lock_dir()), *options, *(f"--extra={extra}" for extra in extras)]


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
    done = subprocess.run(command, env=environ(lock_dir() / ".venv"), capture_output=True, text=True, check=False)
    if not done.returncode:
        return
    if "needs to be updated" in done.stderr or "No solution found" in done.stderr:
        raise EnvError(
            f"{lock_dir() / 'uv.lock'} is stale: pyproject.toml has changed since it was made",
            f"uv lock --project {lock_dir()}",
        )
    raise explain(done.stderr, lock_dir() / "uv.lock")


def sync(folder: Path, extras: Sequence[str], on_line: Callable[[str], None]) -> None:
    """Make `folder` hold exactly the extras; every line uv prints goes to `on_line`. EnvError with the cause."""
    process = subprocess.Popen(
        sync_command(folder, extras), env=environ(folder), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
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


def explain(stderr: str, folder: Path) -> EnvError:
    """Turn uv's words into one line and the next step."""
    text = " ".join(line.strip() for line in stderr.splitlines() if line.strip())
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
    start = text.find("error:")
    return EnvError(f"uv could not make {folder}: {text[start + 6 :].strip()}", "rlx doctor")
