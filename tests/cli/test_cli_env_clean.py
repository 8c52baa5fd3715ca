"""`rlx env ls` and `clean`: sizes, states, and what may go."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.commands import env_clean
from rlx.env import folder_lock, lockfile, usage
from verl_core.config.errors import EnvError


def environment(folder: Path, lock: str | None = None, n_bytes: int = 1000) -> Path:
    """What the commands take for an environment: the marker is absent when `lock` is empty."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "packages").write_bytes(b"x" * n_bytes)
    if lock != "":
        marker = {
            "extras": ["plot"],
            "lock": lock or lockfile.digest(),
            "python": "3.12.1",
            "made": "2026-01-01T00:00:00Z",
        }
        (folder / "rlx-env.json").write_text(json.dumps(marker))
    return folder


@pytest.fixture
def three(tmp_path) -> dict[str, Path]:
    """A ready, a stale and an incomplete one; the first two share a file of a million bytes."""
    made = {
        "ready": environment(tmp_path / "envs" / "plot-1"),
        "stale": environment(tmp_path / "envs" / "plot-2", lock="0" * 64),
        "incomplete": environment(tmp_path / "envs" / "plot-3", lock=""),
    }
    (made["ready"] / "shared").write_bytes(b"y" * 1_000_000)
    os.link(made["ready"] / "shared", made["stale"] / "shared")
    return made


def test_ls_tells_states_and_sizes(rlx, envs, three):
    rows = {row["state"]: row for row in json.loads(rlx("env", "ls", "--own", "--json", env=envs).stdout)}
    assert {state: row["path"] for state, row in rows.items()} == {s: str(p) for s, p in three.items()}
    for state in ("ready", "stale"):
        assert rows[state]["shared_bytes"] == 1_000_000
        assert rows[state]["bytes"] == rows[state]["own_bytes"] + 1_000_000
        assert 1000 < rows[state]["own_bytes"] < 2000
    table = rlx("env", "ls", "--own", env=envs).stdout.splitlines()
    assert table[0].split() == ["ENVIRONMENT", "STATE", "SIZE", "OWN", "MADE"]
    assert [line.split()[1] for line in table[1:]] == ["ready", "stale", "incomplete"]


def test_ls_reads_sizes_and_measures_none(rlx, envs, three):
    marker = three["ready"] / "rlx-env.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"bytes": 5_400_000_000}))
    rows = json.loads(rlx("env", "ls", "--json", env=envs).stdout)
    assert [row["bytes"] for row in rows] == [5_400_000_000, None, None]
    assert all(row["own_bytes"] is row["shared_bytes"] is None for row in rows)
    table = [line.split() for line in rlx("env", "ls", env=envs).stdout.splitlines()]
    assert table[0] == ["ENVIRONMENT", "STATE", "SIZE", "MADE"]
    assert table[1][:4] == ["plot-1", "ready", "5.4", "GB"] and table[2][2] == "?"


def test_which_tells_the_state(rlx, envs, tmp_path):
    which = ["env", "which", "--extra", "plot", "--json"]
    told = json.loads(rlx(*which, env=envs).stdout)
    assert told["state"] == "absent" and told["extras"] == ["plot"]
    environment(Path(told["path"]))
    assert json.loads(rlx(*which, env=envs).stdout)["state"] == "ready"


def test_size_of_several_counts_what_they_share_among_themselves_as_freed(three, tmp_path):
    one, other = usage.measure([three["ready"]]), usage.measure([three["stale"]])
    both = usage.measure([three["ready"], three["stale"]])
    assert both.total == one.total + other.total - 1_000_000
    assert both.own == one.own + other.own + 1_000_000
    os.link(three["ready"] / "shared", tmp_path / "uv's")
    assert usage.measure([three["ready"], three["stale"]]).own == one.own + other.own


def test_stale_removes_what_another_lock_or_a_kill_left(rlx, envs, three):
    dry = json.loads(rlx("env", "clean", "--stale", "--dry-run", "--json", env=envs).stdout)
    assert dry["removed"] == ["plot-2", "plot-3"] and all(path.exists() for path in three.values())
    done = rlx("env", "clean", "--stale", "--json", env=envs)
    assert json.loads(done.stdout) == dry | {"dry_run": False}
    assert [state for state, path in three.items() if path.exists()] == ["ready"]


def test_names_and_all(rlx, envs, three):
    unknown = rlx("env", "clean", "plot-1", "plot-9", env=envs)
    assert unknown.returncode == 1 and "no environment plot-9" in unknown.stderr and three["ready"].exists()
    assert rlx("env", "clean", env=envs).returncode == 2
    assert rlx("env", "clean", "plot-1", env=envs).returncode == 0
    assert [state for state, path in three.items() if path.exists()] == ["stale", "incomplete"]
    done = rlx("env", "clean", "--all", env=envs)
    assert done.returncode == 0 and "this frees 1 MB" in done.stderr
    assert list(three["ready"].parent.iterdir()) == []


