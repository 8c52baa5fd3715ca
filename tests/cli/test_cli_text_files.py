"""Files that commands write: whole or not at all, through symlinks only where they lead somewhere, also to stdout."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlx import text_files
from tests.conftest import command_variables

SCRIPT = str(Path(__file__).parents[1] / "config" / "verl_scripts" / "grpo_7b_vllm.sh")
WRITERS = {"cp": ["profile", "cp", "smoke"], "import": ["config", "import", SCRIPT, "--out"]}
"""Commands that write one file; its name comes next."""


@pytest.fixture
def full_disk(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """rlx where no file grows beyond some bytes: a write fails in its midst, as on a full disk."""

    def run(limit: int, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-B", "-m", "rlx", *words],
            cwd=tmp_path,
            env=command_variables({}),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )

    return run


@pytest.mark.parametrize(("writer", "code"), [("cp", 1), ("import", 3)])
def test_a_full_disk_leaves_what_was_there(full_disk, tmp_path, writer, code):
    """An import fails at its temporary file already."""
    mine = tmp_path / "mine.yaml"
    done = full_disk(100, *WRITERS[writer], "mine.yaml")
    assert done.returncode == code and "File too large" in done.stderr and "hint:" in done.stderr
    assert list(tmp_path.iterdir()) == []
    mine.write_text("mine")
    assert full_disk(100, *WRITERS[writer], "mine.yaml", "--force").returncode == code
    assert [*tmp_path.iterdir()] == [mine] and mine.read_text() == "mine"


def test_a_project_is_there_whole_or_not_at_all(full_disk, tmp_path):
    done = full_disk(10_000, "init", "a/b")  # the schema is larger, the files before it are not
    assert done.returncode == 1 and "a/b cannot be written: File too large" in done.stderr
    assert (done.stdout, list(tmp_path.iterdir())) == ("", [])
    (tmp_path / "a").mkdir()
    assert full_disk(10_000, "init", "a/b").returncode == 1
    assert list(tmp_path.rglob("*")) == [tmp_path / "a"]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_that_leads_nowhere_is_not_written_through_unasked(rlx, tmp_path, writer):
    (tmp_path / "link.yaml").symlink_to("elsewhere.yaml")
    done = rlx(*WRITERS[writer], "link.yaml")
    assert done.returncode == 1 and "link.yaml exists" in done.stderr and "--force" in done.stderr
    assert not (tmp_path / "elsewhere.yaml").exists()
    assert rlx(*WRITERS[writer], "link.yaml", "--force").returncode == 0
    assert (tmp_path / "link.yaml").is_symlink() and "trainer" in (tmp_path / "elsewhere.yaml").read_text()


def test_a_project_follows_no_link_that_leads_nowhere(rlx, tmp_path):
    (tmp_path / "rlx.yaml").symlink_to("elsewhere.yaml")
    done = rlx("init")
    assert done.returncode == 1 and "this folder has rlx.yaml already" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rlx.yaml"]


@pytest.mark.parametrize("into_a_file", [False, True])
def test_stdout_is_written_and_never_replaced(tmp_path, into_a_file):
    command = [sys.executable, "-m", "rlx", "profile", "cp", "smoke", "/dev/stdout"]
    with (tmp_path / "out").open("w+") as file:
        target = file if into_a_file else subprocess.PIPE
        done = subprocess.run(command, stdout=target, env=command_variables({}), text=True, check=True)
        file.seek(0)
        assert (file.read() if into_a_file else done.stdout).startswith("# Copied from the profile smoke")
    assert Path("/dev/stdout").is_symlink()


def test_the_mode_of_a_file_and_a_link_to_it_stay(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    text_files.write(link, "new")
    assert file.read_text() == "new" and link.is_symlink() and file.stat().st_mode & 0o777 == 0o600
    text_files.write(tmp_path / ("x" * 255), "a name of the greatest length")
    os.mkfifo(tmp_path / "pipe")
    assert text_files.taken(link) and not text_files.taken(tmp_path / "pipe")
