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

from rlx.env import folder_lock, launch, lockfile, uv
from tests.conftest import ROOT, command_variables
from verl_core.config.errors import EnvError


def in_environment(folder: Path, code: str) -> str:
    """Output of Python code run in the environment, without any of the test's own paths."""
    variables = command_variables({"PYTHONPATH": None})
    run = [folder / "bin" / "python", "-c", code]
    return subprocess.run(run, env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_sync_makes_what_the_lock_says_and_never_rlx(rlx, compiled_plot):
    assert compiled_plot.name == f"plot-{lockfile.environment_key()}"
    have = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    installed = json.loads(in_environment(compiled_plot, have))
    assert [installed["matplotlib"]] == lockfile.locked_version("matplotlib")
    assert "rlx" not in installed and "torch" not in installed
    marker = json.loads((compiled_plot / "rlx-env.json").read_text())
    assert marker["extras"] == ["plot"] and marker["lock"] == lockfile.digest()

    envs = {"RLX_ENVS": str(compiled_plot.parent)}
    listed = json.loads(rlx("env", "ls", "--json", env=envs).stdout)
    assert [(row["path"], row["state"]) for row in listed] == [(str(compiled_plot), "ready")]
    measured = json.loads(rlx("env", "ls", "--own", "--json", env=envs).stdout)
    assert abs(listed[0]["bytes"] - measured[0]["bytes"]) < 100 and listed[0]["bytes"] > 10_000_000  # with byte code


NO_UV = {"UV_CONFIG_FILE": "/nonexistent"}
"""With this, uv does not even start."""


def test_a_complete_environment_is_reused_without_uv(rlx, seeded):
    sync = ["env", "sync", "--extra", "plot"]
    made = rlx(*sync, env=seeded)
    again = rlx(*sync, env={**seeded, **NO_UV})
    assert (again.returncode, again.stdout, again.stderr) == (0, made.stdout, "")
    run = ["env", "run", "--extra", "plot", "--", "python", "-c", "import plotext, rlx; print('here')"]
    done = rlx(*run, env={**seeded, **NO_UV})
    assert (done.returncode, done.stdout) == (0, "here\n")
    assert rlx(*sync, "--verify", env={**seeded, **NO_UV}).returncode == 3
    assert "Checked" in rlx(*sync, "--verify", env=seeded).stderr


def test_the_command_that_is_shown_is_the_one_that_ran(rlx, envs, compiled_plot, tmp_path):
    spaced = {**envs, "RLX_ENVS": str(tmp_path / "a folder"), "RLX_PYTHON": None}
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "a-seed").symlink_to(compiled_plot)  # whose byte code need not be compiled again
    done = rlx("env", "sync", "--extra", "plot", env=spaced)
    folder = Path(done.stdout.strip())
    shown = next(line for line in done.stderr.splitlines() if line.startswith("  UV_PROJECT_ENVIRONMENT="))
    again = subprocess.run(shown, shell=True, env=command_variables(spaced), capture_output=True, text=True)
    assert again.returncode == 0 and folder.parent.name == "a folder" and "Checked" in again.stderr, again.stderr


def test_an_interpreter_at_hand_is_named_beside_what_is_made(rlx, seeded):
    done = rlx("env", "sync", "--extra", "plot", env={**seeded, "RLX_PYTHON": "current"})
    assert done.returncode == 0
    assert f"note: RLX_PYTHON is set: jobs run in {sys.executable}, not in what this makes" in done.stderr


def test_environments_live_side_by_side(rlx, seeded):
    """Making a second one neither syncs the first anew nor drops an extra from it."""
    first = Path(rlx("env", "sync", "--extra", "plot", "--extra", "tensorboard", env=seeded).stdout.strip())
    before = {path: path.stat() for path in first.rglob("*") if "__pycache__" not in path.parts}
    second = Path(rlx("env", "sync", "--extra", "plot", env=seeded).stdout.strip())
    assert second != first and not list(second.glob("lib/*/site-packages/tensorboard"))
    assert before == {path: before[path] for path in first.rglob("*") if "__pycache__" not in path.parts}
    for path, stat in before.items():
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)


def test_an_incomplete_environment_is_made_again(rlx, seeded):
    sync = ["env", "sync", "--extra", "plot"]
    folder = Path(rlx(*sync, env=seeded).stdout.strip())

    def state() -> str:
        return json.loads(rlx("env", "which", "--extra", "plot", "--json", env=seeded).stdout)["state"]

    (folder / "rlx-env.json").unlink()  # as a kill during the sync leaves it: files missing, no marker
    shutil.rmtree(next(folder.glob("lib/*/site-packages/plotext")))
    assert state() == "incomplete"
    run = ["env", "run", "--extra", "plot", "--", "python", "-c", "import plotext"]
    assert rlx(*run, env=seeded).returncode == 0
    assert state() == "ready"


def test_two_at_once_make_one_environment(rlx, seeded):
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: rlx("env", "sync", "--extra", "plot", env=seeded), range(2)))
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    assert both[0].stdout == both[1].stdout


def test_the_second_waits_for_the_first(rlx, seeded, tmp_path):
    folder = Path(rlx("env", "which", "--extra", "plot", env=seeded).stdout.strip())
    with folder.with_name(folder.name + ".lock").open("w") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = pool.submit(rlx, "env", "sync", "--extra", "plot", env=seeded)
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


