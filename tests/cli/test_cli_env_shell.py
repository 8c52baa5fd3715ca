"""`rlx env shell`: an interactive shell on a terminal of the test."""

import os
import pty
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, command_variables

SHELLS = [found for name in ("bash", "dash", "zsh", "fish") if (found := shutil.which(name))]


def talk(variables: dict[str, str], cwd: Path, lines: list[str], prompt: str) -> tuple[str, int]:
    """Everything the shell of `rlx env shell` prints when it is given the lines, one a prompt, and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(sys.executable, [sys.executable, "-m", "rlx", "env", "shell", "--extra", "plot"], variables)
    said = ""
    waiting = list(lines)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], 1)
        try:
            said += os.read(terminal, 65536).decode(errors="replace") if ready else ""
        except OSError:  # the shell has ended
            break
        if waiting and said.count(f"\n({prompt}) ") > len(lines) - len(waiting):
            os.write(terminal, waiting.pop(0).encode() + b"\n")
    os.close(terminal)
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("shell", SHELLS)
def test_it_opens_in_the_environment_with_a_marked_prompt_and_keeps_the_exit_code(compiled_plot, tmp_path, shell):
    """Also where the user's own settings put another folder first on PATH."""
    for name in (".bashrc", ".zshrc"):
        (tmp_path / name).write_text("export PATH=/usr/bin:$PATH; echo my settings\n")
    variables = command_variables(
        {
            "RLX_ENVS": str(compiled_plot.parent),
            "RLX_PYTHON": None,
            "SHELL": shell,
            "HOME": str(tmp_path),
            "TERM": "dumb",
        }
    )
    lines = ["command -v python", "python -c 'import plotext, rlx; print(6 * 111)'", "exit 7"]
    said, code = talk(variables, tmp_path, lines, compiled_plot.name)
    assert code == 7, said
    assert f"{compiled_plot}/bin/python" in said.replace("\r", "").splitlines() and "666" in said
    assert ("my settings" in said) == (Path(shell).name in ("bash", "zsh"))


def test_a_shell_that_does_not_exist_is_one_line(rlx):
    done = rlx("env", "shell", env={"SHELL": "/no/shell"})
    assert done.returncode == 1 and "SHELL=/no/shell is not a program" in done.stderr


def test_the_files_that_shells_read_are_shipped():
    assert {path.name for path in (ROOT / "templates" / "shell").rglob("*") if path.is_file()} == {
        "bashrc",
        ".zshenv",
        ".zshrc",
        "init.fish",
    }
