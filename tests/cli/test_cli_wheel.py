"""An installed wheel, run from `/`, outside of any checkout: it finds its profiles, templates and lock, imports nothing
heavy, writes nothing beside itself, and trains."""

import json
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from rlx.env import uv
from tests.conftest import ROOT, command_variables

pytestmark = pytest.mark.slow

HEAVY = ("torch", "ray", "vllm", "transformers", "numpy")
READING = [
    ["--help"],
    ["--version"],
    ["profile", "ls"],
    ["profile", "show", "gsm8k-ppo"],
    ["config", "show", "gsm8k-ppo"],
    ["config", "show", "gsm8k-ppo", "--origin"],
    ["env", "ls", "--json"],
    ["env", "which", "smoke"],
    ["train", "smoke", "--dry-run"],
    ["plan", "gsm8k-ppo"],
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The `rlx` program as `uv tool install` makes it from the wheel, with the base dependencies of the lock."""
    folder = tmp_path_factory.mktemp("wheel")
    places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    variables = command_variables({"PYTHONPATH": None, "VIRTUAL_ENV": None, **places})

    def run(*words):
        return subprocess.run(words, env=variables, cwd="/", capture_output=True, text=True, check=True).stdout

    this_python = ("-q", "--python", sys.executable)
    run(uv.find(), "build", "--wheel", *this_python, "--out-dir", folder, ROOT)
    options = ["--frozen", "--no-emit-project", "--no-default-groups", "--no-hashes"]
    (folder / "base.txt").write_text(run(uv.find(), "export", *this_python, "--project", ROOT, *options))
    (wheel,) = folder.glob("*.whl")
    run(uv.find(), "tool", "install", *this_python, "--constraints", folder / "base.txt", wheel)
    return folder / "bin" / "rlx"


@pytest.fixture
def heavy(tmp_path):
    """A folder for PYTHONPATH with a stand-in for each heavy package that writes down that it was imported."""
    for name in HEAVY:
        text = f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).open('a').write('{name} ')\n"
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def rlx(installed, *words, cwd="/", **changes):
    variables = command_variables({"PYTHONPATH": None, "RLX_PYTHON": None, **changes})
    return subprocess.run([installed, *words], env=variables, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_wheel_holds_what_a_run_needs_and_nothing_else(installed):
    (wheel,) = installed.parents[1].glob("*.whl")
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


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_reading_commands_work_from_the_root_folder_and_import_nothing_heavy(installed, heavy, words):
    done = rlx(installed, *words, RLX_CACHE=str(heavy / "cache"), PYTHONPATH=str(heavy))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not (heavy / "imported").exists()
    assert not (heavy / "cache").exists()


def test_the_stand_ins_do_tell(installed, heavy):
    python = next(installed.parents[1].glob("tools/rlx/bin/python"))
    subprocess.run([python, "-c", "import torch"], env={"PYTHONPATH": str(heavy)}, check=True)
    assert (heavy / "imported").read_text() == "torch "


def test_help_answers_at_once(installed):
    def seconds():
        started = time.monotonic()
        assert rlx(installed, "--help").returncode == 0
        return time.monotonic() - started

    assert min(seconds() for _ in range(5)) < 0.3


def test_the_resolved_defaults_are_those_of_the_checkout(installed):
    here = subprocess.run(
        [sys.executable, "-m", "rlx", "config", "show", "gsm8k-ppo"],
        env=command_variables({}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert rlx(installed, "config", "show", "gsm8k-ppo").stdout == here.stdout


def test_dry_run_from_the_root_folder(installed, tmp_path):
    done = rlx(installed, "train", "smoke", "--dry-run", RLX_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/envs/fsdp-" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_init_and_environment_from_the_wheel(installed, tmp_path):
    """Nothing is written where rlx is installed: there the lock is checked and read, and no more."""
    packages = next(installed.parents[1].glob("tools/rlx/lib/*/site-packages"))
    before = contents(packages)
    for folder in (path for path in [packages, *packages.rglob("*")] if path.is_dir()):
        folder.chmod(0o555)  # for everybody but root; for root what is there is compared
    assert rlx(installed, "init", "project", cwd=tmp_path).returncode == 0
    scripts = (tmp_path / "project" / "launch").glob("*.sh")
    assert not any(str(ROOT) in script.read_text() for script in scripts)
    code = "import rlx, verl_core, plotext, sys; print(rlx.__file__, any('tools' in p for p in sys.path))"
    run = ["env", "run", "--extra", "plot", "--", "python", "-c", code]
    done = rlx(installed, *run, RLX_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "cache" / "source"))
    assert done.stdout.strip().endswith("False")  # nothing of the site-packages rlx is installed in
    assert contents(packages) == before


def contents(folder: Path) -> dict[str, int]:
    """File -> time of its last change in nanoseconds; byte code aside, which Python writes by itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_training_from_the_root_folder_runs_the_wheels_own_source(installed, tmp_path):
    """The job runs in the interpreter of the tests, which has torch; its rlx is the wheel's."""
    steps = ["trainer.total_training_steps=1", "trainer.val_before_train=false", "data.train_batch_size=4"]
    keys = [*steps, "actor.ppo_mini_batch_size=4", f"trainer.default_local_dir={tmp_path}/runs"]
    warm_up = "warmup.phases=[{name: skill, steps: 5, optim: {optimizer: muon, lr: 5e-3, weight_decay: 0.0}}]"
    done = rlx(
        installed,
        *["train", "smoke", *keys, warm_up, "trainer.parity=off"],
        RLX_PYTHON=sys.executable,
        RLX_CACHE=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"launch: PYTHONPATH={tmp_path}/cache/source/\w+ ", done.stderr)
    summary = json.loads((tmp_path / "runs" / "smoke" / "smoke-1" / "summary.json").read_text())
    assert summary["exit_reason"] == "finished"