@pytest.mark.parametrize("how", ["interpreter", "active", "folder"])
def test_one_in_use_stays(rlx, envs, three, how):
    folder = three["stale"]
    command = [folder / "bin" / "python" if how == "interpreter" else sys.executable, "-c", "input()"]
    variables = {**os.environ, **({"VIRTUAL_ENV": str(folder)} if how == "active" else {})}
    cwd = folder if how == "folder" else None
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables, cwd=cwd) as user:
        assert user.stdin is not None
        done = rlx("env", "clean", "--stale", "--json", env=envs)
        told = json.loads(done.stdout)
        assert told["removed"] == ["plot-3"] and str(user.pid) in told["kept"]["plot-2"]
        assert folder.exists() and f"plot-2 stays: in use by process {user.pid}" in done.stderr
        user.stdin.close()
    assert json.loads(rlx("env", "clean", "--stale", "--json", env=envs).stdout)["removed"] == ["plot-2"]


@pytest.mark.parametrize("how", ["interpreter", "active"])
def test_one_in_use_by_another_name_stays(rlx, envs, three, tmp_path, how):
    """The folder of environments is a symbolic link, for one of the two."""
    (tmp_path / "link").symlink_to(tmp_path / "envs")
    folder = tmp_path / "link" / "plot-2"
    command = [folder / "bin" / "python" if how == "interpreter" else sys.executable, "-c", "input()"]
    variables = {**os.environ, **({"VIRTUAL_ENV": str(folder)} if how == "active" else {})}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables) as user:
        for name in ("envs", "link"):
            told = rlx("env", "clean", "plot-2", "--json", env={**envs, "RLX_ENVS": str(tmp_path / name)})
            assert str(user.pid) in json.loads(told.stdout)["kept"]["plot-2"]
        assert user.stdin is not None
        user.stdin.close()
    assert folder.exists()


def test_one_that_is_taken_into_use_after_the_question_stays(three, monkeypatch, capsys):
    """The answer may come minutes later."""
    monkeypatch.setenv("RLX_ENVS", str(three["stale"].parent))
    found = iter([[], [4711]])
    monkeypatch.setattr(usage, "users", lambda folder: next(found))
    env_clean.clean(["plot-2"], stale=False, everything=False, yes=True, dry_run=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["kept"] == {"plot-2": "in use by process 4711"}
    assert (three["stale"] / "rlx-env.json").exists()


def test_a_link_goes_and_what_it_leads_to_stays(rlx, envs, three, tmp_path):
    elsewhere = environment(tmp_path / "elsewhere")
    (three["ready"].parent / "plot-4").symlink_to(elsewhere)
    told = json.loads(rlx("env", "clean", "plot-4", "--json", env=envs).stdout)
    assert told["removed"] == ["plot-4"] and told["freed_bytes"] == 0
    assert (elsewhere / "rlx-env.json").exists() and not (three["ready"].parent / "plot-4").is_symlink()


def test_what_cannot_be_removed_is_one_line(three, monkeypatch):
    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / "packages"))

    monkeypatch.setenv("RLX_ENVS", str(three["stale"].parent))
    monkeypatch.setattr(env_clean.shutil, "rmtree", refuse)
    with pytest.raises(EnvError, match=r"plot-2 cannot be removed: Permission denied \(.*packages\)"):
        env_clean.clean(["plot-2"], stale=False, everything=False, yes=True, dry_run=False, as_json=True)


@pytest.mark.parametrize("text", ["{}", "[]", '{"extras": [', "null"])
def test_a_marker_that_says_nothing_is_that_of_an_incomplete_one(rlx, envs, three, text):
    (three["ready"] / "rlx-env.json").write_text(text)
    states = {row["name"]: row["state"] for row in json.loads(rlx("env", "ls", "--json", env=envs).stdout)}
    assert states["plot-1"] == "incomplete"


def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch):
    def none_here(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none_here)
    with (
        pytest.raises(EnvError, match=f"files in {tmp_path} cannot be locked: No locks"),
        folder_lock.held(tmp_path / "env"),
    ):
        pass


def test_one_being_made_stays(rlx, envs, three):
    folder = three["incomplete"]
    with folder.with_name(folder.name + ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        told = json.loads(rlx("env", "clean", "plot-3", "--json", env=envs).stdout)
    assert told["kept"] == {"plot-3": "it is being made"} and folder.exists()


def test_who_waits_for_a_removed_lock_file_takes_the_new_one(tmp_path):
    folder = tmp_path / "env"
    with folder_lock.held_for_removal(folder) as ours:
        assert ours
        with folder_lock.held_for_removal(folder) as second:
            assert not second
    assert not (tmp_path / "env.lock").exists()
    with folder_lock.held(folder), folder_lock.held_for_removal(folder) as ours:
        assert not ours
