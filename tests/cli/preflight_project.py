"""A copy of rlx's source with a small lock of its own, so that the real command meets locks that do not fit."""

import shutil
from pathlib import Path

from tests.conftest import ROOT

PROJECT = """
[project]
name = "rlx"
version = "0.0"
requires-python = "{python}"
dependencies = ["uv>=0.8"]
[project.optional-dependencies]
fsdp = ["cargo"]
[tool.uv]
package = false
environments = ["{environment}"]
"""
LOCK = """
version = 1
revision = 3
requires-python = "{python}"
resolution-markers = ["{environment}"]
supported-markers = ["{environment}"]

[[package]]
name = "cargo"
version = "{version}"
source = {{ registry = "{server}/simple" }}
wheels = [{{ url = "{server}/{wheel}", hash = "sha256:{zeros}", size = {size} }}]

[[package]]
name = "rlx"
version = "0.0"
source = {{ virtual = "." }}
dependencies = [{{ name = "uv" }}]

[package.optional-dependencies]
fsdp = [{{ name = "cargo" }}]

[package.metadata]
requires-dist = [{{ name = "cargo", marker = "extra == 'fsdp'" }}, {{ name = "uv", specifier = ">=0.8" }}]
provides-extras = ["fsdp"]

[[package]]
name = "uv"
version = "0.8.0"
source = {{ registry = "{server}/simple" }}
wheels = [{{ url = "{server}/uv-0.8.0-py3-none-any.whl", hash = "sha256:{zeros}", size = 1 }}]
"""
NOWHERE = "http://127.0.0.1:9"
"""Port 9 is discard's; nothing listens there."""


def make(
    folder: Path,
    *,
    name: str = "cargo",
    version: str = "1.0",
    tag: str = "py3-none-any",
    size: int = 1000,
    python: str = ">=3.12, <3.14",
    environment: str = "sys_platform == 'linux'",
    server: str = NOWHERE,
) -> tuple[Path, Path]:
    """The two source roots of an rlx whose fsdp extra is one package `name`, with these facts in the lock."""
    for part in ("cli", "verl_core", "profiles"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    facts = {"python": python, "environment": environment, "version": version, "size": size, "server": server}
    wheel = f"{name.replace('-', '_')}-{version}-{tag}.whl"
    (folder / "pyproject.toml").write_text(PROJECT.format(**facts).replace("cargo", name))
    lock = LOCK.format(**facts, wheel=wheel, zeros="0" * 64).replace('"cargo"', f'"{name}"')
    (folder / "uv.lock").write_text(lock)
    return folder / "cli", folder
