"""Byte code taken from other environments: what matches is linked, what does not is left, and Python accepts it."""

import errno
import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.env import bytecode, manager
from tests.conftest import command_variables


def environment(folder: Path, **sources: str) -> Path:
    """An environment's package folder with these modules, all of one time."""
    packages = bytecode.packages_folder(folder)
    for name, text in sources.items():
        path = packages / name.replace(".", "/")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return folder


def compiled(folder: Path, *names: str) -> Path:
    for name in names:
        py_compile.compile(str((bytecode.packages_folder(folder) / name.replace(".", "/")).with_suffix(".py")))
    return folder


def pyc(folder: Path, name: str) -> Path:
    path = bytecode.packages_folder(folder) / name.replace(".", "/")
    return path.parent / "__pycache__" / f"{path.name}{bytecode.SUFFIX}"


SOURCES = {"top": "x = 1\n", "package.__init__": "", "package.inner.deep": "def f():\n    return __file__\n"}


def test_what_another_environment_has_is_linked(tmp_path):
    old = compiled(environment(tmp_path / "old", **SOURCES), "top", "package.inner.deep")
    new = environment(tmp_path / "new", **SOURCES)
    assert bytecode.link(new, [old]) == (2, 1)
    for name in ("top", "package.inner.deep"):
        assert pyc(new, name).samefile(pyc(old, name))
    assert not pyc(new, "package.__init__").exists()


@pytest.mark.parametrize("change", ["time", "size", "version", "hashed"])
def test_what_does_not_match_is_not(tmp_path, change):
    old = compiled(environment(tmp_path / "old", top="x = 1\n"), "top")
    new = environment(tmp_path / "new", top="x = 11\n" if change == "size" else "x = 1\n")
    if change == "time":
        os.utime(bytecode.packages_folder(new) / "top.py", (1, 1))
    if change in ("version", "hashed"):
        content = bytearray(pyc(old, "top").read_bytes())
        content[0 if change == "version" else 4] ^= 1
        pyc(old, "top").write_bytes(content)
    assert bytecode.link(new, [old]) == (0, 1)
    assert not pyc(new, "top").exists()


def test_the_first_that_matches_of_several_is_taken(tmp_path):
    wrong = compiled(environment(tmp_path / "wrong", top="x = 222\n"), "top")
    right = compiled(environment(tmp_path / "right", top="x = 1\n"), "top")
    new = environment(tmp_path / "new", top="x = 1\n")
    assert bytecode.link(new, [tmp_path / "absent", wrong, right]) == (1, 0)
    assert pyc(new, "top").samefile(pyc(right, "top"))


def test_python_takes_it_and_names_the_new_file(tmp_path):
    old = compiled(environment(tmp_path / "old", **SOURCES), "package.inner.deep")
    new = environment(tmp_path / "new", **SOURCES)
    bytecode.link(new, [old])
    code = "import package.inner.deep as d; print(d.f.__code__.co_filename); print(d.f())"
    variables = command_variables({"PYTHONPATH": str(bytecode.packages_folder(new)), "PYTHONDONTWRITEBYTECODE": None})
    before = pyc(new, "package.inner.deep").stat()
    done = subprocess.run([sys.executable, "-v", "-c", code], env=variables, capture_output=True, text=True, check=True)
    expected = str(bytecode.packages_folder(new) / "package/inner/deep.py")
    assert done.stdout.split() == [expected, expected]
    assert f"matches {expected}" in done.stderr
    assert pyc(new, "package.inner.deep").stat().st_mtime_ns == before.st_mtime_ns


def test_across_file_systems_it_is_copied(tmp_path, monkeypatch):
    def other_device(*paths):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_device)
    old = compiled(environment(tmp_path / "old", **SOURCES), "top")
    new = environment(tmp_path / "new", **SOURCES)
    assert bytecode.link(new, [old])[0] == 1
    assert pyc(new, "top").read_bytes() == pyc(old, "top").read_bytes()
    assert not pyc(new, "top").samefile(pyc(old, "top"))


def test_a_full_disk_is_not_passed_over(tmp_path, monkeypatch):
    def no_space(*paths):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", no_space)
    old = compiled(environment(tmp_path / "old", **SOURCES), "top")
    with pytest.raises(OSError, match="No space"):
        bytecode.link(environment(tmp_path / "new", **SOURCES), [old])


@pytest.mark.parametrize(("n_shared", "enough"), [(1, False), (2, True)])
def test_a_fifth_of_the_sources_is_enough_to_leave_the_rest_for_later(tmp_path, monkeypatch, n_shared, enough):
    monkeypatch.setenv("RLX_ENVS", str(tmp_path))
    modules = {f"m{i}": "x = 1\n" for i in range(9)}
    old = compiled(environment(tmp_path / "old", **modules), *list(modules)[:n_shared])
    (old / "bin").mkdir()
    (old / "bin" / "python").symlink_to(sys.executable)
    (old / "pyvenv.cfg").touch()
    (old / manager.MARKER).write_text(json.dumps({"extras": [], "lock": "", "made": "2026-01-01T00:00:00Z"}))
    new = manager.Environment((), environment(tmp_path / "new", **modules))
    assert manager._link_bytecode(new) == enough
    assert sorted(path.name for path in new.folder.rglob("*.pyc")) == [
        pyc(new.folder, f"m{i}").name for i in range(n_shared)
    ]


def test_the_first_environment_is_compiled_and_the_next_takes_it(rlx, seeded, compiled_plot):
    name = f"plotext/__pycache__/__init__{bytecode.SUFFIX}"
    assert (bytecode.packages_folder(compiled_plot) / name).is_file()
    sync = ["env", "sync", "--extra", "plot", "--extra", "tensorboard"]
    second = rlx(*sync, env=seeded)
    assert "linked from other environments" in second.stderr and "compiling" not in second.stderr
    packages = bytecode.packages_folder(Path(second.stdout.strip()))
    assert (packages / name).samefile(bytecode.packages_folder(compiled_plot) / name)
    assert not list(packages.glob("tensorboard/__pycache__"))
    forced = rlx(*sync, "--compile", env=seeded)
    assert forced.returncode == 0 and "compiled after" in forced.stderr
    assert list(packages.glob("tensorboard/__pycache__/*.pyc"))