def at_work(envs: dict[str, str | None], folder: Path) -> tuple[subprocess.Popen[str], int]:
    """`rlx env sync` at work, and its child; one that never ends stands for a long download."""
    script = (
        "import sys; from rlx.env import manager, uv; from rlx.main import main\n"
        "manager.download_size = lambda wanted: (0, 0); manager.preflight.check = lambda *wanted: None\n"
        "uv.sync_command = lambda *wanted: ['sh', '-c', 'echo child $$ >&2; exec sleep 600']\n"
        "sys.argv = ['rlx', 'env', 'sync', '--extra', 'plot']; main()"
    )
    run = [sys.executable, "-c", script]
    command = subprocess.Popen(run, env=command_variables(envs), cwd=folder, stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    child = next(int(line.split()[-1]) for line in command.stderr if line.strip().startswith("child "))
    return command, child


def test_the_uv_of_a_killed_command_keeps_the_lock_until_it_ends(rlx, envs, tmp_path):
    """SIGKILL, as from a scheduler or for memory, leaves uv at work: nobody may remove or make the folder meanwhile."""
    command, child = at_work(envs, tmp_path)
    try:
        command.kill()
        command.wait(30)
        folder = Path(rlx("env", "which", "--extra", "plot", env=envs).stdout.strip())
        with folder_lock.held_for_removal(folder) as ours:
            assert not ours
    finally:
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not ours and time.monotonic() < deadline:
        time.sleep(0.05)
        with folder_lock.held_for_removal(folder) as ours:
            pass
    assert ours


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_uv_at_work(envs, tmp_path, number, code):
    command, child = at_work(envs, tmp_path)
    assert command.stderr is not None
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


def test_offline_with_a_cold_cache_is_one_line(rlx, envs, tmp_path):
    variables = {**envs, "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "cold")}
    done = rlx("env", "sync", "--extra", "plot", env=variables)
    assert done.returncode == 3
    assert "packages are not in uv's cache" in done.stderr
    assert "hint:" in done.stderr and "Traceback" not in done.stderr


def test_unwritable_environments_folder(rlx, envs, tmp_path):
    (tmp_path / "envs").touch()
    done = rlx("env", "sync", "--extra", "plot", env=envs)
    assert done.returncode == 3
    assert "RLX_ENVS" in done.stderr


@pytest.mark.parametrize("words", [["ls"], ["clean", "--all"], ["which", "--extra", "plot"]])
def test_an_environments_folder_that_cannot_be_a_path_is_one_line(rlx, envs, words):
    done = rlx("env", *words, env=envs | {"RLX_ENVS": "/tmp/" + "x" * 300})
    assert done.returncode == 3 and "too long for a path" in done.stderr


def test_a_stale_lock_is_named_with_its_command(rlx, seeded, tmp_path):
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
        done = rlx("env", "sync", "--extra", "plot", env={**seeded, **sources})
        assert done.returncode == 3
        assert f"error: {checkout}/uv.lock is stale" in done.stderr
        assert "hint: `rlx env lock` makes it anew" in done.stderr
    (checkout / "pyproject.toml").write_text(pyproject)
    assert rlx("env", "sync", "--extra", "plot", env={**seeded, **sources}).returncode == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Failed to install: x\n cause: failed to copy: No space left on device (os error 28)", "no space left"),
        ("error: The requested interpreter resolved to Python 3.11.2, which is incompatible", "is not a Python"),
        (
            "error: Failed to build `pycosat==0.6.6`\n cause: x\n [stderr]\n error: command 'cc' failed\nhint: y",
            "pycosat has no wheel and cannot be built from source: command 'cc' failed",
        ),
        ("error: something new", "uv could not make /envs/a: something new"),
        ("thread 'main' panicked", "uv could not make /envs/a: thread 'main' panicked"),
        ("", "uv could not make /envs/a: it says nothing"),
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


class TestUv:
    """Which uv is taken."""

    @pytest.fixture(autouse=True)
    def unknown(self):
        uv.find.cache_clear()
        yield
        uv.find.cache_clear()

    @pytest.mark.parametrize(
        ("says", "expected"),
        [
            ("uv 0.7.22 (abc 2025-01-01)", "is uv 0.7.22, and rlx needs uv>=0.8"),
            ("vu 1.0", "is not uv"),
            ("", "is not uv"),
        ],
    )
    def test_one_that_does_not_fit_is_refused(self, monkeypatch, tmp_path, says, expected):
        program = tmp_path / "uv"
        program.write_text(f"#!/bin/sh\necho '{says}'\n")
        program.chmod(0o755)
        monkeypatch.setattr("uv.find_uv_bin", lambda: str(program))
        with pytest.raises(EnvError, match=re.escape(expected)) as caught:
            uv.find()
        assert caught.value.hint == "pip install --upgrade uv"

    def test_without_any_the_hint_says_how_to_get_it(self, monkeypatch):
        def nowhere():
            raise FileNotFoundError

        monkeypatch.setattr("uv.find_uv_bin", nowhere)
        monkeypatch.setenv("PATH", "/nonexistent")
        with pytest.raises(EnvError, match="uv is not installed"):
            uv.find()

    def test_the_bound_is_that_of_pyproject(self):
        assert [text for text in lockfile.project()["project"]["dependencies"] if text.startswith("uv>=")]
        assert Path(uv.find()).name == "uv"
