"""An installed wheel, run from `/`, finds its profiles, templates and lock."""

import subprocess
import sys
import zipfile

import pytest

from rlx.env import uv
from tests.conftest import ROOT, command_variables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The `rlx` program of a clean environment that holds the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    variables = command_variables({"PYTHONPATH": None, "VIRTUAL_ENV": None})

    def run(*words):
        return subprocess.run(words, env=variables, cwd="/", capture_output=True, text=True, check=True).stdout

    this_python = ("-q", "--python", sys.executable)
    run(uv.find(), "build", "--wheel", *this_python, "--out-dir", folder, ROOT)
    run(uv.find(), "venv", *this_python, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    base = run(
        uv.find(), "export", *this_python, "--project", ROOT, "--frozen", "--no-emit-project", "--no-default-groups"
    )
    (folder / "base.txt").write_text(base)
    run(uv.find(), "pip", "install", "-q", "--python", python, "-r", folder / "base.txt")
    run(uv.find(), "pip", "install", "-q", "--python", python, "--no-deps", *folder.glob("*.whl"))
    return python.with_name("rlx")


def rlx(installed, *words, cwd="/", **changes):
    variables = command_variables({"PYTHONPATH": None, "RLX_PYTHON": None, **changes})
    return subprocess.run([installed, *words], env=variables, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_wheel_holds_what_a_run_needs_and_nothing_else(installed):
    (wheel,) = installed.parents[2].glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("profiles", "templates"):
        ours = {f"rlx/_data/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {name for name in ours if "__pycache__" not in name} <= set(names)
    assert {"rlx/_data/pyproject.toml", "rlx/_data/uv.lock"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rlx", "verl_core"}


def test_profiles_are_found(installed):
    done = rlx(installed, "profile", "ls")
    assert done.returncode == 0, done.stderr
    assert "smoke-ppo" in done.stdout


def test_dry_run_from_the_root_folder(installed, tmp_path):
    done = rlx(installed, "train", "smoke", "--dry-run", RLX_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/envs/fsdp-" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_init_and_environment_from_the_wheel(installed, tmp_path):
    assert rlx(installed, "init", "project", cwd=tmp_path).returncode == 0
    assert "\nRLX=(rlx)\n" in (tmp_path / "project/launch/slurm.sh").read_text()
    code = "import rlx, verl_core, plotext, sys; print(rlx.__file__, any('wheel' in p for p in sys.path))"
    run = ["env", "run", "--extra", "plot", "--", "python", "-c", code]
    done = rlx(installed, *run, RLX_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "cache" / "source"))
    assert done.stdout.strip().endswith("False")  # nothing of the site-packages rlx is installed in
