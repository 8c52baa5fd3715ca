"""Which back end runs programs, and with which words."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from verl_core.config.errors import EnvError
from verl_core.config.schema_sandbox import SandboxConfig
from verl_core.rewards.sandbox import choose
from verl_core.rewards.sandbox.asserts import judge_tests
from verl_core.rewards.sandbox.bubblewrap import Bubblewrap
from verl_core.rewards.sandbox.choose import limits_of, sandbox_of
from verl_core.rewards.sandbox.interpreter import interpreter
from verl_core.rewards.sandbox.local import LocalSandbox
from verl_core.rewards.sandbox.nsjail import Nsjail
from verl_core.rewards.sandbox.protocol import Limits, Outcome
from verl_core.rewards.sandbox.remote import Remote
from verl_core.rewards.sandbox.rlimits import Rlimits

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed")
LIMITS = Limits(seconds=2.5, memory_mb=300, output_kb=64, tmp_mb=7)


@pytest.fixture(autouse=True)
def fresh() -> None:
    choose._local.cache_clear()


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@needs_bwrap
def test_auto_takes_bubblewrap() -> None:
    sandbox = sandbox_of(SandboxConfig())
    assert isinstance(sandbox, Bubblewrap)
    assert sandbox_of(SandboxConfig(type="bubblewrap")) is sandbox  # probed once a process


def test_auto_with_a_url_is_remote() -> None:
    assert isinstance(sandbox_of(SandboxConfig(url="http://localhost:8080")), Remote)


def test_auto_never_takes_the_weaker_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvError, match=r"no bwrap on PATH.*no nsjail on PATH") as e:
        sandbox_of(SandboxConfig())
    assert "apt-get install bubblewrap" in e.value.hint and "type=rlimits" in e.value.hint
    assert isinstance(sandbox_of(SandboxConfig(type="rlimits")), Rlimits)


def test_a_back_end_that_cannot_make_namespaces_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvError, match="No permissions to create new namespace"):
        sandbox_of(SandboxConfig(type="bubblewrap"))


def test_limits_are_the_configurations() -> None:
    config = SandboxConfig(run_timeout_s=2.5, memory_mb=300, output_kb=64, tmp_mb=7)
    assert limits_of(config) == LIMITS


def test_nsjails_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "nsjail", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    words = Nsjail().command(["-c", "pass"], (5, 6), 6, LIMITS)
    pairs = list(pairwise(words))
    assert words[0] == str(tmp_path / "nsjail")
    assert words[-4:] == ["--", interpreter().executable, "-c", "pass"]
    for pair in (
        ("--mode", "o"),
        ("--user", "65534"),
        ("--pass_fd", "5"),
        ("--pass_fd", "6"),
        ("--mount", f"none:/tmp:tmpfs:size={7 << 20},nr_inodes=4096"),
        ("--time_limit", "4"),
        ("--rlimit_as", "300"),
        ("--rlimit_fsize", "7"),
        ("--env", "PYTHONHASHSEED=0"),
        ("--bindmount", "/dev/null:/dev/null"),
    ):
        assert pair in pairs
    assert {"--disable_proc", "--iface_no_lo"} <= set(words)
    assert not [word for word in words if word.startswith(("/home", "/root:", str(Path.cwd())))]


@needs_bwrap
def test_bubblewraps_words() -> None:
    words = Bubblewrap().command(["-c", "pass"], (5, 6), 6, LIMITS)
    shown = [outside for word, outside in pairwise(words) if word in ("--ro-bind", "--dev-bind", "--bind")]
    assert "--bind" not in words and "--share-net" not in words
    allowed = ("/usr/lib", "/lib", "/etc/ld.so.cache", "/dev/", str(Path(sys.base_prefix).resolve()))
    assert all(path.startswith(allowed) for path in shown)
    assert words[words.index("--seccomp") + 1] == "6"


class Flaky(Rlimits):
    """Cannot start its first programs."""

    def __init__(self, failures: int):
        self.failures, self.starts = failures, 0

    def command(self, python: Sequence[str], fds: Sequence[int], filter_fd: int, limits: Limits) -> list[str]:
        self.starts += 1
        if self.starts <= self.failures:
            return [sys.executable, "-c", "raise SystemExit('no more processes')"]
        return super().command(python, fds, filter_fd, limits)


def judged_by(sandbox: LocalSandbox) -> Outcome:
    return judge_tests(sandbox, "def f(n): return n", ["assert f(1) + 1 == 2"], "", "", LIMITS).outcome


@pytest.mark.parametrize("run", [lambda sandbox: sandbox.run("print(1)", b"", LIMITS), judged_by])
def test_a_failure_that_lasts_is_an_error_and_another_one_is_none(run: Callable[[LocalSandbox], Outcome]) -> None:
    assert run(Flaky(1)).status == "ok"
    with pytest.raises(EnvError, match="no more processes"):
        run(Flaky(99))


def test_whatever_a_program_says_it_runs_once() -> None:
    sandbox = Flaky(0)
    outcome = sandbox.run("import sys\nprint('bwrap: no', file=sys.stderr)\nsys.exit(1)", b"", LIMITS)
    assert (outcome.status, sandbox.starts) == ("failed", 1)


def test_a_pipe_that_is_not_ready_after_all_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    really, taken = {"read": os.read, "write": os.write}, {"read": 2, "write": 2}

    def first_taken(name: str) -> Callable[[int, Any], Any]:
        def call(fd: int, what: Any) -> Any:
            if taken[name] and not os.get_blocking(fd):
                taken[name] -= 1
                raise BlockingIOError
            return really[name](fd, what)

        return call

    for name in really:
        monkeypatch.setattr(os, name, first_taken(name))
    outcome = Rlimits().run("print(input())", b"x\n", LIMITS)
    assert (outcome.stdout, taken) == (b"x\n", {"read": 0, "write": 0})
