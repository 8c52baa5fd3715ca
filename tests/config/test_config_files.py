"""Where rlx's files lie, in a checkout and in a wheel; what a child may import."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import verl_core
from verl_core.config import files
from verl_core.config.errors import EnvError

ROOT = Path(verl_core.__file__).parent.parent


def test_a_checkout():
    assert files.data_root() == files.lock_dir() == ROOT
    assert (files.profiles_dir() / "smoke.yaml").is_file() and files.templates_dir() == ROOT / "templates"
    assert files.source_paths() == [ROOT / "cli", ROOT]


def test_the_cache_moves(monkeypatch):
    monkeypatch.delenv("RLX_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert files.cache_dir() == Path("/x/rlx")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert files.cache_dir() == Path.home() / ".cache" / "rlx"
    monkeypatch.setenv("RLX_CACHE", "~/elsewhere")
    assert files.cache_dir() == Path.home() / "elsewhere"


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A site-packages with rlx in it, as the wheel lays it out, and a stranger beside it."""
    site = tmp_path / "site-packages"
    shutil.copytree(ROOT / "verl_core", site / "verl_core", ignore=shutil.ignore_patterns("__pycache__"))
    data = site / "rlx" / "_data"
    shutil.copytree(ROOT / "profiles", data / "profiles")
    (site / "rlx" / "__init__.py").write_text("")
    (site / "stranger.py").write_text("")
    for name in ("pyproject.toml", "uv.lock"):
        (data / name).write_text("")
    return site


def python(code: str, path: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | env,
    )


def test_a_wheel_brings_its_files_and_children_see_only_rlx(wheel, tmp_path):
    code = (
        "from verl_core.config import compose, files; print(compose.profile_names(), *files.source_paths(), sep='\\n')"
    )
    cache = tmp_path / "cache"
    for _ in range(2):  # the second time the links are there
        done = python(code, str(wheel), RLX_CACHE=str(cache))
        assert done.returncode == 0, done.stderr
    names, links = done.stdout.split("\n", 1)
    assert "smoke" in names
    links = links.strip()
    assert Path(links).parent.parent == cache and {link.name for link in Path(links).iterdir()} == {"rlx", "verl_core"}
    child = python("import rlx, verl_core; print(verl_core.__file__)\nimport stranger", links)
    assert str(wheel) in os.path.realpath(child.stdout.strip()) and "No module named 'stranger'" in child.stderr


def test_a_cache_that_cannot_be_written(wheel, tmp_path):
    (tmp_path / "file").write_text("")
    done = python(
        "from verl_core.config import files, errors\n"
        "try: files.source_paths()\nexcept errors.EnvError as e: print(e.message, '|', e.hint)",
        str(wheel),
        RLX_CACHE=str(tmp_path / "file"),
    )
    assert "cannot write" in done.stdout and "RLX_CACHE" in done.stdout


def test_an_installation_without_its_files(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "CORE", tmp_path / "verl_core")
    with pytest.raises(EnvError, match="files are missing"):
        files.data_root()
