"""What a node runs, to be compared with the others: `python -m verl_core.controller.fingerprint` prints it as JSON.

Imports neither torch nor Ray: it has to answer in an interpreter that lacks them, and on every node within a second.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
import tomllib
from pathlib import Path

import verl_core
from verl_core.config.files import lock_dir

PACKAGES = ("torch", "transformers", "ray")
SHORT = 12  # hexadecimal digits of a digest; enough to tell two apart, short enough for a message


def fingerprint() -> dict[str, str]:
    """Name -> value, of this interpreter and of the rlx that it imports; a package that is absent is `none`."""
    lock, project = lock_dir() / "uv.lock", lock_dir() / "pyproject.toml"
    return {
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "rlx": str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]),
        "rlx's source": _source_digest()[:SHORT],
        "uv.lock": hashlib.sha256(lock.read_bytes()).hexdigest()[:SHORT],
        **{name: _version(name) for name in PACKAGES},
    }


def _source_digest() -> str:
    """SHA-256 over the names and contents of verl_core's modules."""
    root = Path(verl_core.__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    print(json.dumps(fingerprint()))
