"""A locked package without a wheel for the target is built into one when it is packed."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rlx import ui
from rlx.env import fetch, uv
from rlx.env.locked_files import LockedFile, Target
from verl_core.config.errors import EnvError


def wheel_from(file: LockedFile, target: Target) -> Path:
    """The wheel built from a fetched source distribution, kept in the cache for the next time.

    The build runs in an environment of its own, whose packages uv fetches. Raises EnvError when it fails, or gives a
    wheel for this kind of machine while the target is another.
    """
    python = f"cp{target.python[0]}{target.python[1]}"
    folder = fetch.wheels_dir() / file.sha256 / f"built-{python}"
    if not folder.is_dir():
        ui.talk(f"building a wheel of {file.filename}")
        _build(fetch.place_of(file), folder)
    wheel = next(folder.glob("*.whl"))
    if not target.is_here() and not wheel.name.endswith("-any.whl"):
        raise EnvError(
            f"{file.name} {file.version} has no wheel for {target.machine}, and what is built here runs only here",
            f"run `rlx env pack` on a {target.machine} machine",
        )
    return wheel


def _build(source: Path, folder: Path) -> None:
    """Build into a temporary folder and rename: `folder` is there only when it is whole."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [uv.find(), "build", "--wheel", "-q", "--no-config", "--python", sys.executable]
        done = subprocess.run(
            [*command, "--out-dir", f"{scratch}/out", str(source)],
            env=uv.environ(Path(scratch) / "venv"),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
            raise EnvError(f"{source.name} has no wheel and cannot be built into one: {reason}", "rlx doctor")
        shutil.rmtree(folder, ignore_errors=True)
        Path(f"{scratch}/out").rename(folder)
